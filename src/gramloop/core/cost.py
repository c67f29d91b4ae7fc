"""What a replay costs, in transformer blocks: by formula, and by counting a real run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from gramloop.core.config import Gate, GateAt, ReplayConfig, Strength, UpdateAt, Window, route


@dataclass(frozen=True)
class Cost:
    """Blocks executed for one image, beside those of the ordinary forward."""

    blocks: int
    ordinary: int

    @property
    def multiplier(self) -> float:
        """Blocks executed per block of the ordinary forward."""
        return self.blocks / self.ordinary


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
) -> Cost:
    """Blocks that one forward executes with a replay attached; the settings are those of `ReplayConfig`.

    The published setting, ``cost(40)``, executes 94 blocks, 2.35 times the ordinary forward. A trace of a
    replay that measures no drift, and kept blocks after the probe, cost the blocks they need on top.
    """
    config = ReplayConfig(window, replays, gate, strength, gate_at, update_at, until=until)
    return Cost(depth + extra_blocks(config, depth), depth)


def extra_blocks(config: ReplayConfig, depth: int, keep: Sequence[int] = ()) -> int:
    """Blocks executed beyond the host's own forward, to replay and to know the ordinary output of ``keep``."""
    place = route(config, depth)
    width = place.end - place.start + 1
    if config.update_at == "final":
        return config.replays * (width + place.last - place.end)
    measures = config.replays > 0 and config.measures_drift
    probe = place.probe if measures else place.end
    # the host goes on from the ordinary state at `until`, which has to be run up to there
    resumes = config.replays > 0 and place.until < place.last
    kept = [index for index in keep if not resumes or index <= place.until]
    ordinary = max(probe, *kept, place.until if resumes else place.end)
    return config.replays * (width + probe - place.end) + ordinary - place.end


class BlockCounter:
    """How many times blocks have run since counting began."""

    blocks = 0


@contextmanager
def counting(blocks: Sequence[nn.Module]) -> Iterator[BlockCounter]:
    """Count every execution of these blocks, by their host and by replays alike."""
    counter = BlockCounter()

    def counted(forward: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            counter.blocks += 1
            return forward(*args, **kwargs)

        return run

    before = [(block, vars(block).get("forward")) for block in blocks]
    for block, _ in before:
        vars(block)["forward"] = counted(block.forward)
    try:
        yield counter
    finally:
        for block, own in before:
            if own is None:
                del vars(block)["forward"]
            else:
                vars(block)["forward"] = own
