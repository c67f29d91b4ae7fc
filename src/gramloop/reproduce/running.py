"""Running what a recipe needs: each evaluation in a folder of its own, resumable, and all of them as one job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self, cast

from gramloop.evaluate.display import condition_gains
from gramloop.evaluate.engines import Engine, Job
from gramloop.evaluate.engines.local import run_local
from gramloop.evaluate.evaluation import (
    EvaluationOutcome,
    Listener,
    OpenEvaluation,
    open_evaluation,
    start_entry,
)
from gramloop.evaluate.plan import DataSource, Plan
from gramloop.evaluate.planning import Request, make_plan
from gramloop.evaluate.results import Results, collect
from gramloop.evaluate.runner import Missed
from gramloop.evaluate.store import PLAN, Store, plan_in, record_start
from gramloop.reproduce.files import FoundFiles
from gramloop.reproduce.pool import (
    COST,
    PooledStore,
    cost_part,
    pooled_part,
    pooled_workload,
    read_costs,
    split_part,
)
from gramloop.reproduce.recipe import EvaluationEntry, Output, Recipe
from gramloop.tasks.loading import WeightPrecision
from gramloop.util.checksums import load_checksums
from gramloop.util.progress import progress_bar
from gramloop.util.table import Column, Table


class RunDisplay(Listener):
    """A bar over the images of all evaluations, and a line for every condition that is completed.

    Args:
        say: prints a line.
    """

    def __init__(self, say: Callable[[str], None] = lambda line: None) -> None:
        self.waiting = self.warning = say  # type: ignore[method-assign,assignment]
        self._say, self._stack = say, ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def started(self, images: int) -> None:
        """So many images are to be predicted."""
        self._say(f"{images:,} images to predict")
        self._advance = self._stack.enter_context(progress_bar("images", images))

    def images(self, number: int) -> None:
        """So many more images were predicted."""
        self._advance("", number)

    def scored(self, name: str, results: Results) -> None:
        """A condition of an evaluation was completed."""
        gains = "".join(f", {method} {gain:+.3f}" for method, gain in condition_gains(results).items())
        for one in results.conditions:
            self._say(f"{name} {one.condition}: {one.images} images{gains}")


@dataclass(frozen=True)
class WorkSettings:
    """Where and how evaluations run; see `gramloop.evaluate.evaluate`."""

    device: str = "cpu"
    dtype: WeightPrecision = "float32"
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
    outputs: Mapping[str, Output]
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
                data=DataSource(
                    str(self.files.images(one).resolve()), partial=data.partial or bool(one.only)
                ),
                methods=methods,
                conditions=one.conditions,
                severities=one.severities,
                shards=work.shards,
                sizes=model.sizes,
                device=work.device,
                threads=work.threads,
                diagnostics=one.diagnostics,
                pictures=max(one.pictures, len(one.only)),
                keep=one.keep,
                dtype=work.dtype,
                batch=work.batch,
            )
        )

    def run(self, listener: RunDisplay | None = None) -> Iterator[tuple[str, EvaluationOutcome]]:
        """Run what is missing of all evaluations as one job, and measure costs.

        Args:
            listener: called as the work proceeds.

        Returns:
            Each evaluation with its outcome, as soon as it is complete; so scores are computed while others run.
        """
        listener, work, wanted = listener or RunDisplay(), self.work, self.evaluations
        with ExitStack() as stack:
            opened = {
                name: stack.enter_context(
                    open_evaluation(
                        self.plan(name, one.methods), self.out / name, listener=listener, prepare=work.prepare
                    )
                )
                for name, one in wanted.items()
                if one.methods
            }
            stores = {name: each.store for name, each in opened.items()}
            parts = [pooled_part(name, part) for name, each in opened.items() for part in each.parts]
            costs = []
            for name, methods in self._untimed().items():
                if name not in stores or methods - {each.name for each in stores[name].plan.methods}:
                    plan = self.plan(name, self.recipe.evaluations[name].methods)
                    stores.setdefault(name, Store(self.out / name, plan))
                else:
                    plan = stores[name].plan
                timed = [
                    each for each in plan.methods if each.name in methods
                ]  # with the windows of the plan
                costs.append(cost_part(name, timed, wanted[name].time_images))
            if not stores:  # costs alone were asked for, and are known
                return
            if work.engine is not None:  # on a cluster every part has a device of its own
                parts, costs = [*costs, *parts], []
            stores = {name: Store(each.folder.resolve(), each.plan) for name, each in stores.items()}
            pool = PooledStore(self.out.resolve(), stores)
            listener.started(sum(map(len, parts)))
            job = Job(
                pooled_workload(stores),
                cast(Any, pool),
                parts,
                listener.images,
                listener.waiting,
                work.numbered_device,
                work.prepare,
            )
            yield from self._follow(job, opened, listener)
            for _ in run_local(replace(job, parts=costs), 1):
                pass

    def _follow(
        self, job: Job, opened: Mapping[str, OpenEvaluation], listener: RunDisplay
    ) -> Iterator[tuple[str, EvaluationOutcome]]:
        """Run the job, and score each condition and each evaluation once it is complete."""
        left = {name: Counter(part.condition for part in each.parts) for name, each in opened.items()}
        missed: dict[str, list[Missed]] = {name: [] for name in opened}
        for name, one in opened.items():
            if one.parts:
                record_start(one.store, start_entry(job, self.work.engine_name, self.work.workers))
            else:
                yield name, one.finish()
        if not job.parts:
            return
        engine = self.work.engine or partial(run_local, workers=self.work.workers)
        for outcome in engine(job):
            name, part = split_part(outcome.part)
            if part.condition == COST:
                continue
            left[name][part.condition] -= 1
            missed[name] += [replace(outcome, part=part)] if isinstance(outcome, Missed) else []
            if not left[name][part.condition]:
                listener.scored(name, collect(opened[name].store, [part.condition]))
            if not left[name].total():
                yield name, opened[name].finish(missed[name])

    def _untimed(self) -> dict[str, set[str]]:
        """The methods whose cost is wanted, of the evaluations where one of them has not been measured."""
        known, found = read_costs(self.out), {}
        for name, one in self.evaluations.items():
            methods = {each.name for each in self.recipe.timed_methods(name, self.outputs)}
            if one.time_images and methods - {each.method for each in known.get(name, ())}:
                found[name] = methods
        return found


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
        lacking = sorted(wanted - {method.name for method in plan.methods})
        state = "complete" if stored == len(units) else "begun"
        rows.append((name, f"{', '.join(lacking)} not begun" if lacking else state, stored, len(units)))
    columns = (
        Column("evaluation", "Evaluation", "text"),
        Column("state", "State", "text"),
        Column("stored", "Stored units", digits=0),
        Column("units", "of", digits=0),
    )
    return Table("How far it is", columns, rows)
