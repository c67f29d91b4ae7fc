"""The figures that show images: what the gate does in one, and the predictions of a few."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gramloop.data.suites import display_name
from gramloop.evaluate.methods import BASELINE
from gramloop.report.figures.diagnostic import diagnostic
from gramloop.report.figures.exemplars import choose
from gramloop.report.figures.kept import UNITS, Images, KeptImage
from gramloop.report.figures.qualitative import qualitative
from gramloop.report.figures.style import Drawn
from gramloop.report.run import Run

_SHOWN_FIRST = ("impulse_noise", "impulse")  # the diagnostic's shift, as in the paper, where it was evaluated
_MOST_ROWS = 6


def diagnostics(
    images: Images, method: str, kept: Sequence[KeptImage], chosen: Sequence[KeptImage]
) -> Iterator[tuple[str, Drawn]]:
    """Drift and gate in the images that the reader chose, or in one that was fixed beforehand."""
    run = images.run
    rows = [] if chosen else severities_of_one_image(kept, method)
    single = {f"-chosen-{number}": image for number, image in enumerate(chosen, start=1)}
    if rows:
        single[""] = rows[-1]  # the strongest shift
    for ending, image in single.items():
        if image.maps(method) is not None:
            row = images.diagnosed(image, method, image.place)
            drawn = diagnostic([row], f"Diagnostic of {method}")
            yield f"{run.key}-diagnostic{ending}", drawn.of(run.name)
    if len(rows) > 1:
        each = [images.diagnosed(image, method, f"severity {image.condition.severity}") for image in rows]
        shift = display_name(rows[0].condition.name)
        drawn = diagnostic(each, f"Diagnostic of {method} under {shift}, image {rows[0].image_id}")
        yield f"{run.key}-diagnostic-severities", drawn.of(run.name)


def predictions(
    images: Images, method: str, kept: Sequence[KeptImage], chosen: Sequence[KeptImage]
) -> Iterator[tuple[str, Drawn]]:
    """Baseline and method in the images that the reader chose, or in the best, the worst and a typical one."""
    run = images.run
    if run.changes_only:
        return
    reasons = {image.place: (image, "chosen by the reader") for image in chosen}
    pairs = list(reasons.values())[:_MOST_ROWS]
    if not pairs:
        task = run.plan.task
        shifted = [image for image in kept if image.condition.name != "clean"] or list(kept)
        scores = [[image.score(task, name) for name in (BASELINE, method)] for image in shifted]
        gains = {index: replayed - ordinary for index, (ordinary, replayed) in enumerate(scores)}
        pairs = [(shifted[index], why) for index, why in choose(gains, _unit(run)).items()]
    rows = [images.row(image, method, why) for image, why in pairs]
    if rows:
        truth = "clean prediction" if run.plan.label_free else "annotation"
        drawn = qualitative(rows, f"Predictions of baseline and {method}", (BASELINE, method), truth)
        yield f"{run.key}-predictions", drawn.of(run.name)


def _unit(run: Run) -> str:
    unit = UNITS[run.plan.task]
    return f"{unit} with the clean prediction" if run.plan.label_free else unit


def severities_of_one_image(kept: Sequence[KeptImage], method: str) -> list[KeptImage]:
    """The first image kept under the severities of one shift, mildest first; fixed beforehand, not picked."""
    mapped = [image for image in kept if image.maps(method) is not None and image.condition.name != "clean"]
    names = list(dict.fromkeys(image.condition.name for image in mapped))
    if not names:
        return []
    name = next((each for each in _SHOWN_FIRST if each in names), names[0])
    of_shift = [image for image in mapped if image.condition.name == name]
    first = min(image.position for image in of_shift)
    return sorted(
        (image for image in of_shift if image.position == first), key=lambda image: image.condition.severity
    )
