"""Dense predictors that load released checkpoints."""

from typing import TYPE_CHECKING

from gramloop.lazy import lazy_names

if TYPE_CHECKING:
    from gramloop.models.backbone import Backbone
    from gramloop.models.depther import Depther, load_depther
    from gramloop.models.detector import WindowedDetector, load_windowed_detector
    from gramloop.models.dino import Dinov2Backbone, load_any_backbone, load_backbone, load_dinov2
    from gramloop.models.heads import LinearHead, LinearSegmentor, SegmentationModel
    from gramloop.models.mask2former import Mask2FormerSegmentor, load_segmentor
    from gramloop.models.pmt import PMT, PMTHead, PMTShape, load_pmt
    from gramloop.models.tiny import TinyModel, load_tiny
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "PMT", "Backbone", "Depther", "Dinov2Backbone", "LinearHead", "LinearSegmentor", "Mask2FormerSegmentor", "PMTHead",
    "PMTShape", "SegmentationModel", "TinyModel", "WindowedDetector", "load_any_backbone", "load_backbone",
    "load_depther", "load_dinov2", "load_pmt", "load_segmentor", "load_tiny", "load_windowed_detector",
]  # fmt: skip
