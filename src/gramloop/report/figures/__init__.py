"""The figures of a report: `draw_figures` draws those that loaded results allow; each figure takes plain arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gramloop.errors import GramLoopError
from gramloop.evaluate.methods import BASELINE
from gramloop.report.answers import method_gain, recommended, shown_methods
from gramloop.report.breakdowns import gram_consistency
from gramloop.report.document import RenderedFigure, answer_section
from gramloop.report.figures.charts import (
    consistency_figure,
    gain_chart,
    severity_heat,
)
from gramloop.report.figures.pictures import (
    KeptImage,
    kept_images,
    parse_exemplar,
    prediction_figures,
)
from gramloop.report.load import LoadedRuns
from gramloop.report.run import Run
from gramloop.report.stats import Evidence
from gramloop.util.plotting import CaptionedFigure
from gramloop.util.progress import tracked

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
        failure: str,
        photograph: bool = False,
    ) -> None:
        """Render figures of a section; ``failure`` says what is missing where that cannot be done."""
        try:
            for key, drawn in named:
                self.figures.append(RenderedFigure.of(key, drawn, section, pdf, photograph))
        except GramLoopError as error:
            self.remarks.append(f"{failure}: {error}.".replace("..", "."))


def draw_figures(
    loaded: LoadedRuns,
    evidence: Sequence[Evidence] = (),
    exemplars: Sequence[str] = (),
    pdf: bool = True,
) -> Figures:
    """Every figure that the results allow.

    Args:
        loaded: The results.
        evidence: Their methods compared, for the charts of gains and the choice of methods to show.
        exemplars: Images to show, ``CONDITION:IMAGE``; without them the best, the worst and a typical one are.
        pdf: Draw each also for paper.
    """
    result = Figures()
    wanted = [parse_exemplar(text) for text in exemplars]
    methods_of = {run.name: shown_methods(run, evidence) for run in loaded.runs}
    kept = {
        run.name: kept_images(run, methods_of[run.name]) if methods_of[run.name] else []
        for run in loaded.runs
    }
    _refuse_missing(wanted, [image for images in kept.values() for image in images])
    answered = [run for run in loaded.runs if run.shifted] or list(loaded.runs)
    for run in tracked(loaded.runs, "drawing figures", len(loaded.runs)):
        failure, methods = f"A figure of {run.name} is left out", methods_of[run.name]
        first = answer_section(run.name) if run in answered else "predictions"
        result.add(first, _chart(run, evidence), pdf, failure)
        result.add("severity", _heat(run, methods), pdf, failure)
        result.add("consistency", _consistency(run), pdf, failure)
        if images := kept[run.name]:
            named = [image for each in wanted for image in images if image.is_called(*each)]
            drawn = prediction_figures(run, methods, images, named)
            failure = f"Figures with images of {run.name} are left out"
            result.add(first, drawn, pdf, failure, photograph=True)
    result.remarks = list(dict.fromkeys(result.remarks))
    return result


def _refuse_missing(wanted: Sequence[tuple[str, str]], kept: Sequence[KeptImage]) -> None:
    """Refuse an image that the reader names and no results keep, before anything is drawn."""
    for condition, image in wanted:
        if not any(each.is_called(condition, image) for each in kept):
            raise GramLoopError(
                f"no results keep a picture of image {image} under {condition}; evaluate keeps those of the first "
                "images of every condition (--pictures N) and of others by their id (--keep-image ID)"
            )


def _heat(run: Run, methods: Sequence[str]) -> Named:
    """Gains by shift and severity, one figure for each method."""
    if BASELINE not in run.methods or not run.shifted:
        return
    base = run.scores(BASELINE)
    for method in methods:
        scores = run.scores(method)
        gains = {
            (each.name, each.severity): scores.get(each, float("nan")) - base.get(each, float("nan"))
            for each in run.shifted
        }
        yield f"{run.key}-severity-{method}", severity_heat(gains, run.metric, method).of(run.name)


def _chart(run: Run, evidence: Sequence[Evidence]) -> Named:
    """The gain and the cost of all methods."""
    found = next((each for each in evidence if each.run is run), None)
    if found is not None and run.complete:
        gains = [method_gain(found, method) for method in run.compared]
        yield f"{run.key}-gains", gain_chart(gains, run.metric, recommended(found)).of(run.name)


def _consistency(run: Run) -> Named:
    """Where each trajectory ends, if evaluate stored it."""
    for found in gram_consistency(run) if run.shifted else ():
        yield f"{run.key}-consistency-{found.method}", consistency_figure(found).of(run.name)
