"""Drift, gate and every placement on the device, against float64 on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gramloop.check.case import Case, compared
from gramloop.check.made import pattern
from gramloop.core.config import Adaptive, ReplayConfig
from gramloop.core.drift import GramAnchor
from gramloop.core.gate import gram_gate
from gramloop.core.loop import attached
from gramloop.models.tiny import load_tiny

# digits that float32 keeps where float64 is the truth, with one to spare below what a CPU gives
_DRIFT, _STATE = 5.0, 3.5
# under bfloat16 autocast a block's output has two to three
_LOWER = 1.0
VARIANTS: dict[str, dict[str, Any]] = {
    "Gram gate, as published": {},
    "gate at the window's end": {"gate_at": "end"},
    "update at the last block": {"update_at": "final"},
    "constant gate": {"gate": "uniform", "strength": 0.3},
    "matched constant gate": {"gate": "uniform", "strength": "matched"},
    "ungated": {"gate": "none"},
    "shown until block 8": {"until": 8},
    "trusted drift": {"trust": 1e-3},
    "decided by length": {"adaptive": Adaptive("length", 0.0, 100.0)},
    "decided by drift": {"adaptive": Adaptive("drift", 0.0, 1.0)},
}


def drift_cases(device: torch.device) -> Iterator[Case]:
    """Drift and gate of random patches, few and many for their channels, against Gram matrices in float64."""
    generator = torch.Generator().manual_seed(0)
    for patches, channels in ((196, 384), (1200, 64)):
        anchor, step = torch.randn(2, 1, patches, channels, generator=generator, dtype=torch.float64)
        moved = anchor + 0.01 * step
        expected = _textbook(anchor, moved)
        found = GramAnchor(anchor.float().to(device)).drift(moved.float().to(device))
        name = f"{patches} patches of {channels} channels"
        yield compared("drift", name, found, expected, _DRIFT, "Gram matrices in float64")
        gate = gram_gate(found, ReplayConfig.eps)
        by_hand = torch.exp(-expected / torch.quantile(expected, 0.5).clamp(min=ReplayConfig.eps))
        yield compared("gate", name, gate, by_hand, _DRIFT - 1, "exp(-drift / median) in float64")


def _textbook(anchor: Tensor, moved: Tensor) -> Tensor:
    units = [patches / patches.norm(dim=-1, keepdim=True) for patches in (anchor, moved)]
    before, after = (each @ each.transpose(1, 2) for each in units)
    return torch.square(after - before).mean(-1)


def placement_cases(device: torch.device, autocast: bool) -> Iterator[Case]:
    """What an attached model returns in every variant, against the same model in float64 on the CPU."""
    image = pattern(64, 96)
    truth, here = load_tiny().backbone.model.double(), load_tiny(device=device).backbone.model
    needed = _LOWER if autocast else _STATE
    for name, settings in VARIANTS.items():
        config = ReplayConfig(window=(4, 5), **settings)
        with torch.no_grad():
            with attached(truth, config):
                expected = truth(image.double()).last_hidden_state
            with attached(here, config), torch.autocast(device.type, torch.bfloat16, enabled=autocast):
                found = here(image.to(device)).last_hidden_state
        against = "the embedded backbone in float64" + (", here under bfloat16 autocast" if autocast else "")
        yield compared("placement", name, found.float(), expected, needed, against)
