"""The folded tables: means by shift, placements, classes, Gram consistency, cost, and every condition and metric."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np
from numpy.typing import NDArray

from gramloop.data.suites import Condition, display_name
from gramloop.evaluate.methods import BASELINE, Method
from gramloop.evaluate.plan import trajectories_of
from gramloop.evaluate.results import measures_gain, metrics_of
from gramloop.metrics.segmentation import QUALITIES
from gramloop.replay.config import ReplayConfig
from gramloop.report.run import Run
from gramloop.report.tables import (
    SCORE_DIGITS,
    TEXT,
    clean_coco_of,
    method_table,
    points_between,
    robustness_of,
)
from gramloop.util.table import ABSENT, Cell, Column, Table

_NUMBERS = {1: "One", 2: "Two", 3: "Three", 4: "Four", 5: "Five"}


def family_means(run: Run) -> Table | None:
    """Means over the severities of every shift, and the macro mean once everything is there; None without shifts."""
    if not run.shifted:
        return None
    found = {family: means_of_family(run, family) for family in run.families}
    rows = [((display_name(name, capital=True),), scores) for name, scores in found.items()]
    rows.append((("Macro mean",), {method: run.score(method) for method in run.methods}))
    notes = [] if run.complete else ["Where a condition is missing there is no mean over it."]
    if run.compared:
        gaining = (
            f"{method} gains in {sum(_gains(scores, method) for scores in found.values())}"
            for method in run.compared
        )
        notes.append(f"Of {len(found)} rows, {', '.join(gaining)}.")
    if run.suite.kind == "o":
        heading, each = "Domain", f"{run.metric} of each domain"
    else:
        many = len({condition.severity for condition in run.shifted})
        heading, each = "Shift", f"{_NUMBERS.get(many, many)}-severity means of {run.metric} by shift"
    return method_table(
        f"{run.name} by {heading.lower()}",
        (Column("name", heading, TEXT),),
        run.methods,
        rows,
        notes,
        key=f"{run.key}-families",
        caption=f"{each}, in percent; differences are computed before rounding.",
        footer=1,
    )


def means_of_family(run: Run, family: str) -> dict[str, float | None]:
    """The mean over the severities of a shift by method."""
    members = [condition for condition in run.shifted if condition.family == family]
    scores = {method: run.scores(method) for method in run.methods}
    return {method: _mean([each.get(one, np.nan) for one in members]) for method, each in scores.items()}


def _mean(values: Sequence[float]) -> float | None:
    """None where one is missing, for a mean over the rest would mislead."""
    return float(np.mean(values)) if np.isfinite(values).all() else None


def _gains(scores: Mapping[str, float | None], method: str) -> bool:
    base, score = scores.get(BASELINE), scores.get(method)
    return base is not None and score is not None and score > base


def every_condition(run: Run) -> Table:
    """The main metric of every condition of the plan; a row without numbers where it is missing."""
    results = {result.condition.key: result for result in run.results}
    rows: list[tuple[tuple[Cell, ...], Mapping[str, float | None]]] = []
    for key in run.plan.conditions:
        result = results.get(key)
        counts = (None, None) if result is None else (result.images, len(result.failures))
        found = {} if result is None else result.scores
        rows.append(((key, *counts), {name: scores[run.metric] for name, scores in found.items()}))
    return method_table(
        f"{run.name}, every condition",
        (
            Column("condition", "Condition", TEXT),
            Column("images", "Images", digits=0),
            Column("excluded", "Excluded", digits=0),
        ),
        run.methods,
        rows,
        (f"{key}: {why}." for key, why in run.missing.items()),
        changes_only=lambda key: not measures_gain(run.plan, str(key)),
        key=f"{run.key}-conditions",
        caption=f"{run.metric} in percent; excluded images count for no method.",
    )


def every_metric(run: Run) -> Table | None:
    """All metrics of every condition and method; None where there is but one metric."""
    metrics = metrics_of(run.plan)
    if len(metrics) == 1:
        return None
    scores = (Column(name, digits=SCORE_DIGITS) for name in metrics)
    return Table(
        f"{run.name}, every metric",
        (Column("condition", "Condition", TEXT), Column("method", "Method", TEXT), *scores),
        [
            (result.condition.key, method, *(result.scores[method][name] for name in metrics))
            for result in run.results
            for method in run.methods
        ],
        ("A dash stands where the truth holds no such object.",) if run.plan.categories else (),
        key=f"{run.key}-metrics",
        caption="Means over images. Shares within a factor (delta) are in percent, higher is better; AbsRel, RMSE in metres, "
        "log10 and SILog times 100 are errors, lower is better."
        if run.task.aligns
        else "In percent, higher is better.",
    )


def quality_table(run: Run) -> Table | None:
    """Panoptic quality in its parts, of things and of stuff; None of another task, and while incomplete."""
    if run.plan.task != "panoptic" or not run.complete:
        return None
    means = {
        metric: {name: _mean([one.scores[name][metric] for one in run.averaged]) for name in run.methods}
        for metric in metrics_of(run.plan)
    }
    what = ", as agreement with the clean prediction" * run.plan.label_free
    return method_table(
        f"{run.name}, panoptic quality in its parts",
        (Column("group", "Categories", TEXT), Column("metric", "Metric", TEXT)),
        run.methods,
        zip(product(("all", "things", "stuff"), QUALITIES), means.values(), strict=True),
        ("A dash stands where no such category was seen.",),
        changes_only=lambda _: run.changes_only,
        key=f"{run.key}-qualities",
        caption=f"In percent, {run.scope}{what}. Of a category PQ = SQ x RQ: SQ is the mean overlap of the segments that "
        "were found, RQ how many were (F1). Of the means over categories that product does not hold.",
    )


def placements_table(run: Run, group: Sequence[Run]) -> Table | None:
    """Methods that differ in nothing but where drift is measured and the step applied; None without several."""
    found: dict[ReplayConfig, dict[ReplayConfig, tuple[str, Run]]] = {}
    for peer in group:
        for name in peer.gated if _images(peer) == _images(run) else ():
            replay = peer.method(name).replay
            assert replay is not None
            rest = replace(replay, gate_at="final", update_at="end")
            found.setdefault(rest, {}).setdefault(replay, (name, peer))
    varied = max(found.values(), key=len, default={})
    if len(varied) < 2:
        return None
    base = run.score(BASELINE) if BASELINE in run.methods else None
    first = [(BASELINE, run)] if BASELINE in run.methods else []
    clean, rows = clean_coco_of(run, group), list[tuple[Cell, ...]]()
    for name, peer in (*first, *varied.values()):
        score = peer.score(name)
        gain = None if name == BASELINE else points_between(score, base)
        robust = (robustness_of(peer, clean)[name],) if clean else ()
        rows.append((*places_of(peer.method(name)), name, score, gain, *robust))
    return Table(
        f"Placement of gate and update, {run.name}",
        (
            Column("gate", "Gate at", TEXT),
            Column("update", "Update at", TEXT),
            Column("method", "Method", TEXT),
            Column("score", run.score_title, digits=SCORE_DIGITS),
            Column("gain", "Δ", digits=SCORE_DIGITS, signed=True),
            *((Column("robustness", "ER", digits=SCORE_DIGITS),) if clean else ()),
        ),
        rows,
        key=f"{run.key}-placement",
        caption="Where drift is measured and where the accepted step is applied; all else is equal.",
    )


def places_of(method: Method) -> tuple[str, str]:
    """Where a replay measures drift and where it applies the step; dashes for other methods."""
    replay, names = method.replay, {"end": "Loop end", "final": "Final layer"}
    if replay is None:
        return ABSENT, ABSENT
    return names.get(str(replay.gate_at), f"Block {replay.gate_at}"), names[replay.update_at]


def _images(run: Run) -> tuple[object, ...]:
    plan = run.plan
    return plan.suite, plan.task, dict(plan.data.contents), dict(plan.conditions)


def cost_table(run: Run) -> Table | None:
    """Blocks executed, counted and by formula, and time measured alone; None without images."""
    if not run.images:
        return None
    rows: list[tuple[Cell, ...]] = []
    for name in run.methods:
        counted, depth = run.blocks[name] / run.images, run.plan.model.depth
        blocks: Cell = round(counted) if abs(counted - round(counted)) < 1e-9 else counted
        analytic = run.method(name).blocks(depth) / depth
        rows.append((name, blocks, analytic, run.work(name), run.times.get(name), run.time(name)))
    return Table(
        f"Compute cost, {run.name}",
        (
            Column("method", "Path", TEXT),
            Column("blocks", "Blocks", digits=0),
            Column("analytic", "Analytic", digits=2, unit="×"),
            Column("work", "Work", digits=2, unit="×"),
            Column("seconds", "s/image", digits=3),
            Column("time", "Time", digits=2, unit="×"),
        ),
        rows,
        ["Diagnostics were stored, for which replays execute more blocks."] * run.plan.diagnostics,
        key=f"{run.key}-cost",
        caption="Transformer blocks executed per view of an image, as counted; their number by the formula relative to the "
        "baseline; work is blocks times the area that each sees, relative to the baseline. Seconds are those of predicting "
        "an image with one method alone, where they were measured; time is relative to the baseline.",
    )


_TOP = 10  # classes


@dataclass(frozen=True)
class ClassGains:
    """Scores of every class that the labels of all conditions hold, averaged over these."""

    names: tuple[str, ...]
    baseline: NDArray[np.float64]  # (K,)
    method: NDArray[np.float64]  # (K,)

    @property
    def gains(self) -> NDArray[np.float64]:  # (K,)
        """In points."""
        return self.method - self.baseline

    @property
    def improved(self) -> int:
        """How many gain; a class that stays as it was does not."""
        return int((self.gains > 0).sum())


def class_gains(run: Run, method: str) -> ClassGains | None:
    """Each class's score; None while a condition is missing, and for tasks without classes."""
    results = run.averaged
    if not run.complete or any(result.labelled is None for result in results):
        return None
    held: NDArray[np.bool_] = np.all(
        [result.labelled for result in results if result.labelled is not None], axis=0
    )
    means = [
        np.mean([result.classes[name] for result in results], axis=0)[held] for name in (BASELINE, method)
    ]
    names = np.array(list(run.plan.categories.values()), dtype=object)[held] if held.any() else ()
    return ClassGains(tuple(names), *means) if held.any() else None


