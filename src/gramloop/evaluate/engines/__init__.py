"""Engines run parts somewhere. Each takes a job and yields every part once, in the order in which they finish."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from gramloop.errors import GramLoopError
from gramloop.evaluate.plan import Part, Plan, Subject, condition_of
from gramloop.evaluate.provenance import CLEAN_SET
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
        subject: what is run.
        store: where results go.
        parts: what is to be done.
        on_images: called with the number of images that were predicted since the last call.
        on_wait: called with a message about what a cluster is waited for.
        device: one of this machine's, of the subject's type; None takes all of them.
        prepare: processes that read images for each model process, 0 for a thread; None for as many as there are cores.
    """

    subject: Subject
    store: Store[Any]
    parts: Sequence[Part]
    on_images: Callable[[int], None] = lambda images: None
    on_wait: Callable[[str], None] = lambda message: None
    device: str | None = None
    prepare: int | None = None


Engine = Callable[[Job], Iterator[Done | Missed]]


def cluster_package(name: str) -> Any:
    """A package that only a cluster's engine needs."""
    try:
        return import_module(name)
    except ImportError as error:
        raise GramLoopError(
            f"this engine needs the package {name}, which is not installed: pip install {name}"
        ) from error


def preparing_processes(device: str, asked: int | None, models: int = 1) -> int:
    """Processes that read images for each of so many models on a machine.

    By default none on the CPU, whose cores all have a model, and for GPUs all cores, shared out.
    """
    if asked is not None:
        if not 0 <= asked <= MOST_WORKERS:
            raise GramLoopError(f"the number of preparing processes is 0 to {MOST_WORKERS}, not {asked}")
        return asked
    return 0 if torch.device(device).type == "cpu" else max(1, available_cores() // models)


def cores_of(subject: Subject, prepare: int | None) -> int:
    """The cores that a model process on a cluster asks for, with those of the processes that read its images."""
    if prepare is None:
        prepare = 0 if subject.device == "cpu" else CLUSTER_PREPARE
    return subject.threads + prepare


def mixed_order(plan: Plan, parts: Iterable[Part]) -> list[Part]:
    """Parts in turns over the conditions of one severity, for a model whose images are read in other processes.

    Some shifts take twenty times as long as others. Condition by condition, the model would wait for all of the slow
    ones, and the processes would have nothing to do during the fast ones. No result depends on the order. Shifted images
    that are read from folders all take alike, and stay in their order.
    """
    if CLEAN_SET not in plan.data.fingerprints:
        return list(parts)
    names = list(dict.fromkeys(condition_of(key).name for key in plan.conditions))
    step = max(1, round(math.sqrt(len(names))))  # neighbours in the list of conditions are far apart
    while math.gcd(step, len(names)) > 1:
        step += 1
    place = {names[index * step % len(names)]: index for index in range(len(names))}

    def turn(part: Part) -> tuple[int, int, int]:
        condition = condition_of(part.condition)
        return condition.severity, part.images[0], place[condition.name]

    return sorted(parts, key=turn)
