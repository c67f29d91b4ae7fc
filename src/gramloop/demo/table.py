"""The demonstration's table: three tasks, condition by condition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gramloop.core.config import ReplayConfig
from gramloop.core.settings import describe_replay
from gramloop.demo.experiment import TASKS
from gramloop.evaluate.methods import BASELINE, GRAMLOOP
from gramloop.metrics.bootstrap import Interval, image_draws, mean_interval
from gramloop.report.measure import used_ids
from gramloop.report.resampling import stored_score
from gramloop.report.run import Run
from gramloop.report.statistics import Gain, verdict_of
from gramloop.report.tables.table import Cell, Column, Table


def summary_table(gains: Sequence[Gain], replay: ReplayConfig, replicates: int) -> Table:
    """Scores clean, under each shift and over all of them; intervals are over images.

    ``gains`` are the report's: means and verdicts here are the same as there.
    """
    own = {(gain.run.plan.task, bool(gain.run.shifted)): gain for gain in gains if gain.method == GRAMLOOP}
    clean, shifted = ([own[task, under] for task in TASKS] for under in (False, True))
    columns = [Column("condition", "condition", "text")]
    for run in (gain.run for gain in shifted):
        columns.append(Column(run.metric, run.metric))
        columns.append(Column(f"{run.metric} replayed", "replayed"))
        columns.append(Column(f"{run.metric} gain", "Δ, 95% CI", "interval", estimate=True))
    rows: list[tuple[Cell, ...]] = [("clean", *_mean_cells(clean))]
    by_condition = zip(*(_condition_cells(gain.run, replicates) for gain in shifted), strict=True)
    for condition, cells in zip(shifted[0].run.shifted, by_condition, strict=True):
        rows.append((condition.display_name, *(cell for task in cells for cell in task)))
    rows.append(("mean of shifts", *_mean_cells(shifted)))
    return Table(
        "demo",
        "The embedded model, ordinary and replayed",
        _caption(shifted[0].run, replay),
        tuple(columns),
        tuple(rows),
        notes=tuple(_verdicts(shifted)),
        footer=1,
    )


def _mean_cells(gains: Sequence[Gain]) -> Iterator[Cell]:
    for gain in gains:
        ordinary, interval = gain.run.score(BASELINE), gain.interval
        assert ordinary is not None
        assert interval is not None
        yield from _cells(ordinary, interval)


def _condition_cells(run: Run, replicates: int) -> Iterator[tuple[Cell, ...]]:
    for condition in run.shifted:
        units = run.units(condition.key)
        draws = [
            image_draws(stored_score(run, units, method), len(used_ids(units)), replicates=replicates)
            for method in (BASELINE, GRAMLOOP)
        ]
        interval = mean_interval([draws[1] - draws[0]], len(used_ids(units)))
        yield _cells(run.scores(BASELINE)[condition], interval)


def _cells(ordinary: float, interval: Interval) -> tuple[Cell, ...]:
    return ordinary, ordinary + interval.estimate, interval


def _caption(run: Run, replay: ReplayConfig) -> str:
    ordinary, replayed = (run.spent.blocks[method] / run.spent.images for method in (BASELINE, GRAMLOOP))
    return (
        f"{run.results[0].images} unseen scenes; {describe_replay(replay)}; "
        f"{ordinary:g} blocks become {replayed:g}, both predictions included"
    )


def _verdicts(gains: Sequence[Gain]) -> Iterator[str]:
    for task, gain in zip(("Segmentation", "Detection", "Depth"), gains, strict=True):
        said = verdict_of(gain)
        yield f"{task} under shift: {said.words}. {said.sentence}"
