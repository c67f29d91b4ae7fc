"""PMT with random weights on a random backbone of eight blocks, for the classes of scenes."""

import torch

from gramloop.data.scenes import SCENE_CATEGORIES, THING_NUMBERS
from gramloop.models.backbone import Backbone, BackboneShape
from gramloop.models.pmt import PMT, PMTHead, PMTShape
from gramloop.tasks.released import QueryConfig, QuerySegmenter

SIDE = 64
THINGS = {number: SCENE_CATEGORIES[number] for number in sorted(THING_NUMBERS)}
SHAPE = BackboneShape(
    depth=8,
    width=32,
    head_dim=16,
    hidden=64,
    gated=False,
    qkv_bias=True,
    local_cls_norm=False,
    registers=4,
    patch=8,
)


def _model(classes: int, device: torch.device | str) -> PMT:
    torch.manual_seed(0)
    model = PMT(Backbone(SHAPE), PMTHead(PMTShape(32, 16, queries=12, classes=classes, layers=2)))
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "layer_scale" in name or "scalers" in name:
                value.fill_(0.7)
            elif value.ndim > 1:
                value.normal_(std=0.3)
    return model.requires_grad_(False).to(device)


def panoptic(device: torch.device | str = "cpu") -> QuerySegmenter:
    """Nothing is sure with random weights, so that nothing is asked for."""
    config = QueryConfig(SIDE, threshold=0.0, overlap=0.1)
    model = _model(len(SCENE_CATEGORIES), device)
    return QuerySegmenter(model, "panoptic", config, SCENE_CATEGORIES, THING_NUMBERS)


def instances(device: torch.device | str = "cpu") -> QuerySegmenter:
    return QuerySegmenter(_model(len(THINGS), device), "instance", QueryConfig(SIDE, keep=20), THINGS)
