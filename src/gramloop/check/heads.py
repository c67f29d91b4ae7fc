"""Heads on the device, against numbers that a CPU gave when this version was made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from gramloop.check.case import Case, compared, failed
from gramloop.check.small_models import HEADS, Outputs
from gramloop.check.way import Way

STORED = Path(__file__).with_name("stored.json")
_SAMPLES = 40  # values of every output
# digits in float32, more than one below what is left where every weight is rounded once more, and of blocks in bfloat16;
# sines of pixels in the detector's queries amplify rounding
_NEEDED = {True: 4.0, False: 0.5}
_OF_THE_DETECTOR = {True: 3.0, False: 0.0}


def head_cases(way: Way) -> Iterator[Case]:
    """Every output of every head, plain and replayed."""
    stored = json.loads(STORED.read_text())
    for name, run in HEADS.items():
        needed = (_OF_THE_DETECTOR if name == "Plain-DETR" else _NEEDED)[way.exact]
        try:
            found = sampled(run(way))
        except Exception as error:  # whatever a kernel says
            yield failed("head", name, error)
            continue
        for part, values in found.items():
            expected = torch.tensor(stored[name][part], dtype=torch.float64)
            yield compared("head", f"{name}: {part}", values, expected, needed, "stored")


def sampled(outputs: Outputs) -> dict[str, Tensor]:
    """Evenly spread values of every output, on the CPU."""
    found = {}
    for part, value in outputs.items():
        flat = value.detach().float().cpu().flatten()
        found[part] = flat[torch.linspace(0, len(flat) - 1, _SAMPLES).long()]
    return found
