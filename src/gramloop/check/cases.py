"""What is compared: drift, gate and every placement with float64, heads with stored numbers, a device with itself."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gramloop.check.small_models import HEADS, Outputs, Precision, pattern
from gramloop.errors import GramLoopError
from gramloop.models.backbone import Backbone
from gramloop.models.tiny import load_tiny
from gramloop.replay.attach import attached
from gramloop.replay.config import Adaptive, ReplayConfig
from gramloop.replay.gram import GramAnchor, gram_gate
from gramloop.util.device import deterministic_algorithms

STORED = Path(__file__).with_name("stored.json")
EXACT = 16.0  # digits of what is equal to the bit
_WORDS = 160  # of an error, in characters
_SAMPLES = 40  # values of every output
# digits in float32, more than one below what is left where every weight is rounded once more, and of blocks in bfloat16;
# sines of pixels in the detector's queries amplify rounding
_NEEDED = {True: 4.0, False: 0.5}
_OF_THE_DETECTOR = {True: 3.0, False: 0.0}
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
_WINDOW = (6, 6)


@dataclass(frozen=True)
class Case:
    """What was compared with what, and how it came out.

    ``passed`` is None for what is only reported, or could not be tried here. ``digits`` and ``needed`` are decimal digits of
    agreement; both are None for what either holds or does not.
    """

    group: str
    name: str
    passed: bool | None
    words: str
    digits: float | None = None
    needed: float | None = None


def compared(group: str, name: str, found: Tensor, expected: Tensor, needed: float, against: str) -> Case:
    """A case of two tensors; digits count the largest difference, relative to the largest expected value."""
    have = agreement(found, expected)
    return Case(group, name, have >= needed, against, have, needed)


def attempted(group: str, name: str, run: Callable[[], Case]) -> Case:
    """A case; one that fails, with the first line of the error, where the device cannot do it."""
    try:
        return run()
    except Exception as error:  # whatever a kernel, a driver or a compiler says
        return failed(group, name, error)


def failed(group: str, name: str, error: Exception) -> Case:
    """The case of an error: its sentence, or its kind and first line."""
    if isinstance(error, GramLoopError):
        return Case(group, name, False, str(error))
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    return Case(group, name, False, f"{type(error).__name__}: {first.strip()}"[:_WORDS])


def agreement(found: Tensor, expected: Tensor) -> float:
    """Decimal digits to which two tensors agree; below 0 where one of them is not finite, or of another shape."""
    if found.shape != expected.shape:
        return -1.0
    ours, theirs = (each.detach().cpu().double() for each in (found, expected))
    if not ours.isfinite().all():
        return -1.0
    scale = float(theirs.abs().max()) if theirs.numel() else 0.0
    difference = float((ours - theirs).abs().max()) if ours.numel() else 0.0
    if difference == 0:
        return EXACT
    return min(EXACT, -math.log10(difference / scale)) if scale else -1.0


def drift_cases(precision: Precision) -> Iterator[Case]:
    """Drift and gate of random patches against Gram matrices in float64; under autocast as well these are float32."""
    generator = torch.Generator().manual_seed(0)
    needed = _DRIFT_MPS if precision.device.type == "mps" else _DRIFT
    for patches, channels in _SIZES:
        anchor, step = torch.randn(2, 1, patches, channels, generator=generator, dtype=torch.float64)
        anchor, moved = anchor.float(), (anchor + 0.01 * step).float()
        expected = _textbook(anchor.double(), moved.double())
        by_hand = torch.exp(-expected / torch.quantile(expected, 0.5).clamp(min=ReplayConfig.eps))
        name = f"{patches} patches of {channels} channels"

        def drift(given: Tensor = anchor, proposed: Tensor = moved) -> Tensor:
            with torch.autocast(precision.device.type, torch.bfloat16, enabled=precision.autocast):
                return GramAnchor(given.to(precision.device)).drift(proposed.to(precision.device))

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


def placement_cases(precision: Precision) -> Iterator[Case]:
    """The final patches of an attached model in every variant, against the same model in float64 on the CPU."""
    image, truth = pattern(64, 96), load_tiny().backbone.model.double()
    here = precision.settle(load_tiny().backbone)
    last, needed = here.shape.depth - 1, _STATE if precision.exact else _LOWER

    def run(config: ReplayConfig, name: str) -> Case:
        with torch.no_grad():
            with attached(truth, config):
                tokens = truth(image.double()).last_hidden_state
            with attached(here.model, config):
                found = here(image.to(precision.device), [last])[0].patches
        expected = tokens[:, tokens.shape[1] - found.shape[1] :]
        return compared("placement", name, found.float(), expected, needed, "float64")

    for name, settings in VARIANTS.items():
        config = ReplayConfig(window=(4, 5), **settings)
        yield attempted("placement", name, partial(run, config, name))


def head_cases(precision: Precision) -> Iterator[Case]:
    """Every output of every head, plain and replayed."""
    stored = json.loads(STORED.read_text())
    for name, run in HEADS.items():
        needed = (_OF_THE_DETECTOR if name == "Plain-DETR" else _NEEDED)[precision.exact]
        try:
            found = sampled(run(precision))
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


def behaviour_cases(precision: Precision) -> Iterator[Case]:
    """Determinism, and one graph under ``torch.compile``."""
    backbone = precision.settle(load_tiny().backbone)
    pixels = pattern(128, 128).to(precision.device)
    for name, run in (("deterministic algorithms", _twice), ("torch.compile", _one_graph)):
        yield attempted("behaviour", name, partial(run, backbone, pixels))


def _last(backbone: Backbone, pixels: Tensor) -> Tensor:
    [tap] = backbone.features(pixels, [backbone.shape.depth - 1])
    return tap.tokens


def _twice(backbone: Backbone, pixels: Tensor) -> Case:
    with torch.no_grad(), deterministic_algorithms(), attached(backbone.model, ReplayConfig(window=_WINDOW)):
        first, again = (_last(backbone, pixels) for _ in range(2))
    same = torch.equal(first, again)
    words = "two forwards are equal to the bit" if same else "two forwards of one image differ"
    return Case("behaviour", "deterministic algorithms", same, words)


def _one_graph(backbone: Backbone, pixels: Tensor) -> Case:
    """The graph is captured and run as it is: what a compiler makes of it is the compiler's."""
    name = "torch.compile"
    if not can_compile():
        return Case("behaviour", name, None, "not tried: torch.compile does not work here")
    small = pixels[..., :64, :64].contiguous()
    torch.compiler.reset()
    with torch.no_grad(), attached(backbone.model, ReplayConfig(window=_WINDOW)):
        eager = _last(backbone, small)
        compiled = torch.compile(backbone, fullgraph=True, backend="eager")
        found = compiled(small, [backbone.shape.depth - 1])[0].tokens
    equal = torch.equal(found, eager)
    return Case(
        "behaviour", name, equal, f"one graph, {'equal to the bit' if equal else 'with other numbers'}"
    )


def can_compile() -> bool:
    """Whether this Python and system are ones that ``torch.compile`` knows."""
    from torch._dynamo.eval_frame import is_dynamo_supported

    return bool(is_dynamo_supported())
