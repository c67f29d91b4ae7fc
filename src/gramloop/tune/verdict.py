"""What a candidate does on images that nothing was chosen on: under the families searched, under others, and clean."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gramloop.errors import GramLoopError
from gramloop.metrics.bootstrap import (
    UNDECIDED,
    Delta,
    Interval,
    VerdictWord,
    Weights,
    cluster_bootstrap,
    image_bootstrap,
    spanning,
    verdict,
    widened,
)
from gramloop.tune.gain import PairedRow, PairedRows, Scoring
from gramloop.tune.split import CLEAN, Split, family
from gramloop.util.table import Cell, Table, TableRepr

HOLDOUT_REPLICATES = 2000  # of the bootstrap over images


@dataclass(frozen=True)
class HoldoutResult(TableRepr):
    """One part of the held-out data: the scores of baseline and candidate, and the gain's intervals."""

    name: str
    images: int
    families: int  # 0 for clean images
    baseline: float
    mitigated: float
    over_families: Interval | None  # None with fewer than two families
    over_images: Interval | None  # None where conditions have different images
    label_free: bool = False  # scores are agreement with the clean prediction

    @property
    def gain(self) -> float:
        """In points, of the unrounded scores."""
        return self.mitigated - self.baseline

    @property
    def intervals(self) -> dict[str, Interval]:
        """The intervals that there are, by what was resampled."""
        found = {"families": self.over_families, "images": self.over_images}
        return {name: each for name, each in found.items() if each is not None}

    @cached_property
    def interval(self) -> Interval | None:
        """The one that decides: it spans what families and images give, each corrected for few units."""
        return spanning(map(widened, self.intervals.values()))

    @property
    def word(self) -> VerdictWord:
        """Whether it helps or hurts, by that interval."""
        return UNDECIDED if self.interval is None else verdict(self.interval)

    @property
    def changes_only(self) -> bool:
        """Whether it only says how far clean predictions change: without labels, that is no gain and no loss."""
        return self.label_free and self.name == CLEAN

    @property
    def where(self) -> str:
        """Such as "3 searched families" or "clean images"."""
        name = self.name.replace("families", "family") if self.families == 1 else self.name
        return "clean images" if self.name == CLEAN else f"{self.families} {name}"

    def _table(self) -> Table:
        return holdout_table([self], "Gain on images not searched")

    def __str__(self) -> str:
        """In words."""
        if self.changes_only:
            return f"clean predictions change by {-self.gain:.2f} points, for better or worse"
        points = "points of agreement with the clean prediction" if self.label_free else "points"
        found = self.interval
        span = [] if found is None else [f"{found.level:.0%} interval [{found.low:+.2f}, {found.high:+.2f}]"]
        return f"{self.gain:+.2f} {points} on {self.where} ({', '.join([*span, self.word])})"

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        if self.changes_only:
            return {"images": self.images, "families": 0, "agreement": finite(self.mitigated)}
        return {
            "images": self.images,
            "families": self.families,
            "baseline score": finite(self.baseline),
            "mitigated score": finite(self.mitigated),
            "gain": finite(self.gain),
            "over families": _interval_json(self.over_families),
            "over images": _interval_json(self.over_images),
            "verdict": self.word,
        }


def holdout_table(results: Sequence[HoldoutResult], title: str, notes: Sequence[str] = ()) -> Table:
    """A row for each part of the held-out data."""
    columns = ("held out", "images", "baseline", "gain", "95% interval", "")
    return Table(title, columns, tuple(map(_row, results)), tuple(notes))


def _row(result: HoldoutResult) -> tuple[Cell, ...]:
    if result.changes_only:
        note = f"{-result.gain:.2f} points changed"
        return result.where, result.images, None, None, None, note
    found = result.interval
    span = None if found is None else f"[{found.low:+.2f}, {found.high:+.2f}]"
    scores = f"{result.baseline:.2f}", f"{result.gain:+.2f}"
    return result.where, result.images, *scores, span, result.word


def judge(
    scoring: Scoring, split: Split, measured: PairedRows, label_free: bool = False
) -> tuple[HoldoutResult, ...]:
    """The results of one candidate: searched families, other families and clean images, where there are any."""
    found = []
    parts = (("searched families", split.seen), ("other families", split.unseen), (CLEAN, (CLEAN,)))
    for name, families in parts:
        shown = {key: rows for key, rows in measured.items() if family(key) in families and rows}
        if shown:
            found.append(_judge(name, scoring, shown, label_free))
    return tuple(found)


def _judge(name: str, scoring: Scoring, measured: PairedRows, label_free: bool) -> HoldoutResult:
    shared = _shared_images(measured)
    kept = measured if shared is None else shared
    deltas = {key: scoring.delta(rows) for key, rows in kept.items()}
    gains: dict[str, list[float]] = {}
    for key, delta in deltas.items():
        every = np.ones((1, len(kept[key])), dtype=np.int64)
        gains.setdefault(family(key), []).append(float(delta(every)[0]))
    baseline, mitigated = (
        float(np.mean([scoring.score([getattr(one, version) for one in rows]) for rows in kept.values()]))
        for version in ("baseline", "candidate")
    )
    return HoldoutResult(
        name,
        min(map(len, kept.values())),
        0 if name == CLEAN else len(gains),
        baseline,
        mitigated,
        cluster_bootstrap(gains) if len(gains) > 1 else None,
        None if shared is None else _over_images(deltas, next(iter(shared.values()))),
        label_free,
    )


def _shared_images(measured: PairedRows) -> dict[str, list[PairedRow]] | None:
    """The images that every condition has, in the order of their ids; None if there are fewer than two."""
    by_id = {key: {one.sample.image_id: one for one in rows} for key, rows in measured.items()}
    common = sorted(set.intersection(*(set(each) for each in by_id.values())))
    return None if len(common) < 2 else {key: [rows[name] for name in common] for key, rows in by_id.items()}


def _over_images(deltas: Mapping[str, Delta], rows: Sequence[PairedRow]) -> Interval | None:
    """Resampled by image, or by block where neighbours belong together."""
    units = sorted({one.sample.unit for one in rows})
    owner = np.searchsorted(units, [one.sample.unit for one in rows])

    def delta(weights: Weights) -> NDArray[np.float64]:
        mean: NDArray[np.float64] = np.mean([each(weights[:, owner]) for each in deltas.values()], axis=0)
        return mean

    try:
        return image_bootstrap(delta, len(units), replicates=HOLDOUT_REPLICATES)
    except GramLoopError:  # too few images: some draws hold nothing that can be scored
        return None


def _interval_json(interval: Interval | None) -> dict[str, Any] | None:
    if interval is None:
        return None
    return {"low": interval.low, "high": interval.high, "level": interval.level, "drawn from": interval.units}


def finite(value: float) -> float | None:
    """The value, or None where there is none."""
    return value if math.isfinite(value) else None
