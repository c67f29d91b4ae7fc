"""Running what a recipe needs: each evaluation in a folder of its own, resumable, and all of them as one job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from gramloop.data.suites import find_suite
from gramloop.evaluate.engines import Engine, Job, Listener, run_local
from gramloop.evaluate.evaluation import OpenEvaluation, open_evaluation, score_all, start_entry
from gramloop.evaluate.methods import blocks_per_view, prediction_calls
from gramloop.evaluate.options import PlannedWork, WorkOptions
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
from gramloop.util.device import device_kind, numbered_device
from gramloop.util.files import load_checksums
from gramloop.util.options import shared_values
from gramloop.util.table import Column, Table


@dataclass(frozen=True)
class Reproduction:
    """A recipe on its way: what is run for which outputs, on which files, in which folder."""

    recipe: Recipe
    outputs: Mapping[str, Output]
    files: FoundFiles
    out: Path
    work: WorkOptions
    device: str | None = None
    dtype: WeightPrecision = "float32"
    idle: bool = False  # nothing is run here

    @property
    def evaluations(self) -> dict[str, EvaluationEntry]:
        """What the outputs need."""
        return self.recipe.needed(self.outputs)

    def plan(self, name: str, methods: tuple[str, ...]) -> Plan:
        """The plan of an evaluation with these methods."""
        one = self.evaluations[name]
        model, data, work = self.recipe.models[one.model], self.recipe.data[one.data], self.work
        elsewhere = self.idle or work.engine != "local"
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
                sizes=model.sizes,
                device=device_kind(self.device, elsewhere),
                diagnostics=one.diagnostics,
                pictures=max(one.pictures, len(one.only)),
                keep=one.keep,
                dtype=self.dtype,
                **shared_values(work, PlannedWork),
            )
        )

    def run(self, listener: Listener | None = None) -> Iterator[tuple[str, Results]]:
        """Run what is missing of all evaluations as one job, and measure costs.

        Args:
            listener: called as the work proceeds.

        Returns:
            Each evaluation with its results, as soon as it is complete; so scores are computed while others run.
        """
        work, wanted, engine = self.work, self.evaluations, self.work.open_engine()
        with ExitStack() as stack:
            listener = stack.enter_context(listener or Listener())
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
                plan = self.plan(name, self.recipe.evaluations[name].methods)
                stores.setdefault(name, Store(self.out / name, plan))
                timed = [each for each in plan.methods if each.name in methods]
                costs.append(cost_part(name, timed, wanted[name].time_images))
            if not stores:  # costs alone were asked for, and are known
                return
            if engine is not None:  # on a cluster every part has a device of its own
                parts, costs = [*costs, *parts], []
            stores = {name: Store(each.folder.resolve(), each.plan) for name, each in stores.items()}
            pool = PooledStore(self.out.resolve(), stores)
            listener.started(sum(map(len, parts)))
            job = Job(
                pooled_workload(stores),
                cast(Any, pool),
                parts,
                listener,
                numbered_device(self.device) if engine is None else None,
                work.prepare,
            )
            yield from self._follow(job, engine or partial(run_local, workers=work.workers), opened)
            for _ in run_local(replace(job, parts=costs), 1):
                pass

    def _follow(
        self, job: Job, engine: Engine, opened: Mapping[str, OpenEvaluation]
    ) -> Iterator[tuple[str, Results]]:
        """Run the job, and score each condition and each evaluation once it is complete."""
        left = {name: Counter(part.condition for part in each.parts) for name, each in opened.items()}
        missed: dict[str, list[Missed]] = {name: [] for name in opened}
        for name, one in opened.items():
            if one.parts:
                record_start(one.store, start_entry(job, self.work.engine, self.work.workers))
            else:
                yield name, score_all(one)
        for outcome in engine(job) if job.parts else ():
            name, part = split_part(outcome.part)
            if part.condition == COST:
                continue
            left[name][part.condition] -= 1
            missed[name] += [replace(outcome, part=part)] if isinstance(outcome, Missed) else []
            if not left[name][part.condition]:
                job.listener.scored(collect(opened[name].store, [part.condition]), name)
            if not left[name].total():
                yield name, score_all(opened[name], missed[name])

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


# what it costs, before anything is run and without weights


@dataclass(frozen=True)
class EvaluationPrice:
    """The cost of one evaluation; hours are None where the recipe knows no times."""

    images: int
    blocks: float
    hours: float | None
    bytes: float


def price_of(recipe: Recipe, one: EvaluationEntry) -> EvaluationPrice:
    """The cost of an evaluation from the sizes and times that the recipe states."""
    model, data, suite = recipe.models[one.model], recipe.data[one.data], find_suite(one.suite)
    each = len(one.only) or data.images or data.scenes
    conditions = len(suite.select(one.conditions or None, one.severities or None))
    images = each if suite.kind == "o" else each * conditions
    if suite.kind == "o" and conditions < len(suite.conditions):
        images = round(each * conditions / len(suite.conditions))
    methods = one.all_methods if one.methods else []
    views = blocks_per_view(methods, model.depth, one.diagnostics) if methods else 0
    seconds = _seconds(model.price.seconds, one, model.depth)
    return EvaluationPrice(
        images if methods else 0,
        views * model.price.views * images,
        None if seconds is None else seconds * images / 3600,
        model.price.bytes * len(methods) * images,
    )


def _seconds(known: Mapping[int, float], one: EvaluationEntry, depth: int) -> float | None:
    """Device seconds of all methods on an image: stated where a path is, else on the line through the stated ones."""
    if not one.methods:
        return 0.0
    if len(known) < 2:
        return None
    block, rest = np.polyfit(list(known), list(known.values()), 1)
    calls = prediction_calls(one.all_methods)
    paths = [(blocks_per_view(call, depth, one.diagnostics), len(call)) for call in calls]
    seconds = (known.get(blocks, rest + block * blocks) + rest * (many - 1) for blocks, many in paths)
    return float(sum(seconds))


def price_table(recipe: Recipe, evaluations: Mapping[str, EvaluationEntry]) -> Table:
    """The cost of every evaluation, and of all."""
    prices = {name: price_of(recipe, one) for name, one in evaluations.items()}
    hours = [price.hours for price in prices.values()]
    rows: list[tuple[Any, ...]] = [
        (name, price.images, price.blocks / 1e6, price.hours, price.bytes / 1e9)
        for name, price in prices.items()
    ]
    images, blocks, _, stored = zip(*(row[1:] for row in rows), strict=True)
    total = None if None in hours else sum(each or 0.0 for each in hours)
    rows.append(("all", sum(images), sum(blocks), total, sum(stored)))
    notes = dict.fromkeys(recipe.models[one.model].price.note for one in evaluations.values())
    return Table(
        "What it costs",
        (
            Column("evaluation", "Evaluation", "text"),
            Column("images", "Images", digits=0),
            Column("blocks", "Blocks (million)", digits=1),
            Column("hours", "GPU-hours", digits=1),
            Column("storage", "Stored GB", digits=1),
        ),
        rows,
        (*filter(None, notes), "Storage is before compression."),
        key="price",
        footer=1,
    )
