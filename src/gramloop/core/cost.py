"""What a replay costs, in transformer blocks: by formula, and by counting a real run."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch import nn

from gramloop.core.config import Gate, GateAt, ReplayConfig, Strength, UpdateAt, Window
from gramloop.core.replay import placement
from gramloop.core.watch import watching
from gramloop.util.table import Cell, Shown, ShownTable


@dataclass(frozen=True)
class Cost(Shown):
    """Blocks executed for one image, beside those of the ordinary forward."""

    blocks: int
    ordinary: int

    @property
    def multiplier(self) -> float:
        """Blocks executed per block of the ordinary forward."""
        return self.blocks / self.ordinary

    def _shown(self) -> ShownTable:
        return ShownTable(
            "Transformer blocks executed for one view of an image", ("", "blocks"), self._rows()
        )

    def _rows(self) -> tuple[tuple[Cell, ...], ...]:
        return (
            ("executed", self.blocks),
            ("of the ordinary forward", self.ordinary),
            ("per block of that", f"{self.multiplier:.2f}×"),
        )


def cost(
    depth: int,
    window: Window | None = None,
    replays: int = 2,
    *,
    gate: Gate = "gram",
    strength: Strength = 1.0,
    gate_at: GateAt = "final",
    update_at: UpdateAt = "end",
    until: int | None = None,
    substeps: int | None = None,
) -> Cost:
    """Blocks that one forward executes with a replay attached; the settings are those of `ReplayConfig`.

    The published setting, ``cost(40)``, executes 94 blocks, 2.35 times the ordinary forward. A trace of a
    replay that measures no drift, and kept blocks after the probe, cost the blocks they need on top.
    """
    config = ReplayConfig(window, replays, gate, strength, gate_at, update_at, until=until, substeps=substeps)
    return Cost(depth + extra_blocks(config, depth), depth)


def extra_blocks(config: ReplayConfig, depth: int, keep: Sequence[int] = ()) -> int:
    """Blocks executed beyond the host's own forward, to replay and to know the ordinary output of ``keep``."""
    return placement(config, depth, keep).extra_blocks


def pair_blocks(config: ReplayConfig, depth: int) -> int:
    """Blocks executed for an ordinary and a replayed forward that share a `gramloop.core.memory.Memory`."""
    placed = placement(config, depth)
    if not config.replays or config.update_at == "final":
        return depth + placed.extra_blocks
    # the ordinary suffix is remembered; the host runs its own on the replayed state, as far as that is shown
    return depth + placed.extra_blocks - placed.reach + placed.route.until


class BlockCounter:
    """How many times blocks have run since counting began."""

    blocks = 0


@contextmanager
def counting(blocks: Sequence[nn.Module]) -> Iterator[BlockCounter]:
    """Count every execution of these blocks, by their host and by replays alike."""
    counter, lock = BlockCounter(), threading.Lock()

    def count(index: int, output: object) -> None:
        with lock:
            counter.blocks += 1

    with watching(blocks, count):
        yield counter
