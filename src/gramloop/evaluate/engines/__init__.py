"""Engines run units somewhere. Each takes a job and yields every unit once, in the order in which they finish."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gramloop.errors import GramLoopError
from gramloop.evaluate.plan import Plan, Unit
from gramloop.evaluate.rows import counts_of
from gramloop.evaluate.session import Finished, Missed, Session
from gramloop.evaluate.store import Store, StoredUnit
from gramloop.util.processes import MOST_WORKERS, available_cores

CLUSTER_PREPARE = 8  # preparing processes for each GPU of a cluster, where its nodes have the cores


@dataclass(frozen=True)
class Job:
    """Units of a plan that are still to be done, and the folder for their results.

    device: one of this machine's, of the plan's type; None takes all of them.
    prepare: processes that prepare images for each model process, 0 for a thread; None for as many as there are cores.
    """

    plan: Plan
    folder: Path
    units: Sequence[Unit]
    on_images: Callable[[int], None] = lambda images: None  # so many more were predicted
    device: str | None = None
    prepare: int | None = None


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


def preparing_processes(plan: Plan, asked: int | None, models: int = 1) -> int:
    """Processes that prepare images for each of so many models on a machine.

    By default none on the CPU, whose cores all have a model, and beside GPUs all cores, shared out.
    """
    if asked is not None:
        if not 0 <= asked <= MOST_WORKERS:
            raise GramLoopError(f"the number of preparing processes is 0 to {MOST_WORKERS}, not {asked}")
        return asked
    return 0 if torch.device(plan.model.device).type == "cpu" else max(1, available_cores() // models)


def cores_of(plan: Plan, prepare: int | None) -> int:
    """The cores that a model process on a cluster asks for, with those of the processes that prepare its images."""
    if prepare is None:
        prepare = 0 if plan.model.device == "cpu" else CLUSTER_PREPARE
    return plan.model.threads + prepare


def summary(plan: Plan, unit: Unit, stored: StoredUnit) -> Done:
    """What the progress display needs to know of a unit."""
    counts = None
    if plan.task == "semantic" and stored.table.num_rows:
        counts = np.stack([counts_of([stored.table], each.name).sum(axis=0) for each in plan.methods])
    return Done(unit, len(stored.failures), counts)


def do_units(
    session: Session,
    store: Store,
    units: Iterable[Unit],
    on_image: Callable[[], None] = lambda: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[Done | Missed]:
    """Run units and store them: what a worker of any engine does."""

    def keep(unit: Unit, finished: Finished) -> Done:
        store.write(unit, finished.table, finished.failures, finished.facts)
        return summary(store.plan, unit, StoredUnit(finished.table, finished.failures, finished.facts))

    return session.run_units(units, keep, on_image, stopped)


def do_unit(session: Session, store: Store, unit: Unit) -> Done | Missed:
    """The same for one unit."""
    [done] = do_units(session, store, [unit])
    return done
