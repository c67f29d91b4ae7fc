"""Dense predictors that load released checkpoints."""

from typing import TYPE_CHECKING

from gramloop.lazy import lazy_names

if TYPE_CHECKING:
    from gramloop.models.backbone import Backbone, LinearHead, LinearSegmentor, SegmentationModel
    from gramloop.models.depther import DptDepthHead, load_depther
    from gramloop.models.detector import WindowedDetector, load_windowed_detector
    from gramloop.models.dino import load_backbone
    from gramloop.models.mask2former import Mask2FormerSegmentor, load_segmentor
    from gramloop.models.pmt import PMT, PMTHead, PMTShape, load_pmt
    from gramloop.models.tiny import TinyModel, load_tiny
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "PMT", "Backbone", "DptDepthHead", "LinearHead", "LinearSegmentor", "Mask2FormerSegmentor", "PMTHead",
    "PMTShape", "SegmentationModel", "TinyModel", "WindowedDetector", "load_backbone",
    "load_depther", "load_pmt", "load_segmentor", "load_tiny", "load_windowed_detector",
]  # fmt: skip
