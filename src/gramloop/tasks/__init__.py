"""Image in, prediction out."""

from typing import TYPE_CHECKING

from gramloop.lazy import lazy_names

if TYPE_CHECKING:
    from gramloop.tasks.base import Task, register_task
    from gramloop.tasks.custom import FunctionPredictor, ModulePredictor, as_predictor
    from gramloop.tasks.depth import Depth, DepthConfig, DepthEstimator, DptDepthConfig, DptDepthEstimator
    from gramloop.tasks.detection import Detection
    from gramloop.tasks.diagnosis import Diagnosis, diagnose
    from gramloop.tasks.images import Normalisation, read_image, to_tensor
    from gramloop.tasks.loading import load_head, load_predictor, open_model
    from gramloop.tasks.prediction import Pair, Prediction
    from gramloop.tasks.predictor import Predictor, ViTPredictor
    from gramloop.tasks.released import DenseDetector, DetectConfig, Detector, QueryConfig, QuerySegmenter
    from gramloop.tasks.segments import InstanceMasks, Panoptic, Segment
    from gramloop.tasks.semantic import Segmentation, SegmentConfig, Segmenter
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "DenseDetector", "Depth", "DepthConfig", "DepthEstimator", "DetectConfig", "Detection", "Detector",
    "Diagnosis", "DptDepthConfig", "DptDepthEstimator", "FunctionPredictor",
    "InstanceMasks", "ModulePredictor", "Normalisation", "Pair", "Panoptic", "Prediction", "Predictor",
    "QueryConfig", "QuerySegmenter", "Segment", "SegmentConfig",
    "Segmentation", "Segmenter", "Task", "ViTPredictor", "as_predictor", "diagnose", "load_head",
    "load_predictor", "open_model", "read_image", "register_task", "to_tensor",
]  # fmt: skip
