"""Paired differences of evaluations on the same images: clean, family by family, and the mean under shift.

Every draw of images is the same for all models, so an interval is of the difference and not of two scores. The intervals
of single families hold together. An interval inside the margin means equivalent, one on either side of zero better or
worse; anything else is not decided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gramloop.data.suites import find_suite
from gramloop.errors import GramLoopError
from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.plan import AGREEMENT_NOTE, Plan, Unit, condition_of
from gramloop.evaluate.results import metrics_of
from gramloop.evaluate.rows import MethodRows
from gramloop.evaluate.store import PLAN, Store, plan_in
from gramloop.metrics.bootstrap import (
    SEED,
    Interval,
    cluster_bootstrap,
    image_draws,
    joint_intervals,
    mean_interval,
    widened,
)
from gramloop.tasks.base import Rows
from gramloop.util.progress import tracked
from gramloop.util.table import Column, Table, TableRepr

CLEAN, SHIFT = "clean", "shift"
MARGIN = 0.5  # points
DRAWS = 2_000  # of images; an end of the interval moves by about 2% of its width between seeds
Over = Literal["images", "families", "both"]
Word = Literal["better", "worse", "equivalent", "not decided"]
_SAME = ("task", "truth", "truth_score", "alignment", "categories", "things")  # of two plans


@dataclass(frozen=True)
class PairedRow:
    """One model less the first one, in points of the main metric."""

    model: str
    reference: str
    scope: str  # "clean", "shift", or a family
    scores: tuple[float, float]  # of the reference and of the model
    images: Interval
    families: Interval | None  # of the mean under shift, where there are two families or more
    deciding: tuple[Interval, ...]
    verdict: Word
    agreement: (
        float | None
    )  # the score where the reference's predictions are the truth, on images that keep theirs


@dataclass(frozen=True, repr=False)
class ModelComparison(TableRepr):
    """Models compared with the first of them."""

    models: tuple[str, ...]
    metric: str
    margin: float
    rows: tuple[PairedRow, ...]
    seconds: Mapping[str, float | None]  # per image, of predicting alone
    notes: tuple[str, ...]
    excluded: int  # images under a condition that count for no model

    @property
    def scopes(self) -> tuple[str, ...]:
        """What was measured: clean, shift, families."""
        return tuple(dict.fromkeys(row.scope for row in self.rows))

    def row(self, scope: str, model: str | None = None) -> PairedRow:
        """The row of a scope, of the second model by default."""
        name = self.models[1] if model is None else model
        return next(row for row in self.rows if (row.scope, row.model) == (scope, name))

    def time_ratio(self, model: str) -> float | None:
        """Time per image relative to the first model; None where one of them was not measured alone."""
        own, first = self.seconds[model], self.seconds[self.models[0]]
        return own / first if own and first else None

    def sentences(self) -> list[str]:
        """The verdicts on clean images and under shift, a line for each model."""
        found = []
        for model in self.models[1:]:
            rows = [row for row in self.rows if row.model == model and row.scope in (CLEAN, SHIFT)]
            where = {CLEAN: "on clean images", SHIFT: "under shift"}
            words = ", ".join(f"{row.verdict} {where[row.scope]} ({_ends(row.deciding)})" for row in rows)
            ratio = self.time_ratio(model)
            time = "" if ratio is None else f"; {ratio:.2f}x the time per image"
            found.append(f"{model} against {self.models[0]}: {words}{time}.")
        return found

    def table(self, model: str | None = None) -> Table:
        """All rows, those of one model after those of another; or of one model alone."""
        columns = (
            Column("model", kind="text"),
            Column("on", kind="text"),
            Column("first", digits=2),
            Column("score", digits=2),
            Column("images", "Δ, over images", kind="interval", estimate=True),
            Column("families", "over families", kind="interval"),
            Column("verdict", kind="text"),
            Column("agreement", "agrees", digits=0),
        )
        cells = [
            (row.model, row.scope, *row.scores, row.images, row.families, row.verdict, row.agreement)
            for row in self.rows
            if model in (None, row.model)
        ]
        title = (
            f"{self.metric}: {model or 'difference'} {'less' if model else 'from'} {self.models[0]} in points"
        )
        caption = f"95% intervals, paired; equivalent means within ±{self.margin:g} points."
        agreement = f"Agreement is the score with the predictions of {self.models[0]} as truth, on the images that keep theirs."
        full = Table(
            title, columns, cells, (*self.sentences(), *self.notes, agreement), caption=caption, key="compare"
        )
        return (
            full
            if model is None
            else replace(full, columns=columns[1:], rows=tuple(row[1:] for row in cells))
        )

    def _table(self) -> Table:
        """What fits on a terminal: of two models the title names them, and agreement is left to the files."""
        full = self.table(self.models[1] if len(self.models) == 2 else None)
        kept = (*self.sentences(), *self.notes)
        return replace(full, columns=full.columns[:-1], rows=tuple(row[:-1] for row in full.rows), notes=kept)


def _ends(intervals: Sequence[Interval]) -> str:
    each = intervals[0]
    spans = " and ".join(f"[{one.low:+.2f}, {one.high:+.2f}]" for one in intervals)
    return f"{each.estimate:+.2f} {spans}"


def results_in(folder: Path) -> list[Path]:
    """The evaluations of a folder: itself, or those directly inside; none where it is something else."""
    if not folder.is_dir():
        return []
    if (folder / PLAN).is_file():
        return [folder]
    return sorted(path.parent for path in folder.glob(f"*/{PLAN}"))


def compare_folders(
    folders: Mapping[str, Sequence[Path]],
    *,
    margin: float = MARGIN,
    over: Over = "images",
    draws: int = DRAWS,
    seed: int = SEED,
) -> ModelComparison:
    """Compare finished evaluations; nothing is predicted.

    Args:
        folders: the evaluations of every model by its name, the first being the one that others are compared with.
        margin: points within which two models count as equivalent.
        over: what the verdict's intervals are drawn over.
        draws, seed: of the resampled images.
    """
    if not (margin >= 0 and np.isfinite(margin)):
        raise GramLoopError(f"the margin is {margin}; it is 0 points or more")
    if len(folders) < 2:
        raise GramLoopError(f"a comparison needs two models or more, not {len(folders)}")
    sides = [_Side(name, places) for name, places in folders.items()]
    first = sides[0]
    for side in sides[1:]:
        _check_alike(first, side)
    scores, units = _resampled(sides, draws, seed)
    rows = [row for side in sides[1:] for row in _rows(first, side, scores, units, margin, over)]
    excluded = sum(first.stores[key].plan.conditions[key] - many for key, many in units.items())
    return ModelComparison(
        tuple(folders),
        metrics_of(first.plan)[0],
        margin,
        tuple(rows),
        {side.name: side.seconds() for side in sides},
        tuple(_notes(sides, excluded)),
        excluded,
    )


class _Side:
    """One model's evaluations: the rows of its baseline under every condition."""

    def __init__(self, name: str, folders: Sequence[Path]) -> None:
        self.name, self.folders = name, folders
        self.stores: dict[str, Store[Plan]] = {}
        self.found: dict[str, MethodRows] = {}
        for folder in folders:
            store = Store(folder, plan_in(folder))
            for key in store.plan.conditions:
                if key in self.stores:
                    raise GramLoopError(
                        f"{name} has {key} in {self.stores[key].folder} and in {folder}; give one"
                    )
                self.stores[key] = store
                self.found[key] = _baseline_rows(store, key)
        self.shared = all(find_suite(store.plan.suite).kind != "o" for store in self.stores.values())
        self._check_one_model()

    def _check_one_model(self) -> None:
        """Refuse folders that are not of one model on one set."""
        plan = self.plan
        for key, store in self.stores.items():
            other = store.plan
            if (plan.task, plan.truth, plan.model.sha256) != (other.task, other.truth, other.model.sha256):
                raise GramLoopError(
                    f"{self.folders[0]} and {store.folder} are not of one model, task and truth"
                )
            if self.shared and _differ(next(iter(self.found.values())), self.found[key]):
                raise GramLoopError(f"{self.folders[0]} and {store.folder} are of different images")

    @property
    def plan(self) -> Plan:
        return next(iter(self.stores.values())).plan

    def seconds(self) -> float | None:
        facts = [each for rows in self.found.values() for each in rows.facts]
        if any(each.paired_with or not each.seconds for each in facts):
            return None
        return sum(each.seconds for each in facts) / sum(len(rows.positions) for rows in self.found.values())

    def machines(self) -> set[tuple[str, str]]:
        return {(each.host, each.device) for rows in self.found.values() for each in rows.facts}


