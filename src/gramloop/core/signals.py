"""What tells a shifted image from a clean one, without labels: numbers of the ordinary pass and of a proposal.

Corruptions change the early blocks of a ViT in ways that the lengths of patch tokens show: noise makes them
longer, and almost any corruption makes them more alike in length (docs/evidence.md has the measurement). Both
are known before anything is replayed. How far a proposal moves, and its drift, need blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gramloop.core.config import Adaptive
from gramloop.core.gate import masked_median
from gramloop.core.hosts import Host

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


@dataclass
class Observed:
    """Signals of the ordinary pass at every block: lists by block, one entry per image seen."""

    length: list[list[float]] = field(default_factory=list)
    spread: list[list[float]] = field(default_factory=list)

    def means(self) -> dict[str, list[float]]:
        """The mean over images at every block, by signal."""
        return {
            name: [sum(each) / len(each) if each else float("nan") for each in getattr(self, name)]
            for name in ("length", "spread")
        }


@contextmanager
def observing(host: Host) -> Iterator[Observed]:
    """Measure the ordinary pass of every forward at every block, whatever replay is attached meanwhile.

    A replay calls ``block.forward`` too. What is ordinary is the first call since the host began a forward;
    the host alone calls blocks as modules, which is what the hook before its first block sees.
    """
    seen = Observed([[] for _ in host.blocks], [[] for _ in host.blocks])
    waiting: set[int] = set()

    def begin(*_: Any) -> None:
        waiting.update(range(host.depth))

    def watched(index: int, forward: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            if index in waiting:
                waiting.discard(index)
                states = output if isinstance(output, Tensor) else output[0]
                patches = states.detach()[:, host.prefix :]
                seen.length[index] += length(patches).tolist()
                seen.spread[index] += spread(patches).tolist()
            return output

        return run

    before: list[tuple[nn.Module, Any]] = [(block, vars(block).get("forward")) for block in host.blocks]
    handle = host.blocks[0].register_forward_pre_hook(begin)
    for index, (block, _) in enumerate(before):
        vars(block)["forward"] = watched(index, block.forward)
    try:
        yield seen
    finally:
        handle.remove()
        for block, own in before:
            if own is None:
                del vars(block)["forward"]
            else:
                vars(block)["forward"] = own


def _lengths(patches: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(patches.float(), dim=-1)
    return lengths


def _mean(values: Tensor, valid: Tensor | None) -> Tensor:
    if valid is None:
        return values.mean(1)
    return torch.where(valid, values, 0.0).sum(1) / valid.sum(1).clamp(min=1)
