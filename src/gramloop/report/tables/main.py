"""The first tables: every suite with every method, and how sure each gain is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gramloop.errors import GramLoopError
from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.results import other_images
from gramloop.metrics.robustness import effective_robustness, mean_corruption_error, relative_performance
from gramloop.report.run import Run
from gramloop.report.statistics import Gain
from gramloop.report.tables.table import Cell, Column, Table

DIGITS = 3  # of scores and gains, as the paper prints them


def method_columns(methods: Sequence[str]) -> tuple[Column, ...]:
    """A column for each method, then one for the gain of each over the baseline."""
    scores = (Column(name, name, digits=DIGITS) for name in methods)
    replays = _compared(methods)
    titles = ["Δ"] if len(replays) == 1 else [f"Δ {name}" for name in replays]
    gains = zip(replays, titles, strict=True)
    return (*scores, *(Column(f"{name} gain", title, digits=DIGITS, signed=True) for name, title in gains))


def method_cells(
    methods: Sequence[str], scores: Mapping[str, float | None], changes_only: bool = False
) -> tuple[Cell, ...]:
    """The cells of `method_columns`; gains are differences of unrounded scores.

    There are none where scores only say how far predictions change.
    """
    ordinary = None if changes_only else scores.get(BASELINE)
    each = {name: scores.get(name) for name in methods}
    gains = (_difference(each[name], ordinary) for name in _compared(methods))
    return (*each.values(), *gains)


def _compared(methods: Sequence[str]) -> list[str]:
    return [name for name in methods if name != BASELINE] if BASELINE in methods else []


def _difference(score: float | None, ordinary: float | None) -> float | None:
    return None if score is None or ordinary is None else score - ordinary


def methods_of(runs: Sequence[Run]) -> tuple[str, ...]:
    """All methods of some runs, the baseline first."""
    names = dict.fromkeys(name for run in runs for name in run.methods)
    return tuple(sorted(names, key=lambda name: name != BASELINE))


def main_results(group: Sequence[Run], key: str = "main") -> Table:
    """Clean scores, mPC, COCO-O's mAP and effective robustness of runs that were made alike."""
    methods = methods_of(group)
    columns = (Column("suite", "Suite", "text"), Column("metric", "Metric", "text"), *method_columns(methods))
    rows: list[tuple[Cell, ...]] = []
    notes = []
    for run in group:
        scores = {name: run.score(name) for name in run.methods}
        rows.append((run.name, run.score_title, *method_cells(methods, scores, run.changes_only)))
        if run.changes_only:
            notes.append(
                f"{run.name} has no labels: its agreement only says how much of the clean predictions stays, and no "
                "change of them is a gain or a loss."
            )
        if not run.complete:
            notes.append(f"{run.name} has no mean: conditions are missing.")
        if (clean := clean_coco_of(run, group)) is not None:
            robust = robustness_of(run, clean)
            rows.append((run.name, "ER", *method_cells(methods, robust)))
            notes.append("ER is COCO-O's mAP less 0.45 times the AP on clean COCO, in points.")
    what = "Agreement with the clean prediction" if group[0].plan.label_free else "Scores"
    return Table(
        key,
        "Main results",
        f"{what} in percent, higher is better; mPC is the unweighted mean over all shifted conditions. "
        "Differences are computed before rounding.",
        columns,
        tuple(rows),
        methods,
        tuple(dict.fromkeys(notes)),
    )


def relative_results(group: Sequence[Run], key: str = "relative") -> Table | None:
    """What is left of the clean score, and errors against the baseline; None where neither is known."""
    methods = methods_of(group)
    rows: list[tuple[Cell, ...]] = []
    notes: list[str] = []
    for run in group:
        if not run.suite.generated or not run.complete:
            continue
        clean, reason = _clean_of(run, group)
        notes += [f"{run.name} has no rPC: {reason}."] if reason else []
        for name, values in (("rPC", _relative(run, clean)), ("mCE", _errors(run))):
            if values:
                rows.append((run.name, name, *(values.get(method) for method in methods)))
    if not rows:
        return None
    return Table(
        key,
        "Relative to clean images and to the baseline",
        "rPC: mPC in percent of the score on clean images, higher is better. mCE: errors (100 less the score) of a shift, "
        "summed over its severities and divided by those of the baseline of the same run, the mean over shifts, in percent; "
        "100 is the baseline, lower is better.",
        (
            Column("suite", "Suite", "text"),
            Column("measure", "Measure", "text"),
            *(Column(name, name, digits=DIGITS) for name in methods),
        ),
        tuple(rows),
        notes=tuple(notes),
    )


