"""Image in, prediction out."""

from typing import TYPE_CHECKING

from gramloop.lazy import lazy_names

if TYPE_CHECKING:
    from gramloop.tasks.base import Task, register_task
    from gramloop.tasks.custom import FunctionPredictor, ModulePredictor, as_predictor
    from gramloop.tasks.depth import Depth, DepthConfig, DepthEstimator, DptDepthConfig, DptDepthEstimator
    from gramloop.tasks.detection import Detection
    from gramloop.tasks.detectors import DenseDetector, DetectConfig, Detector
    from gramloop.tasks.diagnosis import Diagnosis, diagnose
    from gramloop.tasks.images import Normalisation, read_image, to_tensor
    from gramloop.tasks.instance import InstanceMasks
    from gramloop.tasks.loading import load_head, load_predictor, open_model
    from gramloop.tasks.mask_segmenters import (
        InstanceConfig,
        InstanceSegmenter,
        PanopticConfig,
        PanopticSegmenter,
    )
    from gramloop.tasks.panoptic import Panoptic, Segment
    from gramloop.tasks.prediction import Pair, Prediction
    from gramloop.tasks.predictor import Predictor, ViTPredictor
    from gramloop.tasks.semantic import Segmentation, SegmentConfig, Segmenter
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "DenseDetector", "Depth", "DepthConfig", "DepthEstimator", "DetectConfig", "Detection", "Detector",
    "Diagnosis", "DptDepthConfig", "DptDepthEstimator", "FunctionPredictor", "InstanceConfig",
    "InstanceMasks", "InstanceSegmenter", "ModulePredictor", "Normalisation", "Pair", "Panoptic",
    "PanopticConfig", "PanopticSegmenter", "Prediction", "Predictor", "Segment", "SegmentConfig",
    "Segmentation", "Segmenter", "Task", "ViTPredictor", "as_predictor", "diagnose", "load_head",
    "load_predictor", "open_model", "read_image", "register_task", "to_tensor",
]  # fmt: skip
