"""Running what a recipe needs: each evaluation in a folder of its own, resumable, and the cost of its methods."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gramloop.evaluate.cost import MethodCost, measure_cost
from gramloop.evaluate.engines import Engine
from gramloop.evaluate.evaluation import EvaluationOutcome, Listener, evaluate
from gramloop.evaluate.plan import DataSource, Plan
from gramloop.evaluate.planning import Request, make_plan
from gramloop.evaluate.store import PLAN, Store, plan_in
from gramloop.reproduce.files import FoundFiles
from gramloop.reproduce.recipe import AnyLayout, EvaluationEntry, Recipe
from gramloop.tasks.loading import Precision
from gramloop.util.checksums import load_checksums
from gramloop.util.files import atomic_write
from gramloop.util.json_files import read_checked
from gramloop.util.table import Column, Table

COSTS = "costs.json"  # below the folder of the results
_WHAT = "a file of costs written by gramloop reproduce"
ListenerFor = Callable[[str, Store[Plan]], AbstractContextManager[Listener]]


@dataclass(frozen=True)
class WorkSettings:
    """Where and how evaluations run; see `gramloop.evaluate.evaluate`."""

    device: str = "cpu"
    dtype: Precision = "float32"
    threads: int = 1
    batch: int = 1
    shards: int | None = None
    workers: int | None = None
    prepare: int | None = None
    engine: Engine | None = None
    engine_name: str = "local"
    numbered_device: str | None = None


@dataclass(frozen=True)
class Reproduction:
    """A recipe on its way: what is run for which outputs, on which files, in which folder."""

    recipe: Recipe
    outputs: Mapping[str, AnyLayout]
    files: FoundFiles
    out: Path
    work: WorkSettings = WorkSettings()

    @property
    def evaluations(self) -> dict[str, EvaluationEntry]:
        """What the outputs need."""
        return self.recipe.needed(self.outputs)

    def plan(self, name: str, methods: tuple[str, ...]) -> Plan:
        """The plan of an evaluation with these methods."""
        one = self.evaluations[name]
        model, data, work = self.recipe.models[one.model], self.recipe.data[one.data], self.work
        load_checksums(self.out / name)
        return make_plan(
            Request(
                suite=one.suite,
                task=model.task,
                files=self.files.model(model),
                data=DataSource(str(self.files.images(one)), partial=data.partial or bool(one.only)),
                methods=methods,
                conditions=one.conditions,
                severities=one.severities,
                shards=work.shards,
                sizes=model.sizes,
                device=work.device,
                threads=work.threads,
                diagnostics=one.diagnostics,
                pictures=max(one.pictures, len(one.only)),
                dtype=work.dtype,
                batch=work.batch,
            )
        )

    def run(
        self, listener_for: ListenerFor = lambda name, store: nullcontext(Listener())
    ) -> Iterator[tuple[str, EvaluationOutcome]]:
        """Run what is missing of every evaluation, then measure costs; yields each evaluation's outcome."""
        work = self.work
        for name, one in self.evaluations.items():
            if one.methods:
                plan, folder = self.plan(name, one.methods), self.out / name
                with listener_for(name, Store(folder, plan)) as listener:
                    yield (
                        name,
                        evaluate(
                            plan,
                            folder,
                            workers=work.workers,
                            engine=work.engine,
                            engine_name=work.engine_name,
                            listener=listener,
                            device=work.numbered_device,
                            prepare=work.prepare,
                        ),
                    )
            if one.time_images:
                self._measure(name, one)

    def _measure(self, name: str, one: EvaluationEntry) -> None:
        """Time the methods that have not been timed yet, each alone, on a sample of images."""
        known = read_costs(self.out)
        wanted = self.recipe.timed_methods(name, self.outputs)
        held = {each.method for each in known.get(name, ()) if each.images >= one.time_images}
        if held >= {method.name for method in wanted}:
            return
        plan = self.plan(name, self.recipe.evaluations[name].methods)
        chosen = [method for method in plan.methods if method.name in {each.name for each in wanted}]
        known[name] = measure_cost(plan, chosen, one.time_images, self.work.numbered_device)
        content = {key: [asdict(each) for each in costs] for key, costs in known.items()}
        atomic_write(self.out / COSTS, (json.dumps(content, indent=1) + "\n").encode())


def read_costs(out: Path) -> dict[str, list[MethodCost]]:
    """The costs that were measured, by evaluation."""
    path = out / COSTS
    return read_checked(path, dict[str, list[MethodCost]], _WHAT) if path.is_file() else {}


def status_table(work: Reproduction) -> Table:
    """How far every evaluation is."""
    rows: list[tuple[Any, ...]] = []
    for name, one in work.evaluations.items():
        folder = work.out / name
        if not (folder / PLAN).is_file():
            rows.append((name, "not begun", None, None))
            continue
        plan = plan_in(folder)
        wanted = {method.name for method in (one.all_methods if one.methods else ())}
        units = [unit for unit in plan.units if unit.method.name in wanted]
        stored = sum(Store(folder, plan).path(unit).is_file() for unit in units)
        lacking = wanted - {method.name for method in plan.methods}
        words = (
            f"{', '.join(sorted(lacking))} not begun"
            if lacking
            else "complete"
            if stored == len(units)
            else "begun"
        )
        rows.append((name, words, stored, len(units)))
    columns = (
        Column("evaluation", "Evaluation", "text"),
        Column("state", "State", "text"),
        Column("stored", "Stored units", digits=0),
        Column("units", "of", digits=0),
    )
    return Table("How far it is", columns, rows)
