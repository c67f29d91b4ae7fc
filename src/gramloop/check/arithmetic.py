"""Drift, gate and every placement on the device, against float64 on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gramloop.check.case import Case, attempted, compared
from gramloop.check.made import pattern
from gramloop.check.way import Way
from gramloop.models.tiny import load_tiny
from gramloop.replay.attach import attached
from gramloop.replay.config import Adaptive, ReplayConfig
from gramloop.replay.gram import GramAnchor, gram_gate

# decimal digits, with one to spare below what a CPU gives: float32 where the lengths of patches are float64; on MPS, which
# has no float64, lengths are float32; of final patches in float32, and with blocks in bfloat16
_DRIFT, _DRIFT_MPS, _STATE, _LOWER = 5.5, 4.5, 4.5, 0.8
_SIZES = ((196, 384), (1200, 64))  # patches and channels: few and many for their channels
VARIANTS: dict[str, dict[str, Any]] = {
    "Gram gate, as published": {},
    "gate at the window's end": {"gate_at": "end"},
    "update at the last block": {"update_at": "final"},
    "constant gate": {"gate": "uniform", "strength": 0.3},
    "matched constant gate": {"gate": "uniform", "strength": "matched"},
    "ungated": {"gate": "none"},
    "shown until block 8": {"until": 8},
    "decided by noise": {"adaptive": Adaptive("noise", 0.0, 1.0)},
    "decided by length": {"adaptive": Adaptive("length", 0.0, 100.0)},
    "decided by spread": {"adaptive": Adaptive("spread", 0.0, 2.0)},
}


def drift_cases(way: Way) -> Iterator[Case]:
    """Drift and gate of random patches against Gram matrices in float64; under autocast as well these are float32."""
    generator = torch.Generator().manual_seed(0)
    needed = _DRIFT_MPS if way.device.type == "mps" else _DRIFT
    for patches, channels in _SIZES:
        anchor, step = torch.randn(2, 1, patches, channels, generator=generator, dtype=torch.float64)
        anchor, moved = anchor.float(), (anchor + 0.01 * step).float()
        expected = _textbook(anchor.double(), moved.double())
        by_hand = torch.exp(-expected / torch.quantile(expected, 0.5).clamp(min=ReplayConfig.eps))
        name = f"{patches} patches of {channels} channels"

        def drift(given: Tensor = anchor, proposed: Tensor = moved) -> Tensor:
            with torch.autocast(way.device.type, torch.bfloat16, enabled=way.autocast):
                return GramAnchor(given.to(way.device)).drift(proposed.to(way.device))

        def gate(run: Any = drift) -> Tensor:
            return gram_gate(run(), ReplayConfig.eps)

        for group, run, truth, against in (
            ("drift", drift, expected, "float64"),
            ("gate", gate, by_hand, "float64"),
        ):
            yield attempted(group, name, partial(_compared, group, name, run, truth, needed, against))


def _compared(group: str, name: str, run: Any, truth: Tensor, needed: float, against: str) -> Case:
    return compared(group, name, run(), truth, needed, against)


def _textbook(anchor: Tensor, moved: Tensor) -> Tensor:
    units = [patches / patches.norm(dim=-1, keepdim=True) for patches in (anchor, moved)]
    before, after = (each @ each.transpose(1, 2) for each in units)
    return torch.square(after - before).mean(-1)


def placement_cases(way: Way) -> Iterator[Case]:
    """The final patches of an attached model in every variant, against the same model in float64 on the CPU."""
    image, truth = pattern(64, 96), load_tiny().backbone.model.double()
    here = way.settle(load_tiny().backbone)
    last, needed = here.shape.depth - 1, _STATE if way.exact else _LOWER

    def run(config: ReplayConfig, name: str) -> Case:
        with torch.no_grad():
            with attached(truth, config):
                tokens = truth(image.double()).last_hidden_state
            with attached(here.model, config):
                found = here(image.to(way.device), [last])[0].patches
        expected = tokens[:, tokens.shape[1] - found.shape[1] :]
        return compared("placement", name, found.float(), expected, needed, "float64")

    for name, settings in VARIANTS.items():
        config = ReplayConfig(window=(4, 5), **settings)
        yield attempted("placement", name, partial(run, config, name))
