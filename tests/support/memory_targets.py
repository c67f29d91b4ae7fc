"""Searches over images in memory, with predictors that are made up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gramloop.data.records import LabelledImage, Record
from gramloop.evaluate.plan import Positions, Workload
from gramloop.tasks.base import Categories, get_task
from gramloop.tune import SearchOptions, Space, Tuning
from gramloop.tune.planning import Target, plan_search
from gramloop.tune.tuning import run_tuning

Records = Sequence[Record | LabelledImage]


@dataclass(frozen=True)
class MemoryImages:
    """Records by condition, as workers read them."""

    data: Mapping[str, Records]

    def records(self, condition: str, images: Positions) -> list[Record | LabelledImage]:
        return [self.data[condition][position] for position in images]


def memory_target(predictor: Any, data: Mapping[str, Records], categories: Sequence[int] = ()) -> Target:
    """A predictor and records by condition; scored in the predictor's classes, if not in others."""
    numbers = categories or list(predictor.classes)
    workload = Workload(
        hash="",
        task=predictor.task,
        categories=Categories({number: f"class {number}" for number in numbers}),
        load_predictor=partial(_the_same, predictor),
        open_images=partial(MemoryImages, data),
        load_task=partial(get_task, predictor.task),
        keep_refusals=True,
    )
    ids = {key: tuple(str(record.image_id) for record in records) for key, records in data.items()}
    return Target(workload, predictor, ids)


def _the_same(predictor: Any, device: str | None) -> Any:
    return predictor


def searched(
    target: Target,
    space: Space,
    budget: int,
    options: SearchOptions | None = None,
    out: Path | None = None,
    **more: Any,
) -> Tuning:
    """A search in a folder, or in one that is thrown away."""
    with TemporaryDirectory() as scratch:
        return run_tuning(plan_search(target, space, budget, options), out or Path(scratch), **more)
