"""The first tables: every suite with every method, how sure each gain is, and methods against each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from gramloop.errors import GramLoopError
from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.plan import Plan
from gramloop.metrics.bootstrap import UNDECIDED, coverage
from gramloop.metrics.scores import effective_robustness, mean_corruption_error, relative_performance
from gramloop.report.run import Run
from gramloop.report.stats import Evidence, deciding, decision
from gramloop.util.table import Cell, Column, Table

SCORE_DIGITS = 3  # of scores and gains, as the paper prints them
TEXT: Final = "text"


def method_table(
    title: str,
    heads: Sequence[Column],
    methods: Sequence[str],
    rows: Iterable[tuple[Sequence[Cell], Mapping[str, float | None]]],
    notes: Iterable[str] = (),
    *,
    changes_only: Callable[[Cell], bool] = lambda _: False,
    **options: Any,
) -> Table:
    """Scores of all methods, then the gain of each over the baseline.

    Args:
        title: one line.
        heads: the first columns.
        methods: all of them, the baseline among them or not.
        rows: cells of the first columns, and scores by method; gains are differences of unrounded scores.
        notes: sentences below.
        changes_only: for the first cell of a row, whether its scores only say how far predictions change.
        options: of the `Table`.
    """
    compared = [name for name in methods if name != BASELINE] if BASELINE in methods else []
    titles = ["Δ"] if len(compared) == 1 else [f"Δ {name}" for name in compared]
    columns = [Column(name, digits=SCORE_DIGITS) for name in methods]
    for name, heading in zip(compared, titles, strict=True):
        columns.append(Column(f"{name} gain", heading, digits=SCORE_DIGITS, signed=True))
    cells = []
    for head, scores in rows:
        base = None if changes_only(head[0]) else scores.get(BASELINE)
        gains = [points_between(scores.get(name), base) for name in compared]
        cells.append((*head, *(scores.get(name) for name in methods), *gains))
    return Table(title, (*heads, *columns), cells, notes, compared=methods, **options)


def points_between(score: float | None, base: float | None) -> float | None:
    """The difference of two scores; None where one of them is missing."""
    return None if score is None or base is None else score - base


def main_results(group: Sequence[Run], key: str = "main") -> Table:
    """Clean scores, mPC, COCO-O's mAP and effective robustness of runs that were made alike."""
    rows: list[tuple[tuple[str, str], Mapping[str, float | None]]] = []
    notes = []
    for run in group:
        rows.append(((run.name, run.score_title), {name: run.score(name) for name in run.methods}))
        if run.changes_only:
            notes.append(
                f"{run.name} has no labels: its agreement only says how much of the clean predictions stays, and no "
                "change of them is a gain or a loss."
            )
        if not run.complete:
            notes.append(f"{run.name} has no mean: conditions are missing.")
        if (clean := clean_coco_of(run, group)) is not None:
            rows.append(((run.name, "ER"), robustness_of(run, clean)))
            notes.append("ER is COCO-O's mAP less 0.45 times the AP on clean COCO, in points.")
    unlabelled = {run.name for run in group if run.changes_only}
    what = "Agreement with the clean prediction" if group[0].plan.label_free else "Scores"
    return method_table(
        "Main results",
        (Column("suite", "Suite", TEXT), Column("metric", "Metric", TEXT)),
        _methods_of(group),
        rows,
        dict.fromkeys(notes),
        changes_only=lambda name: name in unlabelled,
        key=key,
        caption=f"{what} in percent, higher is better; mPC is the unweighted mean over all shifted conditions. "
        "Differences are computed before rounding.",
    )


def _methods_of(runs: Sequence[Run]) -> tuple[str, ...]:
    names = dict.fromkeys(name for run in runs for name in run.methods)
    return tuple(sorted(names, key=lambda name: name != BASELINE))


def relative_results(group: Sequence[Run], key: str = "relative") -> Table | None:
    """What is left of the clean score, and errors against the baseline; None where neither is known."""
    methods = _methods_of(group)
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
    scores = (Column(name, digits=SCORE_DIGITS) for name in methods)
    return Table(
        "Relative to clean images and to the baseline",
        (Column("suite", "Suite", TEXT), Column("measure", "Measure", TEXT), *scores),
        rows,
        notes,
        key=key,
        caption="rPC: mPC in percent of the score on clean images, higher is better. mCE: errors (100 less the score) of a "
        "shift, summed over its severities and divided by those of the baseline of the same run, the mean over shifts, in "
        "percent; 100 is the baseline, lower is better.",
    )


