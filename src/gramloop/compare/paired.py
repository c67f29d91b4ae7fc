"""Paired differences of evaluations on the same images: clean, family by family, and the mean under shift.

Every draw of images is the same for all models, so an interval is of the difference and not of two scores. The intervals
of single families hold together. An interval inside the margin means equivalent, one on either side of zero better or
worse; anything else is not decided.

A gate for continuous integration says how many points a model may lose, on clean images and under shift.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from gramloop.data.suites import find_suite
from gramloop.errors import GramLoopError
from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.plan import AGREEMENT_NOTE, Plan, Unit, condition_of
from gramloop.evaluate.results import metrics_of
from gramloop.evaluate.rows import MethodRows
from gramloop.evaluate.store import Store, plan_in
from gramloop.metrics.bootstrap import (
    SEED,
    Interval,
    cluster_bootstrap,
    joint_intervals,
    mean_interval,
    spanning,
    verdict,
    widened,
)
from gramloop.report.stats import Draws, draw_images
from gramloop.tasks.base import Rows
from gramloop.util.progress import tracked
from gramloop.util.table import Column, Table, TableRepr

CLEAN, SHIFT = "clean", "shift"
MARGIN = 0.5  # points
DRAWS = 2_000  # of images; an end of the interval moves by about 2% of its width between seeds
ModelVerdict = Literal["better", "worse", "equivalent", "not decided"]
GateWord = Literal["passed", "failed", "undecided"]
_VERDICTS: Final[Mapping[str, ModelVerdict]] = {"helps": "better", "hurts": "worse"}
_SCOPES = {CLEAN: "on clean images", SHIFT: "under shift"}
_RULE = re.compile(r"(\w+)\s+([+-]?\d+(?:\.\d+)?)")  # of a gate
_SAME = ("task", "truth", "truth_score", "alignment", "categories", "things", "suite")  # of two plans


@dataclass(frozen=True)
class PairedRow:
    """One model less the first one, in points of the main metric."""

    model: str
    scope: str  # "clean", "shift", or a family
    scores: tuple[float, float]  # of the first model and of this one
    images: Interval
    families: Interval | None  # of the mean under shift, where there are two families or more
    deciding: Interval  # that the verdict follows from
    verdict: ModelVerdict
    agreement: float | None  # the score with the first model's predictions as truth, on images that keep them


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

    def as_json(self) -> dict[str, Any]:
        """Plain values; an interval has its estimate, low and high ends."""
        names = ("models", "metric", "margin", "rows", "seconds", "excluded")
        return {name: value for name, value in asdict(self).items() if name in names}

    def row(self, scope: str, model: str | None = None) -> PairedRow:
        """The row of a scope, of the second model by default."""
        name = self.models[1] if model is None else model
        return next(row for row in self.rows if (row.scope, row.model) == (scope, name))

    def verdict_of(self, model: str) -> str:
        """The verdicts of one model on clean images and under shift, and its time."""
        rows = [row for row in self.rows if row.model == model and row.scope in _SCOPES]
        words = ", ".join(f"{row.verdict} {_SCOPES[row.scope]} ({_points(row.deciding)})" for row in rows)
        own, first = self.seconds[model], self.seconds[self.models[0]]
        return words + (f"; {own / first:.2f}x the time per image" if own and first else "") + "."

    def table(self) -> Table:
        """All rows, those of one model after those of another."""
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
        ]
        first, *others = self.models
        caption = f"95% intervals, paired; equivalent means within ±{self.margin:g} points."
        notes = [f"{model} against {first}: {self.verdict_of(model)}" for model in others] + [*self.notes]
        notes.append(
            f"agrees: the score with the predictions of {first} as truth, on the images that keep theirs."
        )
        title = f"{self.metric}: difference from {first} in points"
        return Table(title, columns, cells, notes, caption=caption, key="compare")

    def _table(self) -> Table:
        """What fits on a terminal: agreement is left to the files."""
        whole = self.table()
        rows = tuple(row[:-1] for row in whole.rows)
        return replace(whole, columns=whole.columns[:-1], rows=rows, notes=whole.notes[:-1])


def _points(one: Interval) -> str:
    return f"{one.estimate:+.2f} [{one.low:+.2f}, {one.high:+.2f}]"


def compare_folders(
    folders: Mapping[str, Sequence[Path]],
    *,
    margin: float = MARGIN,
    over: Literal["images", "families", "both"] = "images",
) -> ModelComparison:
    """Compare finished evaluations; nothing is predicted.

    Args:
        folders: the evaluations of every model by its name, the first being the one that others are compared with.
        margin: points within which two models count as equivalent.
        over: what the verdict's intervals are drawn over.
    """
    if not (margin >= 0 and np.isfinite(margin)):
        raise GramLoopError(f"the margin is {margin}; it is 0 points or more")
    if len(folders) < 2:
        raise GramLoopError(f"a comparison needs two models or more, not {len(folders)}")
    first, *others = sides = [_Side(name, places) for name, places in folders.items()]
    for side in others:
        _check_alike(first, side)
    images = _common_images(sides)
    scores: dict[str, dict[str, Draws]] = {side.name: {} for side in sides}
    work = [(index, key, side) for index, key in enumerate(first.stores) for side in sides]
    for index, key, side in tracked(work, "resampling", len(work)):
        store, found = side.stores[key], side.found[key]
        drawn = DRAWS, SEED if first.shared else SEED + index
        scores[side.name][key] = draw_images(store, found.rows, found.image_ids, images[key], drawn)
    least = min(map(len, images.values()))
    rows: list[PairedRow] = []
    for side in others:
        agreement = _agreement(first, side)
        rows += _rows(side.name, scores[first.name], scores[side.name], least, agreement, margin, over)
    excluded = sum(first.stores[key].plan.conditions[key] - len(ids) for key, ids in images.items())
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
        self.name = name
        self.stores: dict[str, Store[Plan]] = {}
        self.found: dict[str, MethodRows] = {}
        for folder in folders:
            store = Store(folder, plan_in(folder))
            for key in store.plan.conditions:
                if key in self.stores:
                    other = self.stores[key].folder
                    raise GramLoopError(f"{name} has {key} in {other} and in {folder}; give one")
                self.stores[key], self.found[key] = store, _baseline_rows(store, key)
        self.plan = next(iter(self.stores.values())).plan
        self.shared = all(find_suite(store.plan.suite).kind != "o" for store in self.stores.values())
        first = next(iter(self.found.values()))
        for key, store in self.stores.items():
            both = f"{folders[0]} and {store.folder} are"
            if _subject(store.plan) != _subject(self.plan):
                raise GramLoopError(f"{both} not of one model, task and truth")
            if self.shared and _differ(first, self.found[key]):
                raise GramLoopError(f"{both} of different images")

    def seconds(self) -> float | None:
        """Of predicting an image; None where the baseline was predicted together with another method."""
        facts = [each for rows in self.found.values() for each in rows.facts]
        if any(each.paired_with or not each.seconds for each in facts):
            return None
        return sum(each.seconds for each in facts) / sum(len(rows.positions) for rows in self.found.values())

    def machines(self) -> set[tuple[str, str]]:
        """Hosts and devices."""
        return {(each.host, each.device) for rows in self.found.values() for each in rows.facts}


def _subject(plan: Plan) -> tuple[object, ...]:
    return plan.task, plan.truth, plan.model.sha256


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
    """Whether a position holds different images."""
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
            values, classes = (getattr(one, name), getattr(two, name)), name in ("categories", "things")
            if values[0] != values[1] and not (one.label_free and classes):  # then each model has its own
                what = "other classes" if classes else f"{name} {values[0]} and {values[1]}"
                raise GramLoopError(f"{pair}{key} has {what}")
        if one.conditions[key] != two.conditions[key]:
            raise GramLoopError(f"{pair}{key} has {one.conditions[key]} images and {two.conditions[key]}")
        if (one.data.contents, one.data.encoding) != (two.data.contents, two.data.encoding):
            raise GramLoopError(f"{pair}{key} was made of other images")
        if _differ(first.found[key], other.found[key]):
            raise GramLoopError(f"{pair}{key} has its images in another order")


def _common_images(sides: Sequence[_Side]) -> dict[str, list[str]]:
    """The images of each condition that every model has a row of, in order of position."""
    first = sides[0]
    ids = {key: first.found[key].image_ids for key in first.stores}
    used = {key: set.intersection(*(set(side.found[key].image_ids) for side in sides)) for key in ids}
    if first.shared:  # an image is drawn with all its shifted versions
        used = dict.fromkeys(used, set.intersection(*used.values()))
    return {key: [each for each in ids[key] if each in used[key]] for key in ids}


def _rows(
    model: str,
    first: Mapping[str, Draws],
    own: Mapping[str, Draws],
    least: int,
    agreement: Mapping[str, float],
    margin: float,
    over: str,
) -> Iterator[PairedRow]:
    """The differences of one model on clean images, under shift and under each family; ``least`` is of images."""
    families: dict[str, list[str]] = {}
    for key in first:
        if key != CLEAN:
            families.setdefault(condition_of(key).family, []).append(key)
    several = families if len(families) > 1 else {}
    wanted = {CLEAN: [key for key in first if key == CLEAN], SHIFT: [key for key in first if key != CLEAN]}
    scopes = {scope: keys for scope, keys in {**wanted, **several}.items() if keys}
    change = {key: own[key] - first[key] for key in first}
    gains = {scope: np.mean([change[key] for key in keys], axis=0) for scope, keys in scopes.items()}
    spans = {scope: widened(mean_interval([each], least)) for scope, each in gains.items()}
    across = None
    if several:
        joint = joint_intervals(np.stack([gains[family] for family in several]), least)
        spans |= dict(zip(several, joint, strict=True))
        if len({len(keys) for keys in several.values()}) == 1:
            points = {name: [float(change[key][0]) for key in keys] for name, keys in several.items()}
            across = widened(cluster_bootstrap(points))
    for scope, keys in scopes.items():
        scores = [float(np.mean([each[key][0] for key in keys])) for each in (first, own)]
        wide = across if scope == SHIFT else None
        deciding = _deciding(spans[scope], wide, over if scope == SHIFT else "images")
        within = -margin <= deciding.low and deciding.high <= margin
        word = "equivalent" if within else _VERDICTS.get(verdict(deciding), "not decided")
        agrees = float(np.mean([agreement[key] for key in keys])) if agreement.keys() >= set(keys) else None
        yield PairedRow(model, scope, (scores[0], scores[1]), spans[scope], wide, deciding, word, agrees)


def _deciding(images: Interval, families: Interval | None, over: str) -> Interval:
    if over == "images":
        return images
    if families is None:
        raise GramLoopError(
            "an interval over families needs two families or more, each at the same severities"
        )
    return families if over == "families" else spanning([images, families]) or images


def _agreement(first: _Side, side: _Side) -> dict[str, float]:
    """By condition, the score of a model where the first one's predictions are the truth."""
    found = {}
    for key, store in first.stores.items():
        plan, other = store.plan, side.stores[key].plan
        task = store.task
        if plan.categories != other.categories:  # each model's own, without labels
            continue
        many = min(plan.pictures, other.pictures)
        kept = [
            {row["position"]: task.decode(row) for row in each.found[key].first(many)}
            for each in (first, side)
        ]
        rows = [
            task.statistics(two, task.as_truth(one, plan.truth_score), plan.classes)
            for place, one in kept[0].items()
            if one is not None and (two := kept[1].get(place)) is not None
        ]
        if rows:
            found[key] = task.score(Rows.of(rows), plan.classes)[task.metrics[0]]
    return found


