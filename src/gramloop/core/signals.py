"""What tells a shifted image from a clean one, without labels: numbers of the ordinary pass and of a proposal.

Corruptions change the early blocks of a ViT in ways that the lengths of patch tokens show: noise makes them
longer, and almost any corruption makes them more alike in length (docs/replay-evidence.md has the measurement). Both
are known before anything is replayed, and so is the noise of the pixels. How far a proposal moves, and its drift, need blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from gramloop.core.call import Masks, States
from gramloop.core.config import ORDINARY_SIGNALS, Adaptive
from gramloop.core.gate import masked_median
from gramloop.core.hosts import Host
from gramloop.core.layout import Layout
from gramloop.core.memory import repeats
from gramloop.core.noise import noise, noise_response
from gramloop.core.trace import Trace
from gramloop.core.watch import watching

_TINY = 1e-12


def length(patches: Tensor, valid: Tensor | None = None) -> Tensor:
    """Mean L2 length of an image's patches, (B, N, C) -> (B,)."""
    return _mean(_lengths(patches), valid)


def spread(patches: Tensor, valid: Tensor | None = None) -> Tensor:
    """Standard deviation of the patches' lengths relative to their mean, (B, N, C) -> (B,)."""
    lengths = _lengths(patches)
    mean = _mean(lengths, valid)
    variance = _mean((lengths - mean[:, None]).square(), valid)
    return variance.sqrt() / mean.clamp(min=_TINY)


def step(patches: Tensor, proposal: Tensor, valid: Tensor | None = None) -> Tensor:
    """Median over patches of the proposed step relative to the patch's length: (B, N, C) twice -> (B,)."""
    relative = _lengths(proposal.float() - patches.float()) / _lengths(patches).clamp(min=_TINY)
    return median(relative, valid)


def median(values: Tensor, valid: Tensor | None = None) -> Tensor:
    """Median over an image's valid patches with finite values, (B, N) -> (B,)."""
    counted = values.isfinite() if valid is None else values.isfinite() & valid
    return masked_median(values, counted)[:, 0]


def share(rule: Adaptive, signal: Tensor) -> Tensor:
    """How much of the gate an image with this signal gets, (B,) -> (B,) in [0, 1]; nothing if not finite."""
    if rule.off == rule.full:
        scale = (signal > rule.off).float()
    else:
        wide = torch.float32 if signal.device.type == "mps" else torch.float64  # MPS has no float64
        scale = ((signal.to(wide) - rule.off) / (rule.full - rule.off)).clamp(0.0, 1.0).float()
    return torch.where(signal.isfinite(), scale, 0.0)


class Decision:
    """Whether, and how strongly, a rule replays each image of one forward: decided as soon as its signal is known.

    Each step of the forward shows what it has, and hears whether no image of the batch is to be replayed.

    shares: how much of the gate each image gets, (B,) per entry of the state; None where nothing is decided.
    """

    def __init__(self, rule: Adaptive | None, layout: Layout, valid: Masks, traces: Sequence[Trace]) -> None:
        self.shares: list[Tensor] | None = None
        self._rule, self._layout, self._valid, self._traces = rule, layout, valid, traces

    def by_pixels(self, levels: list[Tensor]) -> bool:
        """The noise of what the patch embedding was given, (B,) per entry."""
        return self._skips({"noise": lambda level, valid: level}, levels)

    def by_state(self, Z: States) -> bool:
        """The ordinary state at the window's end."""
        return self._skips({"length": length, "spread": spread}, self._patches(Z))

    def by_proposal(self, Z: States, proposal: States) -> bool:
        """The first proposal."""
        return self._skips({"step": step}, self._patches(Z), self._patches(proposal))

    def by_drift(self, drifts: list[Tensor]) -> bool:
        """The first proposal's drift, (B, N) per entry."""
        return self._skips({"drift": median}, drifts)

    def _patches(self, states: States) -> list[Tensor]:
        return [self._layout.patches(tokens) for tokens in states]

    def _skips(self, measures: Mapping[str, Callable[..., Tensor]], *shown: list[Tensor]) -> bool:
        rule = self._rule
        if rule is None or rule.signal not in measures:
            return False
        signals = [measures[rule.signal](*each) for each in zip(*shown, self._valid, strict=True)]
        for trace, signal in zip(self._traces, signals, strict=False):
            trace.signal = signal
        self.shares = [share(rule, signal) for signal in signals]
        # inside a compiled graph this cannot be asked
        return not torch.compiler.is_compiling() and not any(bool(each.any()) for each in self.shares)


@dataclass
class Observed:
    """Signals of the ordinary pass at every block: lists by block, one entry per image seen."""

    length: list[list[float]] = field(default_factory=list)
    spread: list[list[float]] = field(default_factory=list)
    noise: list[list[float]] = field(default_factory=list)

    def means(self) -> dict[str, list[float]]:
        """The mean over images at every block, by signal."""
        return {
            name: [sum(each) / len(each) if each else float("nan") for each in getattr(self, name)]
            for name in ORDINARY_SIGNALS
            if name != "noise" or any(self.noise)  # not every host shows what its patches are cut from
        }


@contextmanager
def observing(host: Host) -> Iterator[Observed]:
    """Measure the ordinary pass of every forward at every block, whatever replay is attached meanwhile.

    A replay calls ``block.forward`` too. What is ordinary is the first run since the host began a forward in the
    same thread; the host alone calls blocks as modules, which is what the hook before its first block sees.
    """
    empty: list[list[list[float]]] = [[[] for _ in host.blocks] for _ in ORDINARY_SIGNALS]
    seen = Observed(*empty)
    waiting: set[tuple[int, int]] = set()  # thread and block

    def begin(*_: object) -> None:
        if repeats():  # the same forward once more: its ordinary pass was seen
            return
        waiting.update((get_ident(), index) for index in range(host.depth))

    def watch(index: int, output: Any) -> None:
        if (get_ident(), index) not in waiting:
            return
        waiting.discard((get_ident(), index))
        states = output if isinstance(output, Tensor) else output[0]
        patches = host.layout.patches(host.layout.tokens(states.detach()))
        seen.length[index] += length(patches).tolist()
        seen.spread[index] += spread(patches).tolist()

    def embed(_: nn.Module, args: tuple[Tensor, ...], output: object) -> None:
        if repeats():
            return
        levels = noise(noise_response(args[0])).tolist()
        for each in seen.noise:  # the same at every block
            each += levels

    with ExitStack() as stack:
        if host.embedding is not None:
            stack.enter_context(host.embedding.register_forward_hook(embed))
        stack.enter_context(host.blocks[0].register_forward_pre_hook(begin))
        stack.enter_context(watching(host.blocks, watch))
        yield seen


def _lengths(patches: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(patches.float(), dim=-1)
    return lengths


def _mean(values: Tensor, valid: Tensor | None) -> Tensor:
    if valid is None:
        return values.mean(1)
    return torch.where(valid, values, 0.0).sum(1) / valid.sum(1).clamp(min=1)
