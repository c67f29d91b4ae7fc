"""The embedded model, and small ones of every released kind: what each gives for a picture, plain and replayed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from gramloop.check.made import fill, pattern
from gramloop.check.way import Way
from gramloop.models.backbone import BackboneShape
from gramloop.models.depther import Depther, DptDepthHead, DptShape
from gramloop.models.detector import WindowedDetector
from gramloop.models.dinov3 import Backbone
from gramloop.models.mask2former import Mask2FormerSegmentor, Mask2FormerShape
from gramloop.models.plain_detr import PlainDetr, PlainDetrConfig
from gramloop.models.pmt import PMT, PMTHead, PMTShape
from gramloop.models.tiny import load_tiny, load_tiny_depth
from gramloop.replay.attach import attached
from gramloop.replay.config import ReplayConfig

_SHAPE = BackboneShape(
    depth=4, width=64, head_dim=16, hidden=128, gated=False, qkv_bias=True, local_cls_norm=False, registers=2
)
_REPLAY = ReplayConfig(window=(1, 2), replays=1)

Outputs = Mapping[str, Tensor]


def _embedded(way: Way) -> Outputs:
    model, depth = load_tiny().to(way.device), load_tiny_depth(device=way.device)
    way.settle(model.backbone)
    pixels = pattern(96, 96).to(way.device)
    with torch.no_grad():
        labels, (scores, sides) = model(pixels)
        taps = [tap.map for tap in model.backbone(pixels, depth.taps)]
        metres = depth.depth(taps, (96, 96))
        with attached(model.backbone.model, _REPLAY):
            replayed, _ = model(pixels)
    return {"classes": labels, "boxes": scores, "sides": sides, "depth": metres, "replayed classes": replayed}


def _segmentor(way: Way) -> Outputs:
    head = Mask2FormerShape(channels=64, hidden=32, classes=5, queries=6, feedforward=64)
    return _of_queries(Mask2FormerSegmentor(Backbone(_SHAPE), head), way, "masks", pattern(64, 64))


def _pmt(way: Way) -> Outputs:
    head = PMTHead(PMTShape(64, 16, queries=6, classes=5, hidden=64, layers=2))
    return _of_queries(PMT(Backbone(_SHAPE), head), way, "masks", pattern(64, 64))


def _detector(way: Way) -> Outputs:
    config = PlainDetrConfig(
        channels=8 * 64, width=64, heads=4, encoder_layers=1, encoder_feedforward=64, decoder_layers=2,
        decoder_feedforward=64, rpe_hidden=32, queries=8, classes=5,
    )  # fmt: skip
    return _of_queries(WindowedDetector(Backbone(_SHAPE), PlainDetr(config)), way, "boxes", pattern(96, 144))


def _depther(way: Way) -> Outputs:
    head = DptDepthHead(DptShape(channels=64, reassembled=32, fused=16, hidden=8, bins=16), (0, 1, 2, 3))
    model = Depther(Backbone(_SHAPE), head)
    pixels = _ready(model, model.backbone, way, pattern(64, 80))
    with torch.no_grad():
        depth = model(pixels)
        with attached(model.backbone.model, _REPLAY):
            replayed = model(pixels)
    return {"depth": depth, "replayed depth": replayed}


def _of_queries(model: nn.Module, way: Way, second: str, pixels: Tensor) -> Outputs:
    """A model that gives classes and something else of every query."""
    shown = _ready(model, model.backbone, way, pixels)
    with torch.no_grad():
        classes, others = model(shown)
        with attached(model.backbone.model, _REPLAY):  # type: ignore[union-attr,arg-type]
            replayed, _ = model(shown)
    return {"classes": classes, second: others, "replayed classes": replayed}


def _ready(model: nn.Module, backbone: object, way: Way, pixels: Tensor) -> Tensor:
    assert isinstance(backbone, Backbone)
    fill(model).to(way.device)
    way.settle(backbone)
    return pixels.to(way.device)


HEADS: dict[str, Callable[[Way], Outputs]] = {
    "embedded model": _embedded,
    "Mask2Former": _segmentor,
    "Plain-DETR": _detector,
    "PMT": _pmt,
    "DPT depth": _depther,
}
