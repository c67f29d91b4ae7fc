"""All figures of a report, from gathered results; what cannot be drawn is said in a sentence instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from gramloop.core.config import ReplayConfig
from gramloop.core.cost import extra_blocks
from gramloop.data.suites import display_name
from gramloop.errors import GramLoopError
from gramloop.evaluate.methods import BASELINE
from gramloop.report.consistency import gram_consistency
from gramloop.report.document import Picture
from gramloop.report.figures.consistency import consistency_figure
from gramloop.report.figures.cost import Point, gain_against_cost
from gramloop.report.figures.diagnostic import Diagnosed, diagnostic
from gramloop.report.figures.exemplars import choose, parse
from gramloop.report.figures.heat import Gains, severity_heat
from gramloop.report.figures.kept import UNITS, Images, KeptImage, kept_images
from gramloop.report.figures.qualitative import qualitative
from gramloop.report.figures.style import Drawn
from gramloop.report.load import Gathered, Run
from gramloop.report.statistics import Gain, gains_of

SEVERITY, CONSISTENCY, COST, DIAGNOSTIC, PREDICTIONS = (
    "severity",
    "consistency",
    "cost",
    "diagnostic",
    "predictions",
)
SECTIONS = (SEVERITY, COST, CONSISTENCY, DIAGNOSTIC, PREDICTIONS)
_SHOWN_FIRST = ("impulse_noise", "impulse")  # the diagnostic's shift, as in the paper, where it was evaluated
_MOST_ROWS = 6
OnProgress = Callable[[str], None]  # called with the title of each figure that is about to be drawn


@dataclass
class Pictures:
    """Figures with the key of the section they belong to, and sentences about those left out."""

    pictures: list[tuple[str, Picture]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def all_pictures(
    gathered: Gathered, exemplars: Sequence[str] = (), pdf: bool = True, gains: Sequence[Gain] | None = None
) -> list[tuple[str, Picture]]:
    """Every figure that the results allow, with the key of its section; see `draw_all`."""
    return draw_all(gathered, exemplars, pdf, gains).pictures


def draw_all(
    gathered: Gathered,
    exemplars: Sequence[str] = (),
    pdf: bool = True,
    gains: Sequence[Gain] | None = None,
    on_progress: OnProgress = lambda _: None,
) -> Pictures:
    """Every figure that the results allow.

    exemplars: images to show, ``CONDITION:IMAGE``; without them the best, the worst and a typical one are.
    pdf: draw each also for paper.
    gains: intervals that were computed already.
    """
    drawn = _Drawing(pdf, on_progress)
    wanted = [parse(text) for text in exemplars]
    known = gains if gains is not None else gains_of(gathered.runs)
    for group in gathered.groups:
        drawn.suites(group)
    missing = dict.fromkeys(wanted, True)
    for run in gathered.runs:
        drawn.heat(run)
        drawn.cost(run, [gain for gain in known if gain.run is run])
        drawn.consistency(run)
        for each in drawn.images(run, wanted):
            missing.pop(each, None)
    if missing:
        condition, image = next(iter(missing))
        raise GramLoopError(
            f"no results keep a picture of image {image} under {condition}; evaluate keeps those of the first "
            "images of every condition (--pictures N)"
        )
    return drawn.result


class _Drawing:
    def __init__(self, pdf: bool, on_progress: OnProgress) -> None:
        self.result = Pictures()
        self._pdf, self._on_progress = pdf, on_progress

    def suites(self, group: Sequence[Run]) -> None:
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
            drawn = severity_heat(Gains.of(rows, metrics, method, "suite"))
            self._add(SEVERITY, f"suites-severity-{group[0].key}", drawn)

    def heat(self, run: Run) -> None:
        """Gains by shift and severity, one figure for each Gram-gated method."""
        if BASELINE not in run.methods or not run.shifted:
            return
        ordinary = run.scores(BASELINE)
        for method in gated_methods(run):
            scores = run.scores(method)
            gains = {
                (each.name, each.severity): scores.get(each, float("nan")) - ordinary.get(each, float("nan"))
                for each in run.shifted
            }
            drawn = severity_heat(Gains.of(gains, run.metric, method))
            self._add(SEVERITY, f"{run.key}-severity-{method}", _of(run, drawn))

    def cost(self, run: Run, gains: Sequence[Gain]) -> None:
        """Gain against blocks of all methods."""
        points = [
            Point(
                gain.method,
                multiplier(run, gain.method),
                gain.points,
                None if gain.interval is None else gain.interval.low,
                None if gain.interval is None else gain.interval.high,
            )
            for gain in gains
            if gain.points is not None
        ]
        if points and run.shifted:
            over = next((gain.over for gain in gains if gain.interval is not None), "families")
            words = "images" if over == "images" else "domains" if run.suite.kind == "o" else "shift families"
            self._add(COST, f"{run.key}-cost", _of(run, gain_against_cost(points, run.metric, over=words)))

    def consistency(self, run: Run) -> None:
        """Where each trajectory ends, if evaluate stored it."""
        for found in gram_consistency(run) if run.shifted else ():
            try:
                drawn = consistency_figure(found)
            except GramLoopError as error:
                self.result.remarks.append(f"Gram consistency of {run.name} is not drawn: {error}.")
                continue
            self._add(CONSISTENCY, f"{run.key}-consistency-{found.method}", _of(run, drawn))

    def images(self, run: Run, wanted: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        """The figures that need images; yields those of the wanted ones that the run has."""
        method = main_method(run)
        if method not in run.replays:
            return
        kept = kept_images(run, method)
        own = [(each, image) for each in wanted for image in kept if _is(image, each)]
        yield from (each for each, _ in own)
        chosen = {image.place: (image, "chosen by the reader") for _, image in own}
        if not kept or (wanted and not own):
            return
        try:
            images = Images(run)
            self._diagnose(run, method, kept, images, [image for _, image in own])
            self._predictions(run, method, kept, images, list(chosen.values()))
        except GramLoopError as error:
            self.result.remarks.append(
                f"Figures with images of {run.name} are left out: {error}.".replace("..", ".")
            )

    def _diagnose(
        self, run: Run, method: str, kept: Sequence[KeptImage], images: Images, own: Sequence[KeptImage]
    ) -> None:
        for index, image in enumerate(own):
            self._one(run, method, image, images, f"{run.key}-diagnostic-chosen-{index + 1}")
        rows = [] if own else severities_of_one_image(kept, method)
        if not rows:
            return
        self._one(run, method, rows[-1], images, f"{run.key}-diagnostic")
        if len(rows) > 1:
            name = display_name(rows[0].condition.name)
            labels = [f"severity {image.condition.severity}" for image in rows]
            each = [
                _diagnosed(image, method, images, label) for image, label in zip(rows, labels, strict=True)
            ]
            title = f"Diagnostic of {method} under {name}, image {rows[0].image_id}"
            self._add(DIAGNOSTIC, f"{run.key}-diagnostic-severities", _of(run, diagnostic(each, title)))

    def _one(self, run: Run, method: str, image: KeptImage, images: Images, key: str) -> None:
        if image.maps(method) is not None:
            row = _diagnosed(image, method, images, image.place)
            self._add(DIAGNOSTIC, key, _of(run, diagnostic([row], f"Diagnostic of {method}")))

    def _predictions(
        self,
        run: Run,
        method: str,
        kept: Sequence[KeptImage],
        images: Images,
        own: Sequence[tuple[KeptImage, str]],
    ) -> None:
        pairs = list(own)[:_MOST_ROWS]
        if not pairs:
            task = run.plan.task
            shifted = [image for image in kept if image.condition.name != "clean"] or list(kept)
            gains = {
                i: image.score(task, method) - image.score(task, BASELINE) for i, image in enumerate(shifted)
            }
            pairs = [(shifted[i], why) for i, why in choose(gains, UNITS[task]).items()]
        rows = [images.row(image, method, why) for image, why in pairs]
        if rows:
            drawn = qualitative(rows, f"Predictions of baseline and {method}", (BASELINE, method))
            self._add(PREDICTIONS, f"{run.key}-predictions", _of(run, drawn))

    def _add(self, section: str, key: str, drawn: Drawn) -> None:
        self._on_progress(drawn.title)
        pdf = drawn.pdf() if self._pdf else None
        picture = Picture(key, drawn.title, drawn.caption, drawn.png(), pdf, drawn.alt)
        self.result.pictures.append((section, picture))


def main_method(run: Run) -> str:
    """The method that figures of one method show: gramloop, otherwise the first Gram-gated one, or the first."""
    gated = gated_methods(run)
    return "gramloop" if "gramloop" in gated else (*gated, *run.replays, "")[0]


def gated_methods(run: Run) -> list[str]:
    """Methods with the Gram gate, in the plan's order."""
    return [each.name for each in run.plan.methods if each.replay is not None and each.replay.gate == "gram"]


def multiplier(run: Run, method: str) -> float:
    """Blocks executed per block of the ordinary model: by formula, or as measured where images decide."""
    replay = next(each.replay for each in run.plan.methods if each.name == method) or ReplayConfig(replays=0)
    depth = run.plan.model.depth
    if replay.adaptive is not None:
        blocks = run.spent.blocks
        return blocks[method] / blocks[BASELINE]
    return (depth + extra_blocks(replay, depth)) / depth


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


def _diagnosed(image: KeptImage, method: str, images: Images, label: str) -> Diagnosed:
    maps = image.maps(method)
    assert maps is not None
    return Diagnosed(label, images.record(image).image(), maps.last_drift, maps.last_gate, maps.post_drift)


def _is(image: KeptImage, wanted: tuple[str, str]) -> bool:
    return image.condition.key == wanted[0] and wanted[1] in (image.image_id, str(image.position))


def _of(run: Run, drawn: Drawn) -> Drawn:
    """The same figure, its title with the name of the run."""
    return Drawn(drawn.figure, f"{drawn.title}: {run.name}", drawn.caption, drawn.alt)
