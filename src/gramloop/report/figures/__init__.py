"""The figures of a report: `draw_figures` draws those that loaded results allow; each figure takes plain arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from gramloop.errors import GramLoopError
from gramloop.evaluate.methods import BASELINE
from gramloop.report.answers import method_gain, recommended, shown_methods
from gramloop.report.consistency import consistency_figure, gram_consistency
from gramloop.report.document import RenderedFigure, answer_section
from gramloop.report.figures.chart import gain_chart
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
        photograph: bool = False,
    ) -> None:
        """Render figures of a section; ``failure`` says what is missing where that cannot be done."""
        try:
            for key, drawn in named:
                on_progress(drawn.title)
                self.figures.append(RenderedFigure.of(key, drawn, section, pdf, photograph))
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
        evidence: Their methods compared, for the charts of gains and the choice of methods to show.
        exemplars: Images to show, ``CONDITION:IMAGE``; without them the best, the worst and a typical one are.
        pdf: Draw each also for paper.
        on_progress: Called with the title of each figure that is about to be rendered.
    """
    result = Figures()
    wanted = [parse_exemplar(text) for text in exemplars]
    missing = dict.fromkeys(wanted)
    answered = [run for run in loaded.runs if run.shifted] or list(loaded.runs)
    for group in loaded.groups:
        result.add("severity", _suites(group, evidence), pdf, on_progress, "Gains by suite are not drawn")
    for run in loaded.runs:
        failure, methods = f"A figure of {run.name} is left out", shown_methods(run, evidence)
        first = answer_section(run.name) if run in answered else "predictions"
        result.add(first, _chart(run, evidence), pdf, on_progress, failure)
        result.add("severity", _heat(run, methods), pdf, on_progress, failure)
        result.add("consistency", _consistency(run), pdf, on_progress, failure)
        kept = kept_images(run, methods) if methods else []
        chosen = [(each, image) for each in wanted for image in kept if image.is_called(*each)]
        for each, _ in chosen:
            missing.pop(each, None)
        if kept:
            images, named = ShownImages(run), [image for _, image in chosen]
            failure = f"Figures with images of {run.name} are left out"
            drawn = prediction_figures(images, methods, kept, named)
            result.add(first, drawn, pdf, on_progress, failure, photograph=True)
            if run.main_replay in methods:
                drawn = diagnostic_figures(images, run.main_replay, kept, named)
                result.add("diagnostic", drawn, pdf, on_progress, failure, photograph=True)
    if missing:
        condition, image = next(iter(missing))
        raise GramLoopError(
            f"no results keep a picture of image {image} under {condition}; evaluate keeps those of the first "
            "images of every condition (--pictures N) and of others by their id (--keep-image ID)"
        )
    result.remarks = list(dict.fromkeys(result.remarks))
    return result


def suite_gains(runs: Sequence[Run], method: str) -> Gains:
    """Gains by suite and severity, of the complete suites that have severities."""
    rows: dict[tuple[str, int], float] = {}
    for run in runs:
        if _has_severities(run, method):
            base, own = run.scores(BASELINE), run.scores(method)
            for severity in sorted({each.severity for each in run.shifted}):
                at = [each for each in run.shifted if each.severity == severity]
                means = (float(np.mean([scores[each] for each in at])) for scores in (own, base))
                rows[run.name, severity] = next(means) - next(means)
    metrics = " and ".join(dict.fromkeys(run.metric for run in runs))
    return Gains.of(rows, metrics, method, "suite")


def _has_severities(run: Run, method: str) -> bool:
    complete = run.complete and method in run.compared
    return complete and bool(run.shifted) and all(each.severity for each in run.shifted)


def _suites(group: Sequence[Run], evidence: Sequence[Evidence]) -> Named:
    """Gains by suite and severity, where there are several suites to compare."""
    for method in dict.fromkeys(name for run in group for name in shown_methods(run, evidence)):
        severe = [run for run in group if _has_severities(run, method)]
        if len(severe) > 1:
            yield f"suites-severity-{group[0].key}-{method}", severity_heat(suite_gains(severe, method))


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
        yield f"{run.key}-severity-{method}", severity_heat(Gains.of(gains, run.metric, method)).of(run.name)


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