def _notes(sides: Sequence[_Side], excluded: int) -> Iterator[str]:
    first, *others = sides
    if first.plan.label_free:
        yield f"Without labels {AGREEMENT_NOTE}, and each model is compared with its own clean prediction."
    if excluded:
        yield f"{excluded} images under a condition could not be used everywhere, and count for no model."
    for side in others:
        one, two = first.plan.versions, side.plan.versions
        changed = [
            f"{name} {one.get(name, 'none')} and {two.get(name, 'none')}"
            for name in sorted({*one, *two})
            if one.get(name) != two.get(name)
        ]
        if changed:
            yield f"{first.name} and {side.name} were made with {', '.join(changed)}."
        if side.machines() != first.machines():
            yield f"{first.name} and {side.name} ran on different machines; their times do not compare."


# the gate


def parse_gate(text: str) -> dict[str, float]:
    """The least difference in points that is accepted, for "clean", "shift" or both: "clean -0.5, shift -1.0"."""
    least: dict[str, float] = {}
    for part in text.split(","):
        found = _RULE.fullmatch(part.strip())
        if found is None or found[1] not in (CLEAN, SHIFT) or found[1] in least or float(found[2]) > 0:
            raise GramLoopError(
                f"the gate {text!r} cannot be read at {part.strip()!r}; it is clean, shift or both, once each, with the "
                'points that may be lost: "clean -0.5, shift -1.0"'
            )
        least[found[1]] = float(found[2])
    return least


def check_gate(gate: Collection[str], scopes: Collection[str]) -> None:
    """Refuse a gate on something that is not measured."""
    if lacking := [scope for scope in gate if scope not in scopes]:
        raise GramLoopError(
            f"the gate names {lacking[0]}, which is not measured; there is {', '.join(scopes)}"
        )


def judge_gate(gate: Mapping[str, float], comparison: ModelComparison) -> list[tuple[PairedRow, GateWord]]:
    """Every row that a gate names: failed where the interval is below the margin, passed where it is not partly below."""
    check_gate(gate, comparison.scopes)
    return [(row, _judged(row.deciding, gate[row.scope])) for row in comparison.rows if row.scope in gate]


def _judged(one: Interval, least: float) -> GateWord:
    return "failed" if one.high < least else "passed" if one.low >= least else "undecided"
