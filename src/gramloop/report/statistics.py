"""How sure a gain is: paired intervals over shift families or over images, and what they say in plain words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.plan import AGREEMENT
from gramloop.metrics.bootstrap import (
    REPLICATES,
    SEED,
    Interval,
    VerdictWord,
    coverage,
    verdict,
    widened,
)
from gramloop.report.document import Verdict
from gramloop.report.resampling import Over, Resampled, resample
from gramloop.report.run import Run
from gramloop.util.table import Shown, ShownTable

TRUSTED = 0.90  # a percentile interval that covers less gives no verdict; the corrected one does


@dataclass(frozen=True)
class Gain(Shown):
    """What one method gains over the baseline on one run, and how sure that is."""

    resampled: Resampled
    method: str
    points: float | None  # None while conditions are missing
    interval: Interval | None = None  # percentiles, as the paper has them

    @property
    def run(self) -> Run:
        """Where."""
        return self.resampled.run

    @property
    def over(self) -> Over:
        """What was resampled."""
        return self.resampled.over

    @property
    def reason(self) -> str:
        """Why there is no interval."""
        return self.resampled.reason

    @property
    def corrected(self) -> Interval | None:
        """The interval widened for the few units it was drawn from."""
        return None if self.interval is None else widened(self.interval)

    @property
    def coverage(self) -> float | None:
        """How often such a percentile interval holds the truth, if effects are normal."""
        return None if self.interval is None else coverage(self.interval.units, self.interval.level)

    @property
    def deciding(self) -> Interval | None:
        """The interval that the verdict goes by: the corrected one where the other covers too little."""
        return None if self.interval is None else deciding(self.interval)

    @property
    def drawn_from(self) -> str:
        """What was resampled, in words."""
        return self.resampled.drawn_from

    @property
    def words(self) -> VerdictWord:
        """helps, hurts, inconclusive."""
        return "inconclusive" if self.deciding is None else verdict(self.deciding)

    def _shown(self) -> ShownTable:
        return verdict_of(self)._shown()


def deciding(interval: Interval) -> Interval:
    """What a verdict goes by: the percentile interval, or the corrected one where that covers too little."""
    return interval if coverage(interval.units, interval.level) >= TRUSTED else widened(interval)


def gains_of(
    runs: Sequence[Run],
    over: Over = "families",
    *,
    replicates: int = REPLICATES,
    seed: int = SEED,
    on_progress: Callable[[str], None] = lambda _: None,
    workers: int = 1,
) -> list[Gain]:
    """The gain of every method over the baseline, run by run; ``on_progress`` hears of every condition resampled."""
    found = []
    for run in runs:
        if run.changes_only or not run.replays:
            continue
        drawn = resample(
            run, over, replicates=replicates, seed=seed, on_progress=on_progress, workers=workers
        )
        for method in run.replays:
            ordinary, replayed = run.score(BASELINE), run.score(method)
            points = None if ordinary is None or replayed is None else replayed - ordinary
            interval = drawn.interval(drawn.difference(method, BASELINE)) if drawn.scores else None
            found.append(Gain(drawn, method, points, interval))
    return found


def resampled_of(gains: Sequence[Gain]) -> list[Resampled]:
    """What the gains were drawn from, each once."""
    return list({id(gain.resampled): gain.resampled for gain in gains}.values())


def verdict_of(gain: Gain) -> Verdict:
    """The gain in a sentence that anybody can read."""
    return Verdict(gain.run.name, gain.method, gain.words, gain.interval, _sentence(gain))


def verdicts_of(gains: Sequence[Gain]) -> list[Verdict]:
    """Of every run and method one; where families and images were both drawn, both have to say the same."""
    together: dict[tuple[str, str], list[Gain]] = {}
    for gain in gains:
        together.setdefault((gain.run.name, gain.method), []).append(gain)
    return [_agreed([gain for gain in same if gain.interval] or same[:1]) for same in together.values()]


def _agreed(gains: Sequence[Gain]) -> Verdict:
    first = verdict_of(gains[0])
    if len(gains) == 1:
        return first
    others = " ".join(
        f"Over {gain.interval.units} {gain.drawn_from} it is {_ends(gain.interval)}: {gain.words}{_caution(gain)}."
        for gain in gains[1:]
        if gain.interval
    )
    agree = len({gain.words for gain in gains}) == 1
    return replace(
        first, words=first.words if agree else "inconclusive", sentence=f"{first.sentence} {others}"
    )


def _sentence(gain: Gain) -> str:
    run, metric = gain.run, gain.run.metric
    if run.plan.label_free:
        metric = (
            f"{AGREEMENT.capitalize()} with the clean prediction ({metric.removeprefix(AGREEMENT).strip()})"
        )
    if gain.points is None:
        return f"There is no mean {metric}, for {gain.reason}."
    scope = f"over {len(run.shifted)} shifted conditions" if run.shifted else "on clean images"
    moved = f"{metric} {scope} changes by {signed(gain.points)} points"
    if gain.interval is None:
        return f"{moved}, without an interval: {gain.reason}."
    evidence = f"{gain.interval.level:.0%} interval {_ends(gain.interval)} over {gain.interval.units} {gain.drawn_from}"
    return f"{moved}, {evidence}{_caution(gain)}."


def _caution(gain: Gain) -> str:
    plain, corrected, share = gain.interval, gain.corrected, gain.coverage
    if plain is None or corrected is None or share is None or round(share, 2) >= plain.level:
        return ""
    words = (
        f"; drawn from so few it covers about {share:.0%}, and corrected for that it is {_ends(corrected)}"
    )
    if verdict(plain) == verdict(corrected):
        return words
    if gain.deciding is plain:
        return f"{words}, which no longer leaves out zero: take the verdict with care"
    return f"{words}, by which the verdict goes"


def _ends(interval: Interval) -> str:
    return f"{signed(interval.low)} to {signed(interval.high)}"


def signed(points: float, digits: int = 3) -> str:
    """Points with their sign and a true minus."""
    return f"{points:+.{digits}f}".replace("-", "−")