def _clean_of(run: Run, group: Sequence[Run]) -> tuple[Run | None, str]:
    """The evaluation on the clean images of a run, or why the one that is there will not do."""
    clean = None if run.plan.label_free else clean_run(run, group)
    reason = "" if clean is None else _other_images(run.plan, clean.plan, clean.name)
    return (None if reason else clean), reason


def _other_images(shifted: Plan, clean: Plan, name: str) -> str:
    """How an evaluation on clean images has others than one on shifted images was made from, or nothing."""
    [many] = set(clean.conditions.values())
    if set(shifted.conditions.values()) != {many}:
        asked = ", ".join(map(str, sorted(set(shifted.conditions.values()))))
        return f"{name} has {many} images; rPC needs the {asked} of this evaluation"
    here, there = shifted.data.contents.get("clean"), clean.data.contents.get("clean")
    if here is not None and there is not None and here != there:
        return f"{name} was made with other images; rPC needs those of this evaluation, unshifted"
    return ""


def _relative(run: Run, clean: Run | None) -> dict[str, float]:
    if clean is None:
        return {}
    pairs = {name: (run.score(name), clean.score(name)) for name in run.methods if name in clean.methods}
    return {
        name: relative_performance(mean, base)
        for name, (mean, base) in pairs.items()
        if mean is not None and base
    }


def _errors(run: Run) -> dict[str, float]:
    if BASELINE not in run.methods:
        return {}
    try:
        reference = run.scores(BASELINE)
        return {name: mean_corruption_error(run.scores(name), reference, run.shifted) for name in run.methods}
    except GramLoopError:  # a baseline without errors is no reference
        return {}


def clean_run(run: Run, runs: Sequence[Run]) -> Run | None:
    """The complete evaluation of the same task on the clean images of the same set."""
    alike = (one for one in runs if one.suite.kind == "clean" and one.suite.base == run.suite.base)
    return next((one for one in alike if one.plan.task == run.plan.task and one.complete), None)


def clean_coco_of(run: Run, group: Sequence[Run]) -> Run | None:
    """The evaluation on clean COCO that belongs to one on COCO-O, if both are complete."""
    whole = run.suite.kind == "o" and run.plan.task == "detection" and run.complete
    return clean_run(run, group) if whole else None


def robustness_of(run: Run, clean: Run) -> dict[str, float | None]:
    """Effective robustness of the methods that both have."""
    found: dict[str, float | None] = {}
    for name in run.methods:
        shifted, base = run.score(name), clean.score(name) if name in clean.methods else None
        found[name] = None if shifted is None or base is None else effective_robustness(shifted, base)
    return found


def gains_table(evidence: Sequence[Evidence], key: str = "gains") -> Table:
    """Each method's gain with its intervals and the verdict."""
    rows: list[tuple[Cell, ...]] = []
    for place in range(max((len(each.resampled) for each in evidence), default=0)):
        for each in evidence:
            rows += _gain_rows(each, place)
    return Table(
        "How sure the gains are",
        (
            Column("suite", "Suite", TEXT),
            Column("method", "Method", TEXT),
            Column("gain", "Δ", digits=SCORE_DIGITS, signed=True),
            Column("interval", "95% CI", "interval", SCORE_DIGITS, visible=False),
            Column("corrected", "95% CI, corrected", "interval", SCORE_DIGITS, visible=False),
            Column("units", "Drawn from", TEXT),
            Column("coverage", "Covers", digits=1, unit="%", visible=False),
            Column("deciding", "95% interval", "interval", SCORE_DIGITS),
            Column("verdict", "Verdict", TEXT),
        ),
        rows,
        (*_reasons(evidence), *_GAIN_NOTES),
        key=key,
        caption=_gains_caption(evidence),
    )


def _gain_rows(evidence: Evidence, place: int) -> list[tuple[Cell, ...]]:
    drawn, run = evidence.resampled[place], evidence.run
    if drawn.scores:
        found = {
            method: next(each for each in evidence.gains[method] if each.drawn is drawn)
            for method in run.compared
        }
        return [
            (
                run.name, method, run.gain(method), each.interval, each.corrected, f"{drawn.units} {drawn.over}",
                100 * coverage(drawn.units), deciding(evidence.gains[method]), decision(evidence.gains[method]),
            )
            for method, each in found.items()
        ]  # fmt: skip
    if evidence.drawn or (place and not evidence.drawn):
        return []
    return [(run.name, method, run.gain(method), *[None] * 5, UNDECIDED) for method in run.compared]


