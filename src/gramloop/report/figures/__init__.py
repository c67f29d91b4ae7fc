"""The figures of a report: `draw_figures` draws those that loaded results allow; each figure takes plain arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gramloop.errors import GramLoopError
from gramloop.evaluate.methods import BASELINE
from gramloop.report.consistency import consistency_figure, gram_consistency
from gramloop.report.document import RenderedFigure
from gramloop.report.figures.cost import MethodPoint, gain_against_cost
from gramloop.report.figures.heat import Gains, severity_heat
from gramloop.report.figures.images import (
    ShownImages,
    diagnostic_figures,
    kept_images,
    parse_exemplar,
    prediction_figures,
)
from gramloop.report.load import LoadedRuns, OnProgress
from gramloop.report.run import Run
from gramloop.report.stats import Evidence
from gramloop.util.plotting import CaptionedFigure

SECTIONS = ("severity", "tradeoff", "consistency", "diagnostic", "predictions")
Named = Iterator[tuple[str, CaptionedFigure]]  # by the key that names the files


@dataclass
class Figures:
    """Figures, and why others were left out."""

    figures: list[RenderedFigure] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def add(
        self,
        section: str,
        named: Iterable[tuple[str, CaptionedFigure]],
        pdf: bool,
        on_progress: OnProgress,
        failure: str,
    ) -> None:
        """Render figures of a section; ``failure`` says what is missing where that cannot be done."""
        try:
            for key, drawn in named:
                on_progress(drawn.title)
                files = drawn.png(), drawn.pdf() if pdf else None
                self.figures.append(
                    RenderedFigure(key, drawn.title, drawn.caption, *files, drawn.alt, section)
                )
        except GramLoopError as error:
            self.remarks.append(f"{failure}: {error}.".replace("..", "."))


def draw_figures(
    loaded: LoadedRuns,
    evidence: Sequence[Evidence] = (),
    exemplars: Sequence[str] = (),
    pdf: bool = True,
    on_progress: OnProgress = lambda _: None,
) -> Figures:
    """Every figure that the results allow.

    Args:
        loaded: The results.
        evidence: Their methods compared, for the figures of gains against cost.
        exemplars: Images to show, ``CONDITION:IMAGE``; without them the best, the worst and a typical one are.
        pdf: Draw each also for paper.
        on_progress: Called with the title of each figure that is about to be rendered.
    """
    result = Figures()
    wanted = [parse_exemplar(text) for text in exemplars]
    missing = dict.fromkeys(wanted)
    for group in loaded.groups:
        result.add("severity", _suites(group), pdf, on_progress, "Gains by suite are not drawn")
    for run in loaded.runs:
        failure = f"A figure of {run.name} is left out"
        result.add("severity", _heat(run), pdf, on_progress, failure)
        result.add("tradeoff", _cost(run, evidence), pdf, on_progress, failure)
        result.add("consistency", _consistency(run), pdf, on_progress, failure)
        method = run.main_method
        kept = kept_images(run, method) if method in run.compared else []
        chosen = [(each, image) for each in wanted for image in kept if image.is_called(*each)]
        for each, _ in chosen:
            missing.pop(each, None)
        if kept and (chosen or not wanted):
            images, named = ShownImages(run), [image for _, image in chosen]
            failure = f"Figures with images of {run.name} are left out"
            drawn = diagnostic_figures(images, method, kept, named)
            result.add("diagnostic", drawn, pdf, on_progress, failure)
            drawn = prediction_figures(images, method, kept, named)
            result.add("predictions", drawn, pdf, on_progress, failure)
    if missing:
        condition, image = next(iter(missing))
        raise GramLoopError(
            f"no results keep a picture of image {image} under {condition}; evaluate keeps those of the first "
            "images of every condition (--pictures N)"
        )
    result.remarks = list(dict.fromkeys(result.remarks))
    return result


def _suites(group: Sequence[Run]) -> Named:
    """Gains by suite and severity, where there are several suites to compare."""
    rows: dict[tuple[str, int], float] = {}
    method = group[0].main_method
    for run in group:
        compared = run.compare(method) if method in run.compared else None
        if compared is not None and all(condition.severity for condition in run.shifted):
            for severity, scores in compared.by_severity().items():
                rows[run.name, severity] = scores.delta
    if len({name for name, _ in rows}) > 1:
        metrics = " and ".join(dict.fromkeys(run.metric for run in group))
        yield f"suites-severity-{group[0].key}", severity_heat(Gains.of(rows, metrics, method, "suite"))


def _heat(run: Run) -> Named:
    """Gains by shift and severity, one figure for each Gram-gated method."""
    if BASELINE not in run.methods or not run.shifted:
        return
    base = run.scores(BASELINE)
    for method in run.gated:
        scores = run.scores(method)
        gains = {
            (each.name, each.severity): scores.get(each, float("nan")) - base.get(each, float("nan"))
            for each in run.shifted
        }
        yield f"{run.key}-severity-{method}", severity_heat(Gains.of(gains, run.metric, method)).of(run.name)


def _cost(run: Run, evidence: Sequence[Evidence]) -> Named:
    """Gain against work and time of all methods."""
    found = next((each for each in evidence if each.run is run), None)
    if found is None or not run.shifted or not run.complete:
        return
    points = []
    for method in run.compared:
        interval = found.verdict(method).interval
        points.append(MethodPoint(method, run.work(method), found.gain(method), interval, run.time(method)))
    over = " and ".join(each.drawn_from for each in found.drawn)
    yield f"{run.key}-cost", gain_against_cost(points, run.metric, over).of(run.name)


def _consistency(run: Run) -> Named:
    """Where each trajectory ends, if evaluate stored it."""
    for found in gram_consistency(run) if run.shifted else ():
        yield f"{run.key}-consistency-{found.method}", consistency_figure(found).of(run.name)
