"""What a device does twice, in one graph, and in how much time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from gramloop.check.case import Case
from gramloop.check.made import pattern
from gramloop.core.config import ReplayConfig
from gramloop.core.cost import cost
from gramloop.core.hosts import find_host
from gramloop.core.loop import attached
from gramloop.models.tiny import load_tiny

_WINDOW = (6, 6)
_ROUNDS = 7
# of the blocks' own ratio: what else a forward does is a small share of a small model's time
_SLOWER = 1.5


def behaviour_cases(device: torch.device) -> Iterator[Case]:
    """Determinism, one graph under ``torch.compile``, and the time of a replay beside that of its blocks."""
    model = load_tiny(device=device).backbone.model
    pixels = pattern(192, 192).to(device)
    yield _twice(model, pixels)
    yield _one_graph(pixels, device)
    yield _time(model, pixels)


def _twice(model: nn.Module, pixels: Tensor) -> Case:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        with torch.no_grad(), attached(model, ReplayConfig(window=_WINDOW)):
            first, again = (model(pixels).last_hidden_state for _ in range(2))
        same = torch.equal(first, again)
        words = "two forwards are equal to the bit" if same else "two forwards of one image differ"
    except RuntimeError as error:
        same, words = False, str(error).splitlines()[0]
    finally:
        torch.use_deterministic_algorithms(before)
    return Case("behaviour", "deterministic algorithms", same, words)


def _one_graph(pixels: Tensor, device: torch.device) -> Case:
    model = load_tiny(device=device).backbone.model
    try:
        with torch.no_grad(), attached(model, ReplayConfig(window=_WINDOW)):
            eager = model(pixels).last_hidden_state
            compiled = torch.compile(model, fullgraph=True, backend="eager")
            found = compiled(pixels).last_hidden_state  # type: ignore[no-untyped-call]
            equal = torch.equal(found, eager)
        words = "one graph, equal to the bit" if equal else "one graph, with other numbers"
    except Exception as error:  # whatever the compiler says
        equal, words = False, (str(error).splitlines() or [type(error).__name__])[0][:120]
    return Case("behaviour", "torch.compile", equal, words)


def _time(model: nn.Module, pixels: Tensor) -> Case:
    config = ReplayConfig(window=_WINDOW, replays=1)
    multiplier = cost(find_host(model).depth, _WINDOW, replays=1).multiplier
    ordinary, replayed = [], []
    with torch.no_grad():
        for _ in range(_ROUNDS):
            ordinary.append(_seconds(model, pixels))
            with attached(model, config):
                replayed.append(_seconds(model, pixels))
    # the first round warms up
    one, other = (statistics.median(each[1:]) for each in (ordinary, replayed))
    words = (
        f"ordinary {1000 * one:.1f} ms, replayed {1000 * other:.1f} ms: {other / one:.2f}x, where blocks alone make "
        f"{multiplier:.2f}x"
    )
    return Case("behaviour", "time of a replay", other / one < _SLOWER * multiplier, words)


def _seconds(model: nn.Module, pixels: Tensor) -> float:
    _wait(pixels.device)
    began = time.perf_counter()
    model(pixels)
    _wait(pixels.device)
    return time.perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