def _baseline_rows(store: Store[Plan], key: str) -> MethodRows:
    plan, folder = store.plan, store.folder
    method = next((each for each in plan.methods if each.name == BASELINE), None)
    if method is None:
        raise GramLoopError(f"{folder} was run without the method {BASELINE}, which is what is compared")
    rows = store.rows([Unit(key, method, part.images) for part in plan.parts_of(key)])
    if rows is None:
        raise GramLoopError(
            f"{folder} is not finished: {key} is missing; gramloop evaluate --out {folder} resumes"
        )
    return rows


def _differ(one: MethodRows, two: MethodRows) -> bool:
    """Whether a position holds one image here and another there."""
    known = dict(zip(one.positions, one.image_ids, strict=True))
    return any(
        known.get(place, name) != name for place, name in zip(two.positions, two.image_ids, strict=True)
    )


def _check_alike(first: _Side, other: _Side) -> None:
    """Refuse evaluations of other images, conditions or truths."""
    pair = f"{first.name} and {other.name} cannot be compared: "
    alone = sorted(set(first.stores) ^ set(other.stores))
    if alone:
        owner = first if alone[0] in first.stores else other
        raise GramLoopError(f"{pair}only {owner.name} has {', '.join(alone[:4])}{' …' * (len(alone) > 4)}")
    for key in first.stores:
        one, two = first.stores[key].plan, other.stores[key].plan
        for name in _SAME:
            values = getattr(one, name), getattr(two, name)
            free = one.label_free and name in ("categories", "things")  # each model's own
            if values[0] != values[1] and not free:
                said = (
                    "other classes"
                    if name in ("categories", "things")
                    else f"{name} {values[0]} and {values[1]}"
                )
                raise GramLoopError(f"{pair}{key} has {said}")
        if one.conditions[key] != two.conditions[key]:
            raise GramLoopError(f"{pair}{key} has {one.conditions[key]} images and {two.conditions[key]}")
        if (one.suite, one.data.contents, one.data.encoding) != (
            two.suite,
            two.data.contents,
            two.data.encoding,
        ):
            raise GramLoopError(f"{pair}{key} was made of other images")
        if _differ(first.found[key], other.found[key]):
            raise GramLoopError(f"{pair}{key} has its images in another order")


