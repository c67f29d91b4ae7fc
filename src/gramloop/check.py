"""Whether a device computes what it should: drift, gate and replays against float64 on the CPU, and two forwards."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gramloop.errors import GramLoopError
from gramloop.models.backbone import Backbone, Tap
from gramloop.models.tiny import load_tiny
from gramloop.replay.attach import attached
from gramloop.replay.config import Adaptive, ReplayConfig
from gramloop.replay.gram import GramAnchor, gram_gate
from gramloop.util.device import deterministic_algorithms

__all__ = ["Comparison", "check_machine"]

EXACT = 16.0  # digits of what is equal to the bit
VARIANTS: dict[str, dict[str, Any]] = {
    "Gram gate, as published": {},
    "gate at the window's end": {"gate_at": "end"},
    "update at the last block": {"update_at": "final"},
    "constant gate": {"gate": "uniform", "strength": 0.3},
    "matched constant gate": {"gate": "uniform", "strength": "matched"},
    "ungated": {"gate": "none"},
    "adaptive by noise": {"adaptive": Adaptive("noise", 0.0, 1.0)},
}
# decimal digits that a CPU reaches with one to spare; lengths of patches are float64 but on MPS, which has none
_DRIFT, _DRIFT_MPS = 5.5, 4.5
_PATCHES = {False: 4.5, True: 0.8}  # in float32, and with blocks in bfloat16


@dataclass(frozen=True)
class Comparison:
    """One comparison with float64 on the CPU, in decimal digits; ``note`` says what went wrong instead."""

    name: str
    digits: float
    needed: float
    note: str = ""

    @property
    def passed(self) -> bool:
        """Whether enough digits agree."""
        return self.digits >= self.needed


def check_machine(device: torch.device | str = "cpu", autocast: bool = False) -> list[Comparison]:
    """Run every comparison on a device.

    Args:
        device: such as ``cuda:1``.
        autocast: run the backbone's blocks under bfloat16 autocast, as GPUs run the released models.
    """
    found, device = [], torch.device(device)
    with _no_tf32(), torch.no_grad():
        for name, needed, digits in _comparisons(device, autocast):
            try:
                found.append(Comparison(name, digits(), needed))
            except Exception as error:  # whatever a kernel, a driver or a compiler raises
                first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
                kind = "" if isinstance(error, GramLoopError) else f"{type(error).__name__}: "
                found.append(Comparison(name, -1.0, needed, f"{kind}{first}"[:300]))
    return found


def _comparisons(device: torch.device, autocast: bool) -> Iterator[tuple[str, float, Callable[[], float]]]:
    """Names, the digits that are needed, and a function that finds those that agree."""
    for patches, channels in ((196, 384), (1200, 64)):  # few and many for their channels
        drawn = torch.randn(1, patches, channels, generator=torch.Generator().manual_seed(0)).double()
        for gated in (False, True):
            name = f"{'gate' if gated else 'drift'} of {patches} patches of {channels} channels"
            needed = _DRIFT_MPS if device.type == "mps" else _DRIFT
            yield name, needed, partial(_drift, device, autocast, drawn, gated)
    for name, settings in VARIANTS.items():
        replay = ReplayConfig(window=(4, 5), **settings)
        yield name, _PATCHES[autocast], partial(_forward, device, autocast, replay)
    yield "two forwards of one image", EXACT, partial(_twice, device, autocast)


def _drift(device: torch.device, autocast: bool, patches: Tensor, gated: bool) -> float:
    """Drift or gate against Gram matrices in float64."""
    anchor, proposal = patches.float(), (patches + 0.01 * patches.roll(1, 1)).float()
    units = [each.double() / each.double().norm(dim=-1, keepdim=True) for each in (anchor, proposal)]
    before, after = (each @ each.transpose(1, 2) for each in units)
    expected = torch.square(after - before).mean(-1)
    with torch.autocast(device.type, torch.bfloat16, enabled=autocast):  # float32 there, too
        found = GramAnchor(anchor.to(device)).drift(proposal.to(device))
    if gated:
        expected = torch.exp(-expected / torch.quantile(expected, 0.5).clamp(min=ReplayConfig.eps))
        found = gram_gate(found, ReplayConfig.eps)
    return agreement(found, expected)


def _forward(device: torch.device, autocast: bool, replay: ReplayConfig) -> float:
    """A replay in the embedded model against the same in float64 on the CPU."""
    truth, here = load_tiny().backbone.double(), _backbone(device, autocast)
    pixels = torch.randn(1, 3, 64, 96, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with attached(here.model, replay), attached(truth.model, replay):
        return agreement(_patches(here, pixels.float().to(device)), _patches(truth, pixels))


def _twice(device: torch.device, autocast: bool) -> float:
    """Two forwards of one image with deterministic algorithms, which agree to the bit."""
    here, pixels = _backbone(device, autocast), torch.zeros(1, 3, 64, 64, device=device)
    with deterministic_algorithms(), attached(here.model, ReplayConfig(window=(6, 6))):
        return agreement(_patches(here, pixels), _patches(here, pixels))


def _backbone(device: torch.device, autocast: bool) -> Backbone:
    backbone = load_tiny().backbone.to(device)
    backbone.autocast_on = (device.type,) if autocast else ()
    return backbone


def _patches(backbone: Backbone, pixels: Tensor) -> Tensor:
    tap: Tap = backbone(pixels, [backbone.shape.depth - 1])[0]
    return tap.patches


def agreement(found: Tensor, expected: Tensor) -> float:
    """Decimal digits of the largest difference, relative to the largest expected value; below 0 where one is not finite."""
    ours, theirs = (each.detach().cpu().double() for each in (found, expected))
    if ours.shape != theirs.shape or not ours.isfinite().all():
        return -1.0
    scale, difference = float(theirs.abs().max()), float((ours - theirs).abs().max())
    if difference == 0:
        return EXACT
    return min(EXACT, -math.log10(difference / scale)) if scale else -1.0


@contextmanager
def _no_tf32() -> Iterator[None]:
    """Products and convolutions in float32 itself: by default PyTorch lets a GPU round convolutions to TF32."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
