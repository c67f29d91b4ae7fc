"""Engines run parts somewhere. Each takes a job and yields every part once, in the order in which they finish."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gramloop.errors import GramLoopError
from gramloop.evaluate.plan import Part, Workload
from gramloop.evaluate.runner import Done, Missed
from gramloop.evaluate.store import Store
from gramloop.util.processes import MOST_WORKERS, available_cores

SILENCE = 60.0  # seconds without a finished part after which the user learns what is waited for
CLUSTER_PREPARE = 8  # processes that read images for each GPU of a cluster, where its nodes have the cores


class NotStarted(GramLoopError):  # noqa: N818 - the state of a run
    """A cluster refuses to run anything."""


@dataclass(frozen=True)
class Job:
    """Parts that are still to be run.

    Args:
        workload: what is run.
        store: where results go.
        parts: what is to be done.
        on_images: called with the number of images that were predicted since the last call.
        on_wait: called with a message about what a cluster is waited for.
        device: one of this machine's, of the workload's type; None takes all of them.
        prepare: processes that read images for each model process, 0 for a thread; None for as many as there are cores.
    """

    workload: Workload
    store: Store[Any]
    parts: Sequence[Part]
    on_images: Callable[[int], None] = lambda images: None
    on_wait: Callable[[str], None] = lambda message: None
    device: str | None = None
    prepare: int | None = None

    @property
    def cluster_prepare(self) -> int:
        """Processes that read images for each model process on a cluster."""
        return self.prepare if self.prepare is not None else CLUSTER_PREPARE * (self.workload.device != "cpu")


Engine = Callable[[Job], Iterator[Done | Missed]]


def preparing_processes(device: str, asked: int | None, models: int = 1) -> int:
    """Processes that read images for each of so many models on a machine.

    By default none on the CPU, whose cores all have a model, and for GPUs all cores, shared out.
    """
    if asked is not None:
        if not 0 <= asked <= MOST_WORKERS:
            raise GramLoopError(f"the number of preparing processes is 0 to {MOST_WORKERS}, not {asked}")
        return asked
    return 0 if torch.device(device).type == "cpu" else max(1, available_cores() // models)
