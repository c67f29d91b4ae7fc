"""Image in, prediction out."""

from typing import TYPE_CHECKING

from gramloop.lazy import lazy_names

if TYPE_CHECKING:
    from gramloop.tasks.depth import (
        Depth,
        DepthConfig,
        DepthEstimator,
        DptDepthConfig,
        DptDepthEstimator,
        load_depth_estimator,
    )
    from gramloop.tasks.detect import DenseDetector, DetectConfig, Detector, load_detector
    from gramloop.tasks.detection import Detection
    from gramloop.tasks.diagnosis import Diagnosis, diagnose
    from gramloop.tasks.images import Normalisation, read_image, to_tensor
    from gramloop.tasks.instance import InstanceMasks
    from gramloop.tasks.loading import load_predictor, open_model
    from gramloop.tasks.module_predictor import ModulePredictor
    from gramloop.tasks.padded import (
        InstanceConfig,
        InstanceSegmenter,
        PanopticConfig,
        PanopticSegmenter,
        load_instances,
        load_panoptic,
    )
    from gramloop.tasks.panoptic import Panoptic, Segment
    from gramloop.tasks.prediction import Pair, Prediction
    from gramloop.tasks.predictor import Predictor, ViTPredictor
    from gramloop.tasks.segment import SegmentConfig, Segmenter, load_segmenter
    from gramloop.tasks.semantic import Segmentation
    from gramloop.tasks.user_models import FunctionPredictor, as_predictor
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "DenseDetector", "Depth", "DepthConfig", "DepthEstimator", "DetectConfig", "Detection", "Detector",
    "Diagnosis", "DptDepthConfig", "DptDepthEstimator", "FunctionPredictor", "InstanceConfig",
    "InstanceMasks", "InstanceSegmenter", "ModulePredictor", "Normalisation", "Pair", "Panoptic",
    "PanopticConfig", "PanopticSegmenter", "Prediction", "Predictor", "Segment", "SegmentConfig",
    "Segmentation", "Segmenter", "ViTPredictor", "as_predictor", "diagnose", "load_depth_estimator",
    "load_detector", "load_instances", "load_panoptic", "load_predictor", "load_segmenter", "open_model",
    "read_image", "to_tensor",
]  # fmt: skip
