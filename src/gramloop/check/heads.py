"""Heads on the device, against numbers that a CPU gave when this version was made."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from gramloop.check.case import Case, compared
from gramloop.check.made import fill, pattern
from gramloop.core.config import ReplayConfig
from gramloop.core.loop import attached
from gramloop.models.backbone import Backbone, BackboneShape
from gramloop.models.detector import WindowedDetector
from gramloop.models.mask2former import HeadShape
from gramloop.models.plain_detr import PlainDetr, PlainDetrConfig
from gramloop.models.segmentor import Mask2FormerSegmentor
from gramloop.models.tiny import load_tiny, load_tiny_depth

STORED = Path(__file__).with_name("stored.json")
_SAMPLES = 40  # values of every output
_SHAPE = BackboneShape(
    depth=4, width=64, head_dim=16, hidden=128, gated=False, qkv_bias=True, local_cls_norm=False, registers=2
)
_REPLAY = ReplayConfig(window=(1, 2), replays=1)
# digits in float32, and under bfloat16 autocast; sines of pixels in the detector's queries amplify rounding
_NEEDED = {"float32": 3.0, "autocast": 0.5}
_OF_THE_DETECTOR = {"float32": 2.0, "autocast": 0.0}

Outputs = Mapping[str, Tensor]


def head_cases(device: torch.device, autocast: bool) -> Iterator[Case]:
    """The heads of the embedded model, and small ones of the two released kinds, plain and replayed."""
    stored = json.loads(STORED.read_text())
    way = "autocast" if autocast else "float32"
    for name, run in HEADS.items():
        needed = (_OF_THE_DETECTOR if name.startswith("Plain-DETR") else _NEEDED)[way]
        for part, found in sampled(run(device, autocast)).items():
            expected = torch.tensor(stored[name][part], dtype=torch.float64)
            yield compared("head", f"{name}: {part}", found, expected, needed, "stored numbers")


def sampled(outputs: Outputs) -> dict[str, Tensor]:
    """Evenly spread values of every output, on the CPU."""
    found = {}
    for part, value in outputs.items():
        flat = value.detach().float().cpu().flatten()
        found[part] = flat[torch.linspace(0, len(flat) - 1, _SAMPLES).long()]
    return found


def _embedded(device: torch.device, autocast: bool) -> Outputs:
    model, depth = load_tiny(device=device), load_tiny_depth(device=device)
    model.backbone.autocast = torch.bfloat16 if autocast else None
    pixels = pattern(96, 96).to(device)
    with torch.no_grad():
        labels, (scores, sides) = model(pixels)
        taps = [tap.map for tap in model.backbone(pixels, depth.taps)]
        metres = depth.depth(taps, (96, 96))
        with attached(model.backbone.model, _REPLAY):
            replayed, _ = model(pixels)
    return {"classes": labels, "boxes": scores, "sides": sides, "depth": metres, "replayed classes": replayed}


def _segmentor(device: torch.device, autocast: bool) -> Outputs:
    head = HeadShape(channels=64, hidden=32, classes=5, queries=6, feedforward=64)
    model = Mask2FormerSegmentor(Backbone(_SHAPE, autocast=torch.bfloat16 if autocast else None), head)
    fill(model).to(device)
    pixels = pattern(64, 64).to(device)
    with torch.no_grad():
        classes, masks = model(pixels)
        with attached(model.backbone.model, _REPLAY):
            replayed, _ = model(pixels)
    return {"classes": classes, "masks": masks, "replayed classes": replayed}


def _detector(device: torch.device, autocast: bool) -> Outputs:
    config = PlainDetrConfig(
        channels=8 * 64, width=64, heads=4, encoder_layers=1, encoder_feedforward=64, decoder_layers=2,
        decoder_feedforward=64, rpe_hidden=32, queries=8, classes=5,
    )  # fmt: skip
    backbone = Backbone(_SHAPE, autocast=torch.bfloat16 if autocast else None)
    model = WindowedDetector(backbone, PlainDetr(config))
    fill(model).to(device)
    pixels = pattern(96, 144).to(device)
    with torch.no_grad():
        logits, boxes = model(pixels)
        with attached(backbone.model, _REPLAY):
            replayed, _ = model(pixels)
    return {"classes": logits, "boxes": boxes, "replayed classes": replayed}


HEADS: dict[str, Callable[[torch.device, bool], Outputs]] = {
    "embedded model": _embedded,
    "ViT-Adapter + Mask2Former": _segmentor,
    "Plain-DETR": _detector,
}
