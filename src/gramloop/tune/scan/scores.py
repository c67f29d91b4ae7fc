"""From what a scan measured to an order of windows: named scores, and how well they agree with true gains.

A score is a function of a `Scan` that gives one number per window, larger is more promising. Put your own into
`SCORES`, or hand a function to `ranked`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gramloop.errors import GramLoopError
from gramloop.replay.config import Window
from gramloop.tune.scan.scanning import Scan

Score = Callable[[Scan], NDArray[np.float64]]  # -> (W,)


@dataclass(frozen=True)
class Ranked:
    """One window and its score."""

    window: Window
    score: float


@dataclass(frozen=True)
class Correlation:
    """Spearman's rank correlation of a score with true gains, over ``windows`` windows."""

    rho: float
    p: float
    windows: int


def _log(values: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log10(values)


def small_drift(scan: Scan) -> NDArray[np.float64]:
    """Relations among patches change little."""
    return -_log(scan.typical("drift_median"))


def small_step(scan: Scan) -> NDArray[np.float64]:
    """The proposal lies near the state."""
    return -_log(scan.typical("step"))


def small_drift_per_step(scan: Scan) -> NDArray[np.float64]:
    """The blocks after the window damp a step rather than amplify it."""
    return -_log(scan.typical("amplification"))


def large_drift_per_step(scan: Scan) -> NDArray[np.float64]:
    """The opposite: a step matters to the blocks after it."""
    return _log(scan.typical("amplification"))


def contraction(scan: Scan) -> NDArray[np.float64]:
    """The second step is shorter than the first: the window heads for a fixed point."""
    return -_log(scan.typical("step_ratio"))


def turning_back(scan: Scan) -> NDArray[np.float64]:
    """The second step does not go on in the direction of the first."""
    return -scan.typical("cosine")


def small_growing_drift(scan: Scan) -> NDArray[np.float64]:
    """Drift x growth: the drift of the second ungated replay is small."""
    return -_log(scan.typical("drift_median") * scan.typical("growth_2"))


def shifted_step(scan: Scan) -> NDArray[np.float64]:
    """Shifted images are moved further than clean ones."""
    return _log(scan.shifted_to_clean("step"))


def steady_step(scan: Scan) -> NDArray[np.float64]:
    """The opposite: shifted images are moved no further than clean ones."""
    return -shifted_step(scan)


def shifted_drift(scan: Scan) -> NDArray[np.float64]:
    """Shifted images drift more than clean ones."""
    return _log(scan.shifted_to_clean("drift_median"))


def steady_drift(scan: Scan) -> NDArray[np.float64]:
    """The opposite: shifted images drift no more than clean ones."""
    return -shifted_drift(scan)


def cheap(scan: Scan) -> NDArray[np.float64]:
    """Few blocks, which means late; it looks at no image and is here to be beaten."""
    return -np.array([each.blocks for each in scan.costs()], dtype=np.float64)


SCORES: dict[str, Score] = {
    score.__name__: score
    for score in (
        small_drift,
        small_step,
        small_drift_per_step,
        large_drift_per_step,
        contraction,
        turning_back,
        small_growing_drift,
        shifted_step,
        steady_step,
        shifted_drift,
        steady_drift,
        cheap,
    )
}
"""Ways to rank the windows of a scan, by name; put your own here."""
DEFAULT = "small_drift"  # docs/scan.md: what little is known of its worth


def find_score(name: str) -> Score:
    """The score of that name."""
    if name not in SCORES:
        raise GramLoopError(f"there is no score {name!r}; there are {', '.join(SCORES)}")
    return SCORES[name]


def all_scores(scan: Scan) -> dict[str, NDArray[np.float64]]:
    """Every score that can be taken of this scan; without clean images some cannot."""
    taken = {}
    for name, score in SCORES.items():
        with suppress(GramLoopError):
            taken[name] = score(scan)
    return taken


def ranked(scan: Scan, score: str | Score = DEFAULT) -> list[Ranked]:
    """All windows, the most promising first; those without a finite score last."""
    values = (find_score(score) if isinstance(score, str) else score)(scan)
    order = np.argsort(-np.where(np.isnan(values), -np.inf, values), kind="stable")
    return [Ranked(scan.windows[place], float(values[place])) for place in order]


def rank_correlation(scan: Scan, gains: Mapping[Window, float]) -> dict[str, Correlation]:
    """How well each score orders windows by their true gains, the best first.

    gains: window -> what replaying it gained, in any unit, for at least three windows of the scan. A score that
    cannot be taken (no clean images) or is the same for all windows gets NaN and comes last.
    """
    from scipy.stats import spearmanr

    places = [place for place, window in enumerate(scan.windows) if window in gains]
    if len(places) < 3:
        raise GramLoopError(f"gains of {len(places)} scanned windows are given; a rank correlation needs 3")
    true = np.array([gains[scan.windows[place]] for place in places])
    found, taken = {}, all_scores(scan)
    for name in SCORES:
        values = taken.get(name, np.full(len(scan.windows), np.nan))[places]
        finite = np.isfinite(values) & np.isfinite(true)
        if len(set(values[finite])) < 2 or len(set(true[finite])) < 2:
            found[name] = Correlation(np.nan, np.nan, int(finite.sum()))
            continue
        result = spearmanr(values[finite], true[finite])
        found[name] = Correlation(float(result.statistic), float(result.pvalue), int(finite.sum()))
    return dict(sorted(found.items(), key=lambda entry: -np.nan_to_num(entry[1].rho, nan=-2.0)))
