"""The embedded model, and small ones of every released kind: what each gives for a picture, plain and replayed."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gramloop.models.backbone import Backbone, BackboneShape
from gramloop.models.depther import Depther, DptDepthHead, DptShape
from gramloop.models.detector import WindowedDetector
from gramloop.models.mask2former import Mask2FormerSegmentor, Mask2FormerShape
from gramloop.models.plain_detr import PlainDetr, PlainDetrConfig
from gramloop.models.pmt import PMT, PMTHead, PMTShape
from gramloop.models.tiny import load_tiny, load_tiny_depth, normalise
from gramloop.replay.attach import attached
from gramloop.replay.config import ReplayConfig

_SHAPE = BackboneShape(
    depth=4, width=64, head_dim=16, hidden=128, gated=False, qkv_bias=True, local_cls_norm=False, registers=2
)
_REPLAY = ReplayConfig(window=(1, 2), replays=1)

Outputs = Mapping[str, Tensor]


@dataclass(frozen=True)
class Precision:
    """A device, the type of the backbone's weights, and whether its blocks run under bfloat16 autocast."""

    device: torch.device
    dtype: torch.dtype = torch.float32
    autocast: bool = False

    @property
    def exact(self) -> bool:
        """Whether everything is float32."""
        return self.dtype == torch.float32 and not self.autocast

    @property
    def words(self) -> str:
        """The precision in words."""
        if self.dtype != torch.float32:
            return f"{str(self.dtype).removeprefix('torch.')} weights"
        return "bfloat16 autocast" if self.autocast else "float32"

    def settle(self, backbone: Backbone) -> Backbone:
        """The backbone on the device, in this precision; its final norm stays float32."""
        backbone.autocast_on = (self.device.type,) if self.autocast else ()
        if self.dtype != torch.float32:
            backbone.model.to(self.dtype)
            backbone.norm.float()
        return backbone.to(self.device)


def pattern(height: int, width: int) -> Tensor:
    """A normalised picture of waves, (1, 3, height, width)."""
    rows, columns = np.mgrid[0:height, 0:width].astype(np.float64)
    waves = [
        np.sin(rows / 7 + k) + np.cos(columns / (5 + k)) + np.sin((rows + columns) / 23) for k in range(3)
    ]
    pixels = (128 + 40 * np.stack(waves, -1)).round().clip(0, 255).astype(np.uint8)
    return normalise(torch.from_numpy(pixels)[None])


def fill(module: nn.Module) -> nn.Module:
    """Weights that follow from their names, of a size at which every layer matters; frozen."""
    filled = {}
    for name, value in module.state_dict().items():
        if not value.is_floating_point():
            continue
        generator = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))
        drawn = np.asarray(generator.standard_normal(tuple(value.shape)))
        filled[name] = torch.from_numpy(_scaled(name.rpartition(".")[2], drawn)).to(value.dtype)
    module.load_state_dict(filled, strict=False)
    return module.eval().requires_grad_(False)


def _scaled(leaf: str, drawn: NDArray[np.float64]) -> NDArray[np.float64]:
    if leaf == "running_var":
        return np.asarray(1 + 0.2 * np.abs(drawn))
    if drawn.ndim <= 1:
        return np.asarray((1 if leaf == "weight" else 0) + 0.1 * drawn)
    return np.asarray(drawn / np.sqrt(np.prod(drawn.shape[1:])))


def _embedded(precision: Precision) -> Outputs:
    model, depth = load_tiny().to(precision.device), load_tiny_depth(device=precision.device)
    precision.settle(model.backbone)
    pixels = pattern(96, 96).to(precision.device)
    with torch.no_grad():
        labels, (scores, sides) = model(pixels)
        taps = [tap.map for tap in model.backbone(pixels, depth.taps)]
        metres = depth.depth(taps, (96, 96))
        with attached(model.backbone.model, _REPLAY):
            replayed, _ = model(pixels)
    return {"classes": labels, "boxes": scores, "sides": sides, "depth": metres, "replayed classes": replayed}


def _segmentor(precision: Precision) -> Outputs:
    head = Mask2FormerShape(channels=64, hidden=32, classes=5, queries=6, feedforward=64)
    return _of_queries(Mask2FormerSegmentor(Backbone(_SHAPE), head), precision, "masks", pattern(64, 64))


def _pmt(precision: Precision) -> Outputs:
    head = PMTHead(PMTShape(64, 16, queries=6, classes=5, hidden=64, layers=2))
    return _of_queries(PMT(Backbone(_SHAPE), head), precision, "masks", pattern(64, 64))


def _detector(precision: Precision) -> Outputs:
    config = PlainDetrConfig(
        channels=8 * 64, width=64, heads=4, encoder_layers=1, encoder_feedforward=64, decoder_layers=2,
        decoder_feedforward=64, rpe_hidden=32, queries=8, classes=5,
    )  # fmt: skip
    return _of_queries(
        WindowedDetector(Backbone(_SHAPE), PlainDetr(config)), precision, "boxes", pattern(96, 144)
    )


def _depther(precision: Precision) -> Outputs:
    head = DptDepthHead(DptShape(channels=64, reassembled=32, fused=16, hidden=8, bins=16), (0, 1, 2, 3))
    model = Depther(Backbone(_SHAPE), head)
    pixels = _ready(model, model.backbone, precision, pattern(64, 80))
    with torch.no_grad():
        depth = model(pixels)
        with attached(model.backbone.model, _REPLAY):
            replayed = model(pixels)
    return {"depth": depth, "replayed depth": replayed}


def _of_queries(model: nn.Module, precision: Precision, second: str, pixels: Tensor) -> Outputs:
    """A model that gives classes and something else of every query."""
    shown = _ready(model, model.backbone, precision, pixels)
    with torch.no_grad():
        classes, others = model(shown)
        with attached(model.backbone.model, _REPLAY):  # type: ignore[union-attr,arg-type]
            replayed, _ = model(shown)
    return {"classes": classes, second: others, "replayed classes": replayed}


def _ready(model: nn.Module, backbone: object, precision: Precision, pixels: Tensor) -> Tensor:
    assert isinstance(backbone, Backbone)
    fill(model).to(precision.device)
    precision.settle(backbone)
    return pixels.to(precision.device)


HEADS: dict[str, Callable[[Precision], Outputs]] = {
    "embedded model": _embedded,
    "Mask2Former": _segmentor,
    "Plain-DETR": _detector,
    "PMT": _pmt,
    "DPT depth": _depther,
}