def class_tables(run: Run, method: str) -> tuple[Table, ...]:
    """The classes that gain most, and those that lose most."""
    found = class_gains(run, method)
    if found is None or run.changes_only:
        return ()
    ranked = np.argsort(-found.gains, kind="stable").tolist()
    gaining = [place for place in ranked[:_TOP] if found.gains[place] > 0]
    losing = [place for place in reversed(ranked[-_TOP:]) if found.gains[place] < 0]
    each = (("gains", gaining), ("losses", losing))
    return tuple(_class_table(run, method, found, kind, places) for kind, places in each if places)


def _class_table(run: Run, method: str, found: ClassGains, kind: str, places: list[int]) -> Table:
    rows = [
        (
            (rank, found.names[place]),
            {BASELINE: float(found.baseline[place]), method: float(found.method[place])},
        )
        for rank, place in enumerate(places, start=1)
    ]
    metric = run.task.class_metric + " with the clean predictions" * run.plan.label_free
    lost = int((found.gains < 0).sum())
    notes = [f"Of {len(found.names)} classes {found.improved} improve under {method} and {lost} lose."]
    if run.unlabelled:
        notes.append(f"The {run.truth_words} never hold {', '.join(run.unlabelled)}.")
    if partly := len(run.plan.categories) - len(found.names) - len(run.unlabelled):
        notes.append(
            f"{partly} classes are in the {run.truth_words} of some conditions only, and not in this table."
        )
    return method_table(
        f"Classes with the largest {kind}, {run.name}, {method}",
        (Column("rank", "Rank", digits=0), Column("class", "Class", TEXT)),
        (BASELINE, method),
        rows,
        notes,
        key=f"{run.key}-{method}-class-{kind}",
        caption=f"{metric} of a class in percent, {run.scope}.",
    )


