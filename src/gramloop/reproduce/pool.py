"""Several evaluations as one job of an engine: one array of Slurm, one job of Ray, or one set of local workers.

A part of the pool is a part of one of the evaluations, with that one's name before its condition. What methods cost is
measured by parts too, each alone on its device: their condition is called cost.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from gramloop.evaluate.cost import MethodCost, measure_cost, store_costs, stored_costs
from gramloop.evaluate.methods import Method
from gramloop.evaluate.plan import Part, Plan, Unit, Workload
from gramloop.evaluate.provenance import plan_workload
from gramloop.evaluate.rows import MethodRows
from gramloop.evaluate.runner import Done, Missed, Runner
from gramloop.evaluate.store import Store
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor
from gramloop.util.device import release_memory

FOLDER_OF_COSTS = "costs"  # a folder below that of the results, with a file for each evaluation
COST = "cost"  # the condition of a part that measures
_MARK = ":"


def read_costs(out: Path) -> dict[str, list[MethodCost]]:
    """The costs that were measured, by evaluation."""
    return {path.stem: stored_costs(path) for path in sorted((out / FOLDER_OF_COSTS).glob("*.json"))}


def pooled_part(name: str, part: Part) -> Part:
    """A part of the evaluation of this name as a part of the pool."""
    return replace(part, condition=f"{name}{_MARK}{part.condition}")


def cost_part(name: str, methods: Sequence[Method], images: int) -> Part:
    """The part that measures what methods cost on so many images of an evaluation."""
    return pooled_part(name, Part(COST, range(images), tuple(methods)))


def split_part(part: Part) -> tuple[str, Part]:
    """The name of the evaluation, and its own part."""
    name, _, condition = part.condition.partition(_MARK)
    return name, replace(part, condition=condition)


@dataclass(frozen=True)
class PooledStore:
    """The folders of several evaluations as one store, for what engines ask of it."""

    folder: Path
    stores: Mapping[str, Store[Plan]]

    def missing(self, parts: Iterable[Part]) -> list[Part]:
        """What is not stored of some parts."""
        found = []
        for part in parts:
            name, own = split_part(part)
            if own.condition != COST:
                found += [pooled_part(name, each) for each in self.stores[name].missing([own])]
            elif {each.name for each in own.methods} - {
                each.method for each in read_costs(self.folder).get(name, ())
            }:
                found.append(part)
        return found

    def read(self, unit: Unit) -> MethodRows | None:
        """A stored unit."""
        name, _, condition = unit.condition.partition(_MARK)
        return None if condition == COST else self.stores[name].read(replace(unit, condition=condition))


def pooled_workload(stores: Mapping[str, Store[Plan]]) -> Workload:
    """The evaluations of some stores as one workload; all run on one type of device."""
    plans = {name: store.plan for name, store in stores.items()}
    first = next(iter(plans.values()))
    text = json.dumps(
        [[name, plan.hash, sorted(m.name for m in plan.methods)] for name, plan in plans.items()]
    )
    return Workload(
        hash=hashlib.sha256(text.encode()).hexdigest()[:16],
        task=first.task,
        categories=first.classes,
        load_predictor=_never,
        open_images=_never,
        load_task=_never,
        device=first.model.device,
        threads=first.model.threads,
        runner=PooledRunner,
    )


def _never(*_: object) -> Any:
    raise AssertionError("a pool opens the workloads of its evaluations")


@dataclass
class PooledRunner:
    """Runs parts of several evaluations, one of them at a time; evaluations of one model share it."""

    workload: Workload
    store: PooledStore
    device: str | None = None
    prepare: int = 0
    _open: tuple[str, Runner] | None = field(default=None, init=False)
    _model: tuple[object, Predictor[Prediction]] | None = field(default=None, init=False)

    def run(
        self,
        parts: Iterable[Part],
        on_images: Callable[[int], None] = lambda images: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Iterator[Done | Missed]:
        """Run parts and store them; the next evaluation is opened when the parts of one end."""
        pairs = map(split_part, parts)
        for (name, cost), group in groupby(pairs, lambda pair: (pair[0], pair[1].condition == COST)):
            own = (part for _, part in group)
            done = (
                map(partial(self._measure, name), own)
                if cost
                else self._runner(name).run(own, on_images, stopped)
            )
            for outcome in done:
                yield replace(outcome, part=pooled_part(name, outcome.part))

    def _measure(self, name: str, part: Part) -> Done:
        self._open = self._model = None  # a path is measured with one model in memory
        release_memory(torch.device(self.device or self.workload.device))
        plan = self.store.stores[name].plan
        file = self.store.folder / FOLDER_OF_COSTS / f"{name}.json"
        store_costs(file, measure_cost(plan, part.methods, len(part), self.device))
        return Done(part)

    def _runner(self, name: str) -> Runner:
        if self._open is None or self._open[0] != name:
            store = self.store.stores[name]
            workload = plan_workload(store.plan, store.folder)
            shared = replace(workload, load_predictor=partial(self._load, store.plan, workload))
            self._open = name, Runner(shared, store, self.device, self.prepare)
        return self._open[1]

    def _load(self, plan: Plan, workload: Workload, device: str | None) -> Predictor[Prediction]:
        """The model of a plan; the one that is loaded, where it is the same."""
        key = plan.task, plan.model, dict(plan.categories)
        if self._model is None or self._model[0] != key:
            self._model = None
            release_memory(torch.device(self.device or self.workload.device))
            self._model = key, workload.load_predictor(device)
        return self._model[1]
