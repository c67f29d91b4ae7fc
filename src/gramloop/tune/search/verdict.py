"""What the choice does where nothing was chosen: on other images, under the families searched and under others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gramloop.data.records import Task
from gramloop.errors import GramLoopError
from gramloop.metrics.ap import average_precision
from gramloop.metrics.bootstrap import (
    Delta,
    Interval,
    VerdictWord,
    Weights,
    cluster_bootstrap,
    image_bootstrap,
    verdict,
)
from gramloop.metrics.miou import mean_iou
from gramloop.tune.search.segments import SEGMENTS, segment_score
from gramloop.tune.search.split import Split, family
from gramloop.tune.search.worth import (
    CLEAN,
    PairedStatistics,
    condition_delta,
    depth_of,
    detections_of,
    truth_of,
)
from gramloop.util.table import Cell, Table, TableRepr

REPLICATES = 2000  # of the bootstrap over images
FEW_IMAGES, FEW_FAMILIES = 8, 4  # below these a percentile interval is too narrow to conclude from


@dataclass(frozen=True)
class JudgedPart(TableRepr):
    """One partition of the data: scores of both versions, and the gain's intervals."""

    name: str
    images: int
    families: int  # 0 for clean images
    ordinary: float
    mitigated: float
    over_families: Interval | None  # None with fewer than two families
    over_images: Interval | None  # None where conditions have images of their own
    label_free: bool = False  # scores are agreement with the clean prediction

    @property
    def gain(self) -> float:
        """In points, of the unrounded numbers."""
        return self.mitigated - self.ordinary

    @property
    def word(self) -> VerdictWord:
        """Helps or hurts where every interval says so, and one of them rests on enough to be trusted."""
        enough = self.over_images is not None and self.over_images.units >= FEW_IMAGES
        if self.over_images is None:
            enough = self.over_families is not None and self.over_families.units >= FEW_FAMILIES
        intervals = [each for each in (self.over_families, self.over_images) if each is not None]
        words = {verdict(each) for each in intervals}
        return words.pop() if enough and len(words) == 1 else "inconclusive"

    @property
    def widest(self) -> Interval | None:
        """The interval to quote: the one that reaches further."""
        intervals = [each for each in (self.over_families, self.over_images) if each is not None]
        return max(intervals, key=lambda each: each.high - each.low, default=None)

    @property
    def changes_only(self) -> bool:
        """Whether it only says how far clean predictions change: without labels, that is no gain and no loss."""
        return self.label_free and self.name == CLEAN

    def _table(self) -> Table:
        return parts_table([self], f"On unseen images: {self.name}")

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        if self.changes_only:
            return {"images": self.images, "families": 0, "agreement": _number(self.mitigated)}
        return {
            "images": self.images,
            "families": self.families,
            "ordinary": _number(self.ordinary),
            "mitigated": _number(self.mitigated),
            "gain": _number(self.gain),
            "over families": _interval(self.over_families),
            "over images": _interval(self.over_images),
            "verdict": self.word,
        }


def parts_table(parts: Sequence[JudgedPart], title: str, notes: Sequence[str] = ()) -> Table:
    """A row for each part, with the interval that reaches further."""
    columns = (
        "unseen images",
        "images",
        "families",
        "ordinary",
        "mitigated",
        "gain",
        "low",
        "high",
        "verdict",
    )
    return Table(title, columns, tuple(map(_row, parts)), tuple(notes))


def _row(part: JudgedPart) -> tuple[Cell, ...]:
    if part.changes_only:
        return part.name, part.images, None, None, f"{part.mitigated:.3f}", None, None, None, "agreement only"
    widest = part.widest
    ends = (None, None) if widest is None else (f"{widest.low:+.3f}", f"{widest.high:+.3f}")
    scores = (f"{part.ordinary:.3f}", f"{part.mitigated:.3f}", f"{part.gain:+.3f}")
    return part.name, part.images, part.families or None, *scores, *ends, part.word


def judge(
    task: Task,
    categories: Sequence[int],
    split: Split,
    cells: Mapping[str, Sequence[PairedStatistics]],
    label_free: bool = False,
) -> tuple[JudgedPart, ...]:
    """The parts of a verdict: searched families, other families and clean images, where there are any."""
    found = []
    for name, families in (
        ("searched families", split.seen),
        ("other families", split.unseen),
        (CLEAN, (CLEAN,)),
    ):
        keys = [key for key in cells if family(key) in families and cells[key]]
        if keys:
            part = _part(name, task, categories, {key: cells[key] for key in keys})
            found.append(replace(part, label_free=label_free))
    return tuple(found)


def _part(
    name: str, task: Task, categories: Sequence[int], cells: Mapping[str, Sequence[PairedStatistics]]
) -> JudgedPart:
    shared = _shared(cells)
    kept = cells if shared is None else {key: [shared[key][i] for i in sorted(shared[key])] for key in cells}
    deltas = {key: condition_delta(task, categories, each) for key, each in kept.items()}
    gains: dict[str, list[float]] = {}
    for key, delta in deltas.items():
        gains.setdefault(family(key), []).append(
            float(delta(np.ones((1, len(kept[key])), dtype=np.int64))[0])
        )
    ordinary, mitigated = (
        float(np.mean([_score(task, categories, each, version) for each in kept.values()]))
        for version in ("ordinary", "mitigated")
    )
    images = min(map(len, kept.values()))
    clean = name == CLEAN
    over_families = None
    if len(gains) > 1 and not clean:
        over_families = cluster_bootstrap(gains)
    over_images = None if shared is None else _over_images(deltas, next(iter(kept.values())))
    return JudgedPart(
        name, images, 0 if clean else len(gains), ordinary, mitigated, over_families, over_images
    )


def _shared(cells: Mapping[str, Sequence[PairedStatistics]]) -> dict[str, dict[str, PairedStatistics]] | None:
    """Images that every condition has, by id; None if there are fewer than two."""
    by_id = {key: {one.sample.image_id: one for one in each} for key, each in cells.items()}
    common = set.intersection(*(set(each) for each in by_id.values()))
    if len(common) < 2:
        return None
    return {key: {name: each[name] for name in common} for key, each in by_id.items()}


def _over_images(deltas: Mapping[str, Delta], images: Sequence[PairedStatistics]) -> Interval | None:
    """Drawn by image, or by block where neighbours belong together."""
    units = sorted({one.sample.unit for one in images})
    owner = np.searchsorted(units, [one.sample.unit for one in images])

    def delta(weights: Weights) -> NDArray[np.float64]:
        mean: NDArray[np.float64] = np.mean([each(weights[:, owner]) for each in deltas.values()], axis=0)
        return mean

    try:
        return image_bootstrap(delta, len(units), replicates=REPLICATES)
    except GramLoopError:  # too few images: some draws hold nothing that can be scored
        return None


def _score(
    task: Task, categories: Sequence[int], measured: Sequence[PairedStatistics], version: str
) -> float:
    if task == "detection":
        return average_precision(truth_of(measured, categories), detections_of(measured, version)).ap
    if task in SEGMENTS:
        score = segment_score(task, categories, [getattr(one, version) for one in measured])
        return float(score(np.ones((1, len(measured)), dtype=np.int64))[0])
    if task == "depth":
        return float(depth_of(measured, version).mean())
    counts = np.array([getattr(one, version)["counts"] for one in measured], dtype=np.int64)
    return float(mean_iou(counts.sum(axis=0)))


def _interval(interval: Interval | None) -> dict[str, Any] | None:
    if interval is None:
        return None
    return {"low": interval.low, "high": interval.high, "level": interval.level, "drawn from": interval.units}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
