"""What a device does twice, in one graph, and in how much time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from gramloop.check.case import Case, attempted
from gramloop.check.made import pattern
from gramloop.check.way import Way
from gramloop.models.dinov3 import Backbone
from gramloop.models.tiny import load_tiny
from gramloop.replay.attach import attached
from gramloop.replay.config import ReplayConfig
from gramloop.replay.cost import cost
from gramloop.util.device import deterministic_algorithms

_WINDOW = (6, 6)
_ROUNDS = 12


def behaviour_cases(way: Way) -> Iterator[Case]:
    """Determinism, one graph under ``torch.compile``, and the time of a replay beside that of its blocks."""
    backbone = way.settle(load_tiny().backbone)
    pixels = pattern(128, 128).to(way.device)
    for name, run in (("deterministic algorithms", _twice), ("torch.compile", _one_graph), ("time", _time)):
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


def _time(backbone: Backbone, pixels: Tensor) -> Case:
    """Told, not judged: a busy machine is no wrong one."""
    config = ReplayConfig(window=_WINDOW, replays=1)
    multiplier = cost(backbone.shape.depth, _WINDOW, replays=1).multiplier
    ordinary, replayed = [], []
    with torch.no_grad():
        for _ in range(_ROUNDS):
            ordinary.append(_seconds(backbone, pixels))
            with attached(backbone.model, config):
                replayed.append(_seconds(backbone, pixels))
    one, other = min(ordinary), min(replayed)  # the others waited for something else as well
    words = f"{1000 * one:.1f} ms, replayed {1000 * other:.1f} ms: {other / one:.2f}x; by blocks {multiplier:.2f}x"
    return Case("behaviour", "time", None, words)


def _seconds(backbone: Backbone, pixels: Tensor) -> float:
    _wait(pixels.device)
    began = time.perf_counter()
    _last(backbone, pixels)
    _wait(pixels.device)
    return time.perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
