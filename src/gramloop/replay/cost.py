"""Which blocks a replay runs, and how many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

from gramloop.errors import GramLoopError
from gramloop.replay.config import ReplayConfig, ReplaySettings, Window, default_window
from gramloop.util.table import Cell, Table, TableRepr


@dataclass(frozen=True)
class Route:
    """A configuration on a backbone of ``depth`` blocks: which block does what.

    start, end: the window, s and e in the paper. probe: drift is measured after this block.
    until: the head sees the replay up to this block; ``resumes`` if the host continues from the baseline after it.
    keep: blocks whose baseline output is wanted.
    measures: whether proposals are probed.
    reach: the last block that is run besides the host's own pass: for a proposal, the probe, a kept block or ``until``.
    steps: blocks after which there is something to do.
    """

    config: ReplayConfig
    depth: int
    start: int
    end: int
    probe: int
    until: int
    keep: tuple[int, ...]
    measures: bool
    resumes: bool
    reach: int
    steps: frozenset[int]

    @property
    def last(self) -> int:
        """Index of the last block."""
        return self.depth - 1

    @property
    def at_final(self) -> bool:
        """Whether the accepted step is applied at the last block."""
        return self.config.update_at == "final"

    @property
    def runs_blocks(self) -> bool:
        """Whether blocks are run besides the host's own pass."""
        return self.config.replays > 0 or self.reach > self.end

    @property
    def probes_accepted(self) -> bool:
        """Whether the accepted state gets to the probe."""
        return self.probe == self.last if self.at_final else not self.resumes or self.probe <= self.until

    def shows_baseline(self, index: int) -> bool:
        """Whether the host's own forward shows the baseline output of a block."""
        return self.at_final or index < self.end or (self.resumes and index > self.until)


def route(config: ReplayConfig, depth: int, keep: Sequence[int] = (), trace: bool = False) -> Route:
    """Place a configuration on ``depth`` blocks, or say which index lies outside."""
    (start, end), last = config.window or default_window(depth), depth - 1
    if end > last:
        raise GramLoopError(
            f"window [{start}, {end}] reaches past the last block: this backbone has {depth} blocks, 0 to {last}"
        )
    probe = {"end": end, "final": last}[config.gate_at] if isinstance(config.gate_at, str) else config.gate_at
    until = last if config.until is None else config.until
    for name, block in (("gate_at", probe), ("until", until)):
        if not end <= block <= last:
            raise GramLoopError(
                f"{name} is block {block}; it lies from the window's end, {end}, to the last block, {last}"
            )
    if outside := [index for index in keep if not 0 <= index <= last]:
        raise GramLoopError(f"keep names block {outside[0]}; the blocks are 0 to {last}")
    measures = config.replays > 0 and (config.measures_drift or trace)
    resumes = config.replays > 0 and until < last
    kept = [index for index in keep if not resumes or index <= until]
    reach = max([end, *kept, probe if measures else 0, until if resumes else 0])
    steps = {end, probe} if trace else {end}
    if config.update_at == "final":
        reach, steps = (last if config.replays else end), {end, probe, last}
    return Route(
        config, depth, start, end, probe, until, tuple(keep), measures, resumes, reach, frozenset(steps)
    )


@dataclass(frozen=True)
class Cost(TableRepr):
    """Blocks executed for one image, and those of the baseline forward."""

    blocks: int
    baseline: int

    @property
    def multiplier(self) -> float:
        """Blocks executed per block of the baseline forward."""
        return self.blocks / self.baseline

    @property
    def ordinary(self) -> int:
        return self.baseline

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
    # of substeps the first is the host's own pass
    passes = 1 if config.substeps is None else config.substeps - 1
    proposal = passes * (at.end - at.start + 1) + (at.probe - at.end if at.measures else 0)
    return config.replays * proposal + at.reach - at.end


def pair_blocks(config: ReplayConfig, depth: int) -> int:
    """Blocks executed for a baseline and a replayed forward that share their blocks (`reusing_blocks`)."""
    at, total = route(config, depth), depth + extra_blocks(config, depth)
    # the baseline suffix is known; the host runs its own on the replayed state, as far as that is shown
    return total - at.reach + at.until if config.replays and not at.at_final else total
