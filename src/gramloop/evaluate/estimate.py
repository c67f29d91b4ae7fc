"""What an evaluation will cost, from trying a few of its images, or by counting where it is meant for another machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from gramloop.errors import GramLoopError
from gramloop.evaluate.methods import blocks_per_view
from gramloop.evaluate.needs import FITS, card_here, needs_lines, plan_needs
from gramloop.evaluate.plan import Plan, Unit
from gramloop.evaluate.rows import KEPT
from gramloop.evaluate.session import Session
from gramloop.util.device import available_devices

TRIED = 3


@dataclass(frozen=True)
class Estimate:
    """Per image: seconds of one worker, blocks executed, bytes stored; and the bytes of kept pictures."""

    seconds: float
    blocks: float
    stored: float
    picture: float


def estimate(plan: Plan) -> Estimate:
    """Run the first images of the first condition, after one to warm up; nothing is written."""
    session = Session(plan)
    key, images = next(iter(plan.conditions.items()))
    session.run(Unit(key, 0, 1, 0, 1))
    tried = min(TRIED, images)
    finished = session.run(Unit(key, 0, 1, 0, tried))
    if finished.failures:
        raise GramLoopError(f"an image to be tried cannot be used: {finished.failures[0].reason}")
    facts, size = finished.facts, _size(finished.table.drop_columns(list(KEPT))) / tried
    kept = max(0.0, _size(finished.table) / tried - size)  # the tried images are among the first
    return Estimate(facts.seconds / tried, facts.blocks / tried, size, kept)


def _size(table: Any) -> int:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return int(sink.getvalue().size)


def describe(plan: Plan, workers: int) -> str:
    """A plan and its cost in a few lines.

    For a GPU its memory is counted without running anything; images are tried where there is one, and it is large enough.
    """
    blocks, depth = blocks_per_view(plan.methods, plan.model.depth, plan.diagnostics), plan.model.depth
    lines = [
        f"plan {plan.hash}: {plan.suite}, {plan.task}, methods {', '.join(each.name for each in plan.methods)}",
        f"{len(plan.conditions)} conditions, {len(plan.units)} units, {plan.images} images",
        f"{blocks} blocks per view of an image ({blocks / depth:.2f} ordinary passes of {depth})",
    ]
    if plan.model.device == "cpu":
        return "\n".join([*lines, *_measured(plan, workers)])
    card, fits = (
        card_here(plan.model.device),
        plan.model.device in {each.partition(":")[0] for each in available_devices()},
    )
    try:
        needs = plan_needs(plan)
    except GramLoopError as error:
        lines.append(f"memory is not known: {error}")
    else:
        lines += needs_lines(plan, needs, card)
        fits = fits and (card is None or needs.peak <= FITS * card.memory)
    left_out = "time and size of the results are left out: no image was tried"
    return "\n".join([*lines, *(_measured(plan, workers) if fits else [left_out])])


def _measured(plan: Plan, workers: int) -> list[str]:
    """What trying a few images tells."""
    found = estimate(plan)
    pictures = sum(min(plan.pictures, images) for images in plan.conditions.values())
    stored = (found.stored * plan.images + found.picture * pictures) / 1e6
    hours = found.seconds * plan.images / workers / 3600
    return [
        f"{found.blocks * plan.images:,.0f} blocks in all, by the images tried",
        f"about {_duration(hours)} with {workers} workers, {found.seconds:.2f} s per image (measured here)",
        f"about {stored:,.1f} MB of results",
    ]


def _duration(hours: float) -> str:
    if hours >= 1:
        return f"{hours:,.1f} hours"
    return f"{hours * 60:.1f} minutes" if hours * 60 >= 1 else f"{hours * 3600:.0f} seconds"
