"""The demonstration's tables: three tasks and four ways to predict, in two rows each, and condition by condition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gramloop.data.records import Task
from gramloop.demo.methods import BOTH, CHANGED, FREE, MITIGATIONS, ORDINARY, REPLAY, ways
from gramloop.evaluate.methods import BASELINE
from gramloop.models.tiny import suggested_replay
from gramloop.replay.config import describe_replay
from gramloop.report.run import Run
from gramloop.report.stats import Evidence
from gramloop.tasks.base import get_task
from gramloop.util.table import Cell, Column, Table


def summary_table(evidence: Sequence[Evidence], advice: str) -> Table:
    """Scores on clean scenes and over all shifts; gains and intervals are the report's own."""
    columns = (
        Column("task", "task", "text"),
        Column("scenes", "scenes", "text"),
        Column(ORDINARY, digits=2),
        *(Column(way, f"Δ {way}", "interval", 2, estimate=True) for way in CHANGED),
    )
    rows: list[tuple[Cell, ...]] = []
    for task in MITIGATIONS:
        for shifted, words in ((False, "clean"), (True, "mean of shifts")):
            own = next(each for each in evidence if _is(each.run, task, shifted))
            intervals = (own.gains[ways(task)[way]][0].interval for way in CHANGED)
            name = f"{own.run.task.title}, {own.run.metric}"
            rows.append((name, words, own.run.score(BASELINE), *intervals))
    notes = _about([each.run for each in evidence if each.run.shifted])
    return Table("The embedded model in four ways", columns, rows, notes, key="demo", caption=advice)


def _is(run: Run, task: Task, shifted: bool) -> bool:
    return run.plan.task == task and bool(run.shifted) == shifted


def _about(runs: Sequence[Run]) -> Iterator[str]:
    run = next(each for each in runs if each.plan.task == "semantic")
    blocks = {way: run.spent.blocks[name] / run.spent.images for way, name in ways("semantic").items()}
    counted = ", ".join(f"{way} {blocks[way]:g}" for way in (ORDINARY, REPLAY, FREE, BOTH))
    yield (
        f"{run.results[0].images} unseen scenes, {len(run.shifted)} shifts; Δ in points, with 95% intervals of "
        f"percentiles over scenes. Blocks executed: {counted}."
    )
    texts = dict.fromkeys(MITIGATIONS.values())
    free = "; ".join(
        f"{text} for {' and '.join(get_task(task).title for task, own in MITIGATIONS.items() if own == text)}"
        for text in texts
    )
    yield f"Replay: {describe_replay(suggested_replay())}. Free (of blocks): {free}."


def conditions_table(evidence: Sequence[Evidence]) -> Table:
    """Every shift: the ordinary score of each task, and what the other ways add to it."""
    runs = [each.run for each in evidence if each.run.shifted]
    columns = [Column("condition", "condition", "text")]
    for run in runs:
        columns.append(Column(run.metric, run.metric, digits=1))
        columns += [Column(f"{run.metric} {way}", f"Δ {way}", digits=2, signed=True) for way in CHANGED]
    rows: list[tuple[Cell, ...]] = []
    for condition in runs[0].shifted:
        cells: list[Cell] = [condition.display_name]
        for run in runs:
            ordinary, names = run.scores(BASELINE)[condition], ways(run.plan.task)
            cells += [ordinary, *(run.scores(names[way])[condition] - ordinary for way in CHANGED)]
        rows.append(tuple(cells))
    caption = (
        "The ordinary score of each task, and what replay, free mitigations and both add to it, in points."
    )
    return Table("Shift by shift", columns, rows, key="demo-conditions", caption=caption)