def _clean_of(run: Run, group: Sequence[Run]) -> tuple[Run | None, str]:
    """The evaluation on the clean images of a run, or why the one that is there will not do."""
    if run.plan.label_free:
        return None, ""
    alike = [one for one in group if one.suite.kind == "clean" and one.suite.base == run.suite.base]
    clean = next((one for one in alike if one.plan.task == run.plan.task and one.complete), None)
    reason = "" if clean is None else other_images(run.plan, clean.plan, clean.name)
    return (None if reason else clean), reason


def _relative(run: Run, clean: Run | None) -> dict[str, float]:
    found = {}
    for name in run.methods if clean is not None else ():
        assert clean is not None
        mean, ordinary = run.score(name), clean.score(name) if name in clean.methods else None
        if mean is not None and ordinary is not None and ordinary > 0:
            found[name] = relative_performance(mean, ordinary)
    return found


def _errors(run: Run) -> dict[str, float]:
    if BASELINE not in run.methods:
        return {}
    try:
        reference = run.scores(BASELINE)
        return {name: mean_corruption_error(run.scores(name), reference, run.shifted) for name in run.methods}
    except GramLoopError:  # a baseline without errors is no reference
        return {}


def clean_coco_of(run: Run, group: Sequence[Run]) -> Run | None:
    """The evaluation on clean COCO that belongs to one on COCO-O, if both are complete."""
    if run.suite.kind != "o" or run.plan.task != "detection" or not run.complete:
        return None
    clean = (one for one in group if one.suite.kind == "clean" and one.suite.base == run.suite.base)
    return next((one for one in clean if one.plan.task == "detection" and one.complete), None)


def robustness_of(run: Run, clean: Run) -> dict[str, float | None]:
    """Effective robustness of the methods that both have."""
    found: dict[str, float | None] = {}
    for name in run.methods:
        shifted, ordinary = run.score(name), clean.score(name) if name in clean.methods else None
        known = shifted is not None and ordinary is not None
        found[name] = effective_robustness(shifted, ordinary) if known else None  # type: ignore[arg-type]
    return found


def gains_table(gains: Sequence[Gain], key: str = "gains") -> Table:
    """Each method's gain with its interval, as percentiles and corrected for few units, and the verdict."""
    columns = (
        Column("suite", "Suite", "text"),
        Column("method", "Method", "text"),
        Column("gain", "Δ", digits=DIGITS, signed=True),
        Column("interval", "95% CI", "interval", digits=DIGITS),
        Column("corrected", "95% CI, corrected", "interval", digits=DIGITS),
        Column("units", "Drawn from", "text"),
        Column("coverage", "Covers", digits=1, unit="%"),
        Column("verdict", "Verdict", "text"),
    )
    rows = tuple(
        (
            gain.run.name,
            gain.method,
            gain.points,
            gain.interval,
            gain.corrected,
            f"{gain.interval.units} {gain.over}" if gain.interval else None,
            None if gain.coverage is None else 100 * gain.coverage,
            gain.words,
        )
        for gain in gains
        if gain.interval or not _elsewhere(gain, gains)
    )
    reasons = dict.fromkeys(
        f"{gain.run.name}: no interval, for {gain.reason}."
        for gain in gains
        if gain.reason and not _elsewhere(gain, gains)
    )
    return Table(
        key, "How sure the gains are", _gains_caption(gains), columns, rows, notes=(*reasons, *_NOTES)
    )


def _elsewhere(gain: Gain, gains: Sequence[Gain]) -> bool:
    """Whether the same gain has an interval over something else."""
    alike = (each for each in gains if (each.run.name, each.method) == (gain.run.name, gain.method))
    return any(each.interval for each in alike)


_NOTES = (
    "“Covers” is how often such a percentile interval holds the true gain if the effects of its units are normal; "
    "the corrected interval, stretched by Student's t, is meant to hold it in 95 of 100 cases.",
    "The verdict goes by the percentile interval where that covers at least 90%, else by the corrected one.",
)


def _gains_caption(gains: Sequence[Gain]) -> str:
    drawn = next((gain.interval for gain in gains if gain.interval), None)
    times = "" if drawn is None else f" {drawn.replicates:,} replicates."
    said = {
        "families": "Paired cluster bootstrap over shift families: a family is drawn with all its severities and for "
        "both methods; clean images take no part.",
        "images": "Paired bootstrap over images: an image is drawn with all its shifted versions and for both methods.",
    }
    drawn_over = dict.fromkeys(gain.over for gain in gains) or ("families",)
    return " ".join(said[over] for over in drawn_over) + times