RAW, UNIFORM, GATED = range(3)  # places of the trajectories


@dataclass(frozen=True)
class GramConsistency:
    """The drift of three trajectories, summed over the images of each condition: how far each ends from the baseline pass.

    R = (sum of the drift that was accepted, over severities and images) / (the same of the ungated replay).
    """

    method: str  # the gated one
    conditions: tuple[Condition, ...]
    images: NDArray[np.int64]  # (conditions,)
    sums: NDArray[np.float64]  # (conditions, 3): raw, uniform, gated

    @cached_property
    def families(self) -> dict[str, NDArray[np.bool_]]:
        """The shifts in the order of the conditions, each with its conditions."""
        owners = [condition.family for condition in self.conditions]
        return {name: np.array([owner == name for owner in owners]) for name in dict.fromkeys(owners)}

    @cached_property
    def family_sums(self) -> NDArray[np.float64]:  # (families, 3)
        """Sums over the severities of each shift."""
        return np.array([self.sums[own].sum(axis=0) for own in self.families.values()])

    @property
    def conditions_below(self) -> int:
        """Conditions in which the gated trajectory ends nearer than the uniform one."""
        return int((self.sums[:, GATED] < self.sums[:, UNIFORM]).sum())

    @property
    def families_below(self) -> int:
        """Shifts in which it does."""
        return int((self.family_sums[:, GATED] < self.family_sums[:, UNIFORM]).sum())

    @property
    def below(self) -> str:
        """Both counts, in words."""
        return (
            f"{self.families_below} of {len(self.families)} shifts and "
            f"{self.conditions_below} of {len(self.conditions)} conditions"
        )


