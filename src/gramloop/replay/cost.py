"""How many blocks a replay runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

from gramloop.replay.config import ReplayConfig, ReplaySettings, Window, route
from gramloop.util.table import Cell, Table, TableRepr


@dataclass(frozen=True)
class Cost(TableRepr):
    """Blocks executed for one image, and those of the baseline forward."""

    blocks: int
    baseline: int

    @property
    def multiplier(self) -> float:
        """Blocks executed per block of the baseline forward."""
        return self.blocks / self.baseline

    def _table(self) -> Table:
        return Table("Transformer blocks executed for one view of an image", ("", "blocks"), self._rows())

    def _rows(self) -> tuple[tuple[Cell, ...], ...]:
        return (
            ("executed", self.blocks),
            ("of the baseline forward", self.baseline),
            ("per block of that", f"{self.multiplier:.2f}×"),
        )


def cost(
    depth: int, window: Window | None = None, replays: int = 2, /, **settings: Unpack[ReplaySettings]
) -> Cost:
    """Blocks that one forward executes with a replay attached; the settings are those of `ReplayConfig`.

    The published setting, ``cost(40)``, executes 94 blocks, 2.35 times the baseline forward. A trace of a
    replay that measures no drift, and kept blocks after the probe, cost the blocks they need on top.
    """
    given: ReplaySettings = {"window": window, "replays": replays, **settings}
    return Cost(depth + extra_blocks(ReplayConfig(**given), depth), depth)


def extra_blocks(config: ReplayConfig, depth: int, keep: Sequence[int] = ()) -> int:
    """Blocks executed beyond the host's own forward, to replay and to know the baseline output of ``keep``."""
    at = route(config, depth, keep)
    if at.at_final:
        return config.replays * (at.last - at.start + 1)
    proposal = at.end - at.start + 1 + (at.probe - at.end if at.measures else 0)
    # of the trajectory whose mean gate a matched strength takes, only the first proposal is the same
    followed = max(config.replays - 1, 0) if config.strength == "matched" else 0
    return (config.replays + followed) * proposal + at.reach - at.end


def pair_blocks(config: ReplayConfig, depth: int) -> int:
    """Blocks executed for a baseline and a replayed forward that share their blocks (`reusing_blocks`)."""
    at, total = route(config, depth), depth + extra_blocks(config, depth)
    # the baseline suffix is known; the host runs its own on the replayed state
    return total - at.reach + at.last if config.replays and not at.at_final else total
