"""The state of one forward. It belongs to the thread that runs the forward, so threads can share a model."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gramloop.core.call import BlockCall, Masks, States, states_of
from gramloop.core.chain import Chain
from gramloop.core.drift import Probe
from gramloop.core.hosts import Host, grids_of
from gramloop.core.layout import Layout
from gramloop.core.noise import noise
from gramloop.core.trace import Grid, Trace
from gramloop.errors import GramLoopError

NO_THREAD = -1


@dataclass
class Forward:
    """One forward: what is known before the first block, what its blocks hand on, and what it leaves.

    responses, noise: what an estimate of noise is made of, and that of each image, (B,) per entry, if it decides.
    grids, valid: the patch grids that the embedding showed, and the masks of valid patches as they were given.
    masks, probe: the checked masks, one per entry of the state, and the anchor of the ordinary pass.
    window_start: what the window's first block was given, where its input counts.
    call, window_end: how the host called the window's last block and what that returned, for a later update.
    resumed: the ordinary state at ``until``, where the host goes on from it.
    skipped: no image is replayed, so that the host's own blocks show the ordinary pass.
    traces, ordinary, blocks_executed: as `Loop` shows them; ``versions`` of what is kept.
    """

    grids: list[Grid] = field(default_factory=list)
    responses: list[Tensor] = field(default_factory=list)
    noise: list[Tensor] = field(default_factory=list)
    valid: Tensor | Sequence[Tensor] | None = None
    masks: Masks = ()
    probe: Probe | None = None
    window_start: States = field(default_factory=list)
    call: BlockCall | None = None
    window_end: States = field(default_factory=list)
    resumed: States = field(default_factory=list)
    skipped: bool = False
    traces: list[Trace] = field(default_factory=list)
    ordinary: dict[int, Any] = field(default_factory=dict)
    versions: dict[int, list[int]] = field(default_factory=dict)
    blocks_executed: int = 0

    def reach_window_end(self, call: BlockCall, Z: States, trace: bool) -> None:
        """Check grids and masks against the state, and begin to trace."""
        host = call.host
        grids = call.grids if host.layout.map else grids_of(self.grids, Z, host.layout)
        self.traces = [Trace(grid) for grid in grids] if trace else []
        self.masks = _masks_for(self.valid, Z, host, grids)
        self.blocks_executed = host.depth
        if self.responses:
            self.noise = self._noise(host, Z, grids)

    def _noise(self, host: Host, Z: States, grids: Sequence[Grid | None]) -> list[Tensor]:
        recent, self.responses = self.responses[-len(Z) :], []
        if [len(each) for each in recent] != [len(tokens) for tokens in Z]:
            raise GramLoopError(
                f"{host.name} embeds other images than its blocks see, so their noise decides nothing; take another "
                "signal"
            )
        return [noise(*each).to(Z[0].device) for each in zip(recent, self.masks, grids, strict=True)]

    def keep(self, index: int, output: Any) -> None:
        """Keep what the host's own block returned, and how often it had been written to."""
        self.ordinary[index] = output
        if not torch.compiler.is_compiling():
            self.versions[index] = _versions(output)

    def unchanged(self, host: Host) -> dict[int, Any]:
        """The kept outputs, or a refusal where the host wrote into one afterwards."""
        for index, then in self.versions.items():
            if _versions(self.ordinary[index]) != then:
                raise GramLoopError(
                    f"the kept output of block {index} of {host.name} was written into by a later one, which works in place; "
                    "let blocks return new states, as in x = x + …"
                )
        return self.ordinary

    def trace_skipped(self, Z: States, layout: Layout, replays: int) -> None:
        """Trace as many maps as any other image has, where these replays are left out."""
        for trace, tokens in zip(self.traces, Z, strict=False):
            trace.skip(layout.patches(tokens), replays)

    def record_post_drift(self, states: States) -> None:
        """Trace the drift of the state that was accepted in the end."""
        assert self.probe is not None
        for trace, drift in zip(self.traces, self.probe.drift(states), strict=True):
            trace.post_drift = trace.as_map(drift)
        self.probe = None


def _versions(output: Any) -> list[int]:
    return [state._version for state in states_of(output) if not state.is_inference()]


class Forwards:
    """One thread's forwards: the latest and the next.

    listens: whether this thread's are replayed.
    valid: the masks of `Loop.valid`, for every forward inside it.
    chain: what the host hands from block to block.
    """

    def __init__(self, listens: bool) -> None:
        self.listens, self.latest, self.next = listens, Forward(), Forward()
        self.valid: Tensor | Sequence[Tensor] | None = None
        self.chain = Chain()

    def begin(self) -> Forward:
        """The next forward has reached the first block that matters."""
        self.latest, self.next = self.next, Forward()
        if self.latest.valid is None:
            self.latest.valid = self.valid
        return self.latest

    def end(self) -> None:
        """A forward is over, perhaps because it failed before it began to matter here."""
        self.next = Forward()
        self.chain.end()


class PerThread(threading.local):
    """Each thread's own `Forwards`. ``thread``: the only one whose forwards are replayed; None for all."""

    def __init__(self, thread: int | None) -> None:
        # never assigned again: a compiled graph writes into what a thread-local holds, but not its attributes
        self.forwards = Forwards(thread is None or thread == threading.get_ident())
        self.thread = thread

    @classmethod
    def of_this(cls, alone: bool = True) -> PerThread:
        """That of the calling thread's forwards, or of all."""
        return cls(threading.get_ident() if alone else None)

    def __reduce__(self) -> tuple[type[PerThread], tuple[int | None]]:
        # a copy of a model starts afresh, and a replay for one thread does not follow into it
        return PerThread, (None if self.thread is None else NO_THREAD,)

    def meets(self, other: PerThread) -> bool:
        """Whether some thread's forwards would be replayed by both."""
        mine, its = self.thread, other.thread
        return NO_THREAD not in (mine, its) and (None in (mine, its) or mine == its)


def _masks_for(
    given: Tensor | Sequence[Tensor] | None, states: States, host: Host, grids: Sequence[Grid | None]
) -> Masks:
    if given is None:
        return [None] * len(states)
    if host.shuffles:
        raise GramLoopError(
            f"{host.name} shuffles its patches, so a mask of valid patches cannot be matched to them"
        )
    masks = [given] if isinstance(given, Tensor) else list(given)
    if len(masks) != len(states):
        raise GramLoopError(f"{len(masks)} valid-patch masks were given for {len(states)} inputs")
    others = host.layout.others
    return [_mask_for(*each, others) for each in zip(masks, states, grids, strict=True)]


def _mask_for(mask: Tensor, tokens: Tensor, grid: Grid | None, others: int) -> Tensor:
    expected = (tokens.shape[0], tokens.shape[1] - others)
    flat = mask.flatten(1) if mask.ndim == 3 else mask
    turned = mask.ndim == 3 and grid is not None and tuple(mask.shape[1:]) != grid
    if mask.dtype != torch.bool or tuple(flat.shape) != expected or turned:
        shape = "(B, h, w)" if grid is None else str((expected[0], *grid))
        raise GramLoopError(
            f"the valid-patch mask is {mask.dtype} of shape {tuple(mask.shape)}; this forward has "
            f"{expected[0]} images of {expected[1]} patches, so it is bool of shape {expected} or {shape}"
        )
    return flat.to(tokens.device)