def ratios(sums: NDArray[np.float64]) -> NDArray[np.float64]:  # (..., 3) → (..., 2)
    """R of the uniform and of the gated trajectory; nan where the ungated replay does not drift."""
    raw = sums[..., RAW, np.newaxis]
    return np.divide(sums[..., UNIFORM:], raw, out=np.full_like(sums[..., UNIFORM:], np.nan), where=raw > 0)


def gram_consistency(run: Run) -> Iterator[GramConsistency]:
    """One for every Gram-gated method whose companions were run; none without all drifts of all conditions."""
    for gated, names in trajectories_of(run.plan).items():
        measured = [one for one in run.results if all(len(one.drift.get(n, ())) == one.images for n in names)]
        if measured and len(measured) == len(run.plan.conditions):
            yield GramConsistency(
                gated,
                tuple(one.condition for one in measured),
                np.array([one.images for one in measured]),
                np.array([[one.drift[name].sum() for name in names] for one in measured]),
            )


def consistency_tables(run: Run) -> Iterator[Table]:
    """Each family's discrepancy as a share of the ungated replay's, for every gated method."""
    for found in gram_consistency(run):
        families = zip(found.families.items(), found.family_sums, strict=True)
        rows: list[tuple[Cell, ...]] = [
            *(
                (display_name(name, capital=True), int(found.images[own].sum()), *_ratios(sums))
                for (name, own), sums in families
            ),
            ("All", int(found.images.sum()), *_ratios(found.sums.sum(axis=0))),
        ]
        yield Table(
            f"Gram consistency at matched strength, {run.name}",
            (
                Column("family", "Shift", TEXT),
                Column("images", "Images", digits=0),
                Column("uniform", "Uniform, matched", digits=3),
                Column("gated", "Gated", digits=3),
                Column("difference", "Gated − uniform", digits=3, signed=True),
            ),
            rows,
            (
                f"At matched mean step, {found.method} ends nearer to the baseline pass than the uniform replay in {found.below}.",
            ),
            key=f"{run.key}-{found.method}-gram",
            caption="Final-layer cosine-Gram discrepancy to the baseline pass, summed over severities and images, as a share "
            "of that of the ungated replay (1); lower is nearer.",
            compared=("uniform", "gated"),
            footer=1,
            lowest=True,
        )


def _ratios(sums: NDArray[np.float64]) -> tuple[float | None, float | None, float | None]:
    uniform, gated = map(float, ratios(sums))
    return (uniform, gated, gated - uniform) if np.isfinite(uniform) else (None, None, None)
