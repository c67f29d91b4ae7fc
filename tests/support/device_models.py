"""The models that are run on stand-ins for devices."""

from collections.abc import Callable

from gramloop.tasks import Prediction, Predictor

Load = Callable[[str], Predictor[Prediction]]

RELEASED = ["segmenter", "detector", "depther", "panoptic", "instance"]
EMBEDDED = ["semantic", "detection", "depth"]
FOLDERS = {  # of transformers, and the task where they have several
    "UperNet on Dinov2": None,
    "Yolos": None,
    "DepthAnything": None,
    "MaskFormer": "panoptic",
    "Mask2Former": "instance",
}