def _reasons(evidence: Sequence[Evidence]) -> list[str]:
    silent = [each for each in evidence if not each.drawn]
    reasons = [
        f"{each.run.name}: no interval, for {drawn.reason}." for each in silent for drawn in each.resampled
    ]
    return list(dict.fromkeys(reasons))


_GAIN_NOTES = (
    "The interval is corrected for few units by Student's t and holds for all methods of a run together; where families "
    "and images were both drawn, it spans both. The CSV file adds the percentile interval of each method alone.",
)


def _gains_caption(evidence: Sequence[Evidence]) -> str:
    drawn = next(
        (difference.interval for each in evidence for difference in sum(each.gains.values(), ())), None
    )
    sentences = {
        "families": "Paired cluster bootstrap over shift families: a family is drawn with all its severities and for "
        "both methods; clean images take no part.",
        "images": "Paired bootstrap over images: an image is drawn with all its shifted versions and for both methods.",
    }
    over = dict.fromkeys(each.over for one in evidence for each in one.resampled)
    return " ".join(sentences[each] for each in over) + (
        "" if drawn is None else f" {drawn.replicates:,} replicates."
    )


# methods against each other


def matrix_table(evidence: Evidence) -> Table:
    """Every method against every other, best first, as marks; it stays narrow with any number of methods."""
    ranked, run = evidence.ranked, evidence.run
    numbered = list(enumerate(ranked, start=1))
    drawn = " and ".join(f"over {each.drawn_from}" for each in evidence.drawn)
    return Table(
        f"Which methods differ, {run.name}",
        (
            Column("rank", "#", digits=0),
            Column("method", "Method", TEXT),
            Column("score", run.score_title, digits=SCORE_DIGITS),
            *(Column(f"against {name}", str(place), TEXT) for place, name in numbered),
        ),
        [
            (place, name, evidence.score(name), *(_mark(evidence, name, other) for other in ranked))
            for place, name in numbered
        ],
        key=f"{run.key}-matrix",
        caption="A row's method against the one whose number heads the column: + better, − worse, · not significantly "
        f"different. Marks go by 95% intervals {drawn}: of the baseline by those that hold for all {len(run.compared)} "
        f"methods together, of other methods by those that hold for all {len(evidence.pairs)} pairs.",
    )


def _mark(evidence: Evidence, row: str, column: str) -> str:
    if row == column:
        return ""
    better, worse = sorted((row, column), key=evidence.ranked.index)
    return "·" if not evidence.differ(better, worse) else "+" if row == better else "−"


def pairs_table(evidence: Evidence) -> Table:
    """Every two methods of a run, the better one first."""
    rows: list[tuple[Cell, ...]] = [
        (
            better, worse, evidence.gain(better, worse), each.interval, each.corrected, each.joint,
            f"{each.drawn.units} {each.drawn.over}", evidence.apart(better, worse),
            "yes" if evidence.differ(better, worse) else "no",
        )
        for (better, worse), differences in evidence.pairs.items()
        for each in differences
    ]  # fmt: skip
    return Table(
        f"Every two methods, {evidence.run.name}",
        (
            Column("better", "Method", TEXT),
            Column("worse", "against", TEXT),
            Column("gain", "Δ", digits=SCORE_DIGITS, signed=True),
            Column("interval", "95% CI", "interval", SCORE_DIGITS, visible=False),
            Column("corrected", "95% CI, corrected", "interval", SCORE_DIGITS, visible=False),
            Column("joint", "95% CI, all pairs", "interval", SCORE_DIGITS, visible=False),
            Column("units", "Drawn from", TEXT),
            Column("deciding", "95% interval", "interval", SCORE_DIGITS),
            Column("verdict", "Significant", TEXT),
        ),
        rows,
        (
            f"The interval holds for all {len(evidence.pairs)} pairs together; that of a pair with the baseline is the one of "
            "its verdict. The CSV file adds the intervals of each pair alone.",
        ),
        key=f"{evidence.run.key}-pairs",
        caption=f"What a method gains over another in {evidence.run.score_title}, in points; families or images are drawn "
        "for both alike.",
    )
