"""What an evaluation will cost, from trying a few of its images."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from gramloop.bench.plan import Plan, Unit
from gramloop.bench.run import Session
from gramloop.errors import GramLoopError

TRIED = 3


@dataclass(frozen=True)
class Estimate:
    """Per image: seconds of one worker, blocks executed, bytes stored."""

    seconds: float
    blocks: float
    stored: float


def estimate(plan: Plan) -> Estimate:
    """Run the first images of the first condition, after one to warm up; nothing is written."""
    session = Session(plan)
    key, images = next(iter(plan.conditions.items()))
    session.run(Unit(key, 0, 1, 0, 1))
    tried = min(TRIED, images)
    finished = session.run(Unit(key, 0, 1, 0, tried))
    if finished.failures:
        raise GramLoopError(f"an image to be tried cannot be used: {finished.failures[0].reason}")
    sink = pa.BufferOutputStream()
    pq.write_table(finished.table, sink, compression="zstd")
    size = sink.getvalue().size
    return Estimate(finished.facts.seconds / tried, finished.facts.blocks / tried, size / tried)