def _resampled(
    sides: Sequence[_Side], draws: int, seed: int
) -> tuple[dict[tuple[str, str], NDArray[np.float64]], dict[str, int]]:
    """Scores by model and condition, on all images and on every draw; and the images of each condition."""
    first = sides[0]
    used = {
        key: set.intersection(*(set(side.found[key].positions) for side in sides)) for key in first.stores
    }
    if first.shared:  # an image is drawn with all its shifted versions
        everywhere = set.intersection(*used.values())
        used = dict.fromkeys(used, everywhere)
    scores = {}
    work = [(index, key, side) for index, key in enumerate(first.stores) for side in sides]
    for index, key, side in tracked(work, "resampling", len(work)):
        store, kept = side.stores[key], side.found[key]
        kept = kept.without(set(kept.positions) - used[key])
        score = store.task.scorer(kept.rows, store.plan.classes)
        own = seed if first.shared else seed + index
        scores[side.name, key] = image_draws(
            score, len(used[key]), replicates=draws, seed=own, rows=store.task.draws_at_once
        )
    return scores, {key: len(places) for key, places in used.items()}


def _rows(
    first: _Side,
    side: _Side,
    scores: Mapping[tuple[str, str], NDArray[np.float64]],
    units: Mapping[str, int],
    margin: float,
    over: Over,
) -> list[PairedRow]:
    apart = {key: scores[side.name, key] - scores[first.name, key] for key in first.stores}
    shifted = [key for key in apart if key != CLEAN]
    families: dict[str, list[str]] = {}
    for key in shifted:
        families.setdefault(condition_of(key).family, []).append(key)
    scopes = {CLEAN: [CLEAN] if CLEAN in apart else [], SHIFT: shifted}
    scopes |= families if len(families) > 1 else {}
    least = min(units.values())
    means = {scope: np.mean([apart[key] for key in keys], axis=0) for scope, keys in scopes.items() if keys}
    spans = {scope: widened(mean_interval([means[scope]], least)) for scope in means}
    if len(families) > 1:
        joint = joint_intervals(np.stack([means[family] for family in families]), least)
        spans |= dict(zip(families, joint, strict=True))
    across = None
    if len(families) > 1 and len({len(keys) for keys in families.values()}) == 1:
        points = {family: [float(apart[key][0]) for key in keys] for family, keys in families.items()}
        across = widened(cluster_bootstrap(points))
    agreeing = _agreement(first, side)
    found = []
    for scope in means:
        both = tuple(
            float(np.mean([scores[name, key][0] for key in scopes[scope]]))
            for name in (first.name, side.name)
        )
        wide = across if scope == SHIFT else None
        deciding = _deciding(spans[scope], wide, over if scope == SHIFT else "images")
        known = [agreeing[key] for key in scopes[scope] if key in agreeing]
        found.append(
            PairedRow(
                side.name,
                first.name,
                scope,
                (both[0], both[1]),
                spans[scope],
                wide,
                deciding,
                _word(deciding, margin),
                float(np.mean(known)) if len(known) == len(scopes[scope]) else None,
            )
        )
    return found


