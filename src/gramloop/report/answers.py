"""The answers of a report: which method to use on each suite.

Use the cheapest method that helps and is not significantly worse than the best one. Cost is measured time, or work where
time was not measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from gramloop.evaluate.answer import (
    Answer,
    MethodGain,
    deploy_lines,
    keep_baseline,
    method_text,
    model_options,
    recommend,
    short_path,
)
from gramloop.evaluate.methods import BASELINE
from gramloop.report.load import load_runs
from gramloop.report.run import Run
from gramloop.report.stats import Evidence, compare_methods, deciding
from gramloop.report.tables import clean_run
from gramloop.util.files import file_digest

_TIME_STEP = 0.05  # times that differ by less are noise


def read_answers(folders: Sequence[Path | str], workers: int | None = None) -> list[Answer]:
    """The answers of folders of `gramloop evaluate`, with intervals over families of shifts."""
    runs = load_runs([Path(folder) for folder in folders], workers).runs
    return answers_of(runs, compare_methods(runs, workers=workers))


def answers_of(runs: Sequence[Run], evidence: Sequence[Evidence], folder: Path | None = None) -> list[Answer]:
    """One answer for every run; clean runs are part of the answers under shift where there are any.

    Args:
        runs: Loaded results.
        evidence: Their methods compared.
        folder: Where files with the recommended methods will be written.
    """
    found = {each.run.name: each for each in evidence}
    answered = [run for run in runs if run.shifted] or list(runs)
    answers = []
    for run in answered:
        answer = _answer(run, found.get(run.name), runs)
        if answer.method:
            name = "best.json" if len(answered) == 1 else f"best-{run.key}.json"
            answer = _with_deployment(answer, run, folder, name)
        answers.append(answer)
    return answers


def _answer(run: Run, evidence: Evidence | None, runs: Sequence[Run]) -> Answer:
    if evidence is None or not run.complete:
        return Answer(run.name, _no_answer(run), run.metric)
    clean = clean_run(run, runs) if run.shifted and not run.plan.label_free else None
    gains = tuple(method_gain(evidence, name, clean) for name in evidence.ranked if name != BASELINE)
    chosen = recommended(evidence)
    scope = "under shift" if run.shifted else "on clean images"
    if chosen:
        sentence = recommend(next(each for each in gains if each.method == chosen), run.metric, scope)
    else:
        sentence = keep_baseline(gains, run.metric, scope)
    return Answer(run.name, sentence, run.metric, chosen, gains, notes=tuple(_notes(evidence, chosen)))


def recommended(evidence: Evidence) -> str:
    """The cheapest method that helps and is not significantly worse than the best; empty where none helps."""
    if not evidence.gains:
        return ""
    helping = [name for name in evidence.ranked if name != BASELINE and evidence.helps(name)]
    alike = [name for name in helping if name == helping[0] or not evidence.differ(helping[0], name)]
    return min(alike, key=lambda name: _cost(evidence.run, name), default="")


def shown_methods(run: Run, evidence: Sequence[Evidence]) -> tuple[str, ...]:
    """The methods that figures show: the recommended one and the replay; otherwise the best one."""
    found = next((each for each in evidence if each.run is run and run.complete), None)
    chosen = recommended(found) if found is not None else ""
    names = [name for name in (chosen, run.main_replay) if name]
    if not names and found is not None:
        names = [name for name in found.ranked if name != BASELINE][:1]
    return tuple(dict.fromkeys(names or run.compared[:1]))


def _cost(run: Run, name: str) -> float:
    times = {each: run.time(each) for each in run.compared}
    if any(time is None for time in times.values()):
        return run.work(name)
    return max(1.0, round((times[name] or 1.0) / _TIME_STEP) * _TIME_STEP)


def method_gain(evidence: Evidence, name: str, clean: Run | None = None) -> MethodGain:
    """What the evidence says of one method of a complete run."""
    run, on_clean = evidence.run, None
    if clean is not None and name in clean.compared:
        scores = clean.score(BASELINE), clean.score(name)
        on_clean = scores if None not in scores else None
    interval = deciding(evidence.gains.get(name, ()))
    numbers = evidence.score(name), evidence.score(BASELINE)
    return MethodGain(name, *numbers, interval, run.work(name), run.time(name), on_clean)  # type: ignore[arg-type]


def _no_answer(run: Run) -> str:
    if run.changes_only:
        moved = ", ".join(
            f"{name} {100 - score:.2f}" for name in run.compared if (score := run.score(name)) is not None
        )
        return (
            "No answer: clean images without labels only show how far predictions change "
            f"(points of {run.metric}: {moved}). Evaluate a shifted suite, such as {run.suite.base}-c."
        )
    if not run.complete:
        lost = len(run.missing) + len(run.unscored)
        return f"No answer: {lost} of {len(run.plan.conditions)} conditions without a score."
    if BASELINE not in run.methods:
        return "No answer: the baseline was not evaluated, so there is nothing to compare with."
    return "No answer: the baseline is the only method that was evaluated."


def _notes(evidence: Evidence, chosen: str) -> Iterator[str]:
    """How the intervals were drawn, and what the choice owes to selection."""
    if not evidence.drawn:
        yield f"There is no interval: {evidence.resampled[0].reason}."
        return
    many, ranked = len(evidence.run.compared), [name for name in evidence.ranked if name != BASELINE]
    group = "both methods" if many == 2 else f"all {many} methods"
    together = f", and hold for {group} together" * (many > 1)
    yield f"Intervals are over {' and '.join(each.drawn_from for each in evidence.drawn)}{together}."
    if chosen and chosen != ranked[0]:
        yield f"{ranked[0]} gains more, but not significantly, and costs more."
    if chosen and many > 1 and (bias := evidence.selection_bias(ranked)) >= 0.005:
        yield f"As the best of {many} on these images, {ranked[0]} is overestimated by about {bias:.2f} points."


def _with_deployment(answer: Answer, run: Run, folder: Path | None, name: str) -> Answer:
    """With the lines that use the method: as a file of the report where there is one, otherwise as text."""
    plan, method = run.plan, run.method(answer.method)
    model, alone = model_options(plan.model), method.replay is not None
    stats = Path(plan.calibration) if method.calibration and plan.calibration else None
    known = stats is None or (stats.is_file() and file_digest(stats) == method.calibration)
    if folder is None or not known:
        file = "" if stats is None else short_path(stats)
        return replace(answer, deploy=tuple(deploy_lines(model, plan.task, method_text(method), alone, file)))
    lines = tuple(deploy_lines(model, plan.task, short_path(folder / name), alone))
    return replace(answer, deploy=lines, file=name, stack=method.stack, calibration=stats)
