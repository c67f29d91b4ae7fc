"""All figures of a report, from loaded results; what cannot be drawn is said in a sentence instead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gramloop.errors import GramLoopError
from gramloop.evaluate.methods import BASELINE
from gramloop.report.consistency import gram_consistency
from gramloop.report.costs import time_of, work_of
from gramloop.report.document import RenderedFigure
from gramloop.report.figures.consistency import consistency_figure
from gramloop.report.figures.cost import Point, gain_against_cost
from gramloop.report.figures.exemplars import parse
from gramloop.report.figures.heat import Gains, severity_heat
from gramloop.report.figures.kept import Images, kept_images
from gramloop.report.figures.showing import diagnostics, predictions
from gramloop.report.figures.style import Drawn
from gramloop.report.load import LoadedRuns, OnProgress
from gramloop.report.run import Run
from gramloop.report.statistics import Gain, gains_of

SECTIONS = ("severity", "tradeoff", "consistency", "diagnostic", "predictions")


@dataclass
class Figures:
    """Figures, and sentences about those left out."""

    figures: list[RenderedFigure] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def draw_figures(
    loaded: LoadedRuns,
    exemplars: Sequence[str] = (),
    pdf: bool = True,
    gains: Sequence[Gain] | None = None,
    on_progress: OnProgress = lambda _: None,
) -> Figures:
    """Every figure that the results allow.

    Args:
        loaded: the results.
        exemplars: images to show, ``CONDITION:IMAGE``; without them the best, the worst and a typical one are.
        pdf: draw each also for paper.
        gains: intervals that were computed already.
        on_progress: called with the title of each figure that is about to be rendered.
    """
    result = Figures()
    wanted = [parse(text) for text in exemplars]
    missing = dict.fromkeys(wanted)
    known = gains if gains is not None else gains_of(loaded.runs)

    def add(section: str, figures: Iterable[tuple[str, Drawn]], failure: str = "") -> None:
        try:
            for key, drawn in figures:
                on_progress(drawn.title)
                files = drawn.png(), drawn.pdf() if pdf else None
                result.figures.append(
                    RenderedFigure(key, drawn.title, drawn.caption, *files, drawn.alt, section)
                )
        except GramLoopError as error:
            if not failure:
                raise
            result.remarks.append(f"{failure}: {error}.".replace("..", "."))

    for group in loaded.groups:
        add("severity", _suites(group))
    for run in loaded.runs:
        add("severity", _heat(run))
        add("tradeoff", _cost(run, [gain for gain in known if gain.run is run]))
        add("consistency", _consistency(run), f"Gram consistency of {run.name} is not drawn")
        method = main_method(run)
        kept = kept_images(run, method) if method in run.replays else []
        chosen = [(each, image) for each in wanted for image in kept if image.is_called(*each)]
        for each, _ in chosen:
            missing.pop(each, None)
        if kept and (chosen or not wanted):
            shown = Images(run), method, kept, [image for _, image in chosen]
            failure = f"Figures with images of {run.name} are left out"
            add("diagnostic", diagnostics(*shown), failure)
            add("predictions", predictions(*shown), failure)
    if missing:
        condition, image = next(iter(missing))
        raise GramLoopError(
            f"no results keep a picture of image {image} under {condition}; evaluate keeps those of the first "
            "images of every condition (--pictures N)"
        )
    result.remarks = list(dict.fromkeys(result.remarks))
    return result


def _suites(group: Sequence[Run]) -> Iterator[tuple[str, Drawn]]:
    """Gains by suite and severity, where there are several suites to compare."""
    rows: dict[tuple[str, int], float] = {}
    method = main_method(group[0])
    for run in group:
        compared = run.compare(method) if method in run.replays else None
        if compared is not None and all(condition.severity for condition in run.shifted):
            for severity, scores in compared.by_severity().items():
                rows[run.name, severity] = scores.delta
    if len({name for name, _ in rows}) > 1:
        metrics = " and ".join(dict.fromkeys(run.metric for run in group))
        yield f"suites-severity-{group[0].key}", severity_heat(Gains.of(rows, metrics, method, "suite"))


def _heat(run: Run) -> Iterator[tuple[str, Drawn]]:
    """Gains by shift and severity, one figure for each Gram-gated method."""
    if BASELINE not in run.methods or not run.shifted:
        return
    ordinary = run.scores(BASELINE)
    for method in run.gated:
        scores = run.scores(method)
        gains = {
            (each.name, each.severity): scores.get(each, float("nan")) - ordinary.get(each, float("nan"))
            for each in run.shifted
        }
        drawn = severity_heat(Gains.of(gains, run.metric, method))
        yield f"{run.key}-severity-{method}", drawn.of(run.name)


def _cost(run: Run, gains: Sequence[Gain]) -> Iterator[tuple[str, Drawn]]:
    """Gain against work and time of all methods."""
    first = {gain.method: gain for gain in reversed(gains)}  # of families and images, what was drawn first
    points = []
    for method in run.replays:
        gain = first.get(method)
        if gain is not None and gain.points is not None:
            span = gain.deciding
            low, high = (None, None) if span is None else (span.low, span.high)
            points.append(Point(method, work_of(run, method), gain.points, low, high, time_of(run, method)))
    if points and run.shifted:
        over = next((gain.drawn_from for gain in gains if gain.interval is not None), "shift families")
        yield f"{run.key}-cost", gain_against_cost(points, run.metric, over=over).of(run.name)


def _consistency(run: Run) -> Iterator[tuple[str, Drawn]]:
    """Where each trajectory ends, if evaluate stored it."""
    for found in gram_consistency(run) if run.shifted else ():
        yield f"{run.key}-consistency-{found.method}", consistency_figure(found).of(run.name)


def main_method(run: Run) -> str:
    """The method that figures of one method show: gramloop, otherwise the first Gram-gated one, or the first."""
    return "gramloop" if "gramloop" in run.gated else (*run.gated, *run.replays, "")[0]