def _agreement(first: _Side, side: _Side) -> dict[str, float]:
    """By condition, the score of a model where the first one's predictions are the truth."""
    found = {}
    for key, store in first.stores.items():
        plan, task = store.plan, store.task
        if plan.categories != side.stores[key].plan.categories:  # each model's own, without labels
            continue
        many = min(plan.pictures, side.stores[key].plan.pictures)
        kept = [
            {row["position"]: task.decode(row) for row in each.found[key].first(many)}
            for each in (first, side)
        ]
        pairs = [(kept[0][place], kept[1][place]) for place in kept[0] if place in kept[1]]
        rows = [
            task.statistics(two, task.as_truth(one, plan.truth_score), plan.classes)
            for one, two in pairs
            if one is not None and two is not None
        ]
        if rows:
            found[key] = task.score(Rows.of(rows), plan.classes)[task.metrics[0]]
    return found


def _deciding(images: Interval, families: Interval | None, over: Over) -> tuple[Interval, ...]:
    if over == "images":
        return (images,)
    if families is None:
        raise GramLoopError(
            "an interval over families needs two families or more, each at the same severities"
        )
    return (families,) if over == "families" else (images, families)


def _word(intervals: Sequence[Interval], margin: float) -> Word:
    """The verdict on which all intervals agree."""
    if all(-margin <= each.low and each.high <= margin for each in intervals):
        return "equivalent"
    if all(each.low > 0 for each in intervals):
        return "better"
    return "worse" if all(each.high < 0 for each in intervals) else "not decided"


def _notes(sides: Sequence[_Side], excluded: int) -> list[str]:
    notes = []
    plan = sides[0].plan
    if plan.label_free:
        notes.append(
            f"Without labels {AGREEMENT_NOTE}, and each model is compared with its own clean prediction."
        )
    if excluded:
        notes.append(
            f"{excluded} images under a condition could not be used everywhere, and count for no model."
        )
    for side in sides[1:]:
        other = side.plan.versions
        changed = [
            f"{name} {plan.versions.get(name, 'none')} and {other.get(name, 'none')}"
            for name in sorted({*plan.versions, *other})
            if plan.versions.get(name) != other.get(name)
        ]
        if changed:
            notes.append(f"{sides[0].name} and {side.name} were made with {', '.join(changed)}.")
        if side.machines() != sides[0].machines():
            notes.append(
                f"{sides[0].name} and {side.name} ran on different machines; their times do not compare."
            )
    return notes
