"""Engines run units somewhere. Each takes a job and yields every unit once, in the order in which they finish."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gramloop.errors import GramLoopError
from gramloop.evaluate.plan import Plan, Unit
from gramloop.evaluate.rows import counts_of
from gramloop.evaluate.session import Session
from gramloop.evaluate.store import Store, StoredUnit


@dataclass(frozen=True)
class Job:
    """Units of a plan that are still to be done, and the folder for their results."""

    plan: Plan
    folder: Path
    units: Sequence[Unit]
    on_images: Callable[[int], None] = lambda images: None  # so many more were predicted


@dataclass(frozen=True)
class Done:
    """A stored unit, in a few numbers."""

    unit: Unit
    excluded: int
    counts: NDArray[np.int64] | None  # (methods, 3, classes) pixels of a segmentation, summed over images


def cluster_package(name: str) -> Any:
    """A package that only a cluster's engine needs, or a sentence about how to get it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise GramLoopError(
            f"this engine needs the package {name}, which is not installed: pip install {name}"
        ) from error


def summary(plan: Plan, unit: Unit, stored: StoredUnit) -> Done:
    """What the progress display needs to know of a unit."""
    counts = None
    if plan.task == "semantic" and stored.table.num_rows:
        counts = np.stack([counts_of([stored.table], each.name).sum(axis=0) for each in plan.methods])
    return Done(unit, len(stored.failures), counts)


def do_unit(
    session: Session,
    store: Store,
    unit: Unit,
    on_image: Callable[[], None],
    stopped: Callable[[], bool] = lambda: False,
) -> Done:
    """Run one unit and store it: what a worker of any engine does."""
    finished = session.run(unit, on_image, stopped)
    store.write(unit, finished.table, finished.failures, finished.facts)
    return summary(store.plan, unit, StoredUnit(finished.table, finished.failures, finished.facts))
