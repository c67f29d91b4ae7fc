"""Figures that show images: what the gate does in one, and the predictions of a few, from what an evaluation kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import numpy as np

from gramloop.data.records import Record, refuse_change
from gramloop.data.suites import Condition, display_name
from gramloop.errors import GramLoopError
from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.plan import Unit, condition_of
from gramloop.evaluate.provenance import PlannedImages
from gramloop.evaluate.rows import CLEAN_PREFIX, KeptMaps, maps_of
from gramloop.evaluate.store import Store, UnusableFile
from gramloop.report.figures.diagnostic import Diagnosed, diagnostic
from gramloop.report.figures.qualitative import ComparedImage, qualitative
from gramloop.report.run import Run
from gramloop.util.checksums import load_checksums
from gramloop.util.plotting import CaptionedFigure, signed_difference

_SHOWN_FIRST = ("impulse_noise", "impulse")  # the diagnostic's shift, as in the paper, where it was evaluated
_MOST_ROWS = 6
Key = TypeVar("Key")


@dataclass(frozen=True)
class KeptImage:
    """One image under one condition, with a stored row for every method."""

    condition: Condition
    position: int
    image_id: str
    rows: Mapping[str, Mapping[str, Any]]  # method: row

    @property
    def place(self) -> str:
        """Where it is, in words."""
        return f"{self.condition.display_name} · image {self.image_id}"

    def is_called(self, condition: str, image: str) -> bool:
        """Whether a reader means it, by the image's id or position."""
        return self.condition.key == condition and image in (self.image_id, str(self.position))

    def maps(self, method: str) -> KeptMaps | None:
        """The replay's maps."""
        return maps_of(self.rows[method])


def kept_images(run: Run, names: Sequence[str], only: str = "*") -> list[KeptImage]:
    """The images that keep a prediction of the baseline and of these methods, condition after condition.

    Args:
        run: the evaluation.
        names: of methods.
        only: a condition's key, or a pattern such as */5.
    """
    store, found, keep = Store(run.folder, run.plan), [], frozenset(run.plan.keep)
    methods = [each for each in run.plan.methods if each.name in (BASELINE, *names)]
    for key in run.plan.conditions:
        if not fnmatchcase(key, only):
            continue
        try:
            parts = [
                part
                for part in run.plan.parts_of(key)
                if part.images[0] < run.plan.pictures
                or (keep and not keep.isdisjoint(store.image_ids(Unit(key, methods[0], part.images))))
            ]
            rows = {
                each.name: store.rows([Unit(key, each, part.images) for part in parts]) if parts else None
                for each in methods
            }
        except UnusableFile:
            continue  # the report warns of it elsewhere
        kept = {
            name: {row["position"]: row for row in each.first(run.plan.pictures, keep)}
            for name, each in rows.items()
            if each is not None
        }
        if len(kept) < len(methods):
            continue
        for position in sorted(set.intersection(*(set(each) for each in kept.values()))):
            named = {name: each[position] for name, each in kept.items()}
            found.append(KeptImage(condition_of(key), position, named[BASELINE]["image_id"], named))
    return found


class ShownImages:
    """The images of a run that figures show, opened when first needed."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._images: PlannedImages | None = None

    def record(self, kept: KeptImage) -> Record:
        """The image with its truth; an error if the set is gone or is another."""
        key = kept.condition.key
        if self._images is None:
            load_checksums(self.run.folder)
            self._images = PlannedImages(self.run.plan)
        record = self._images.data(key)[kept.position]
        if str(record.image_id) != kept.image_id:
            raise GramLoopError(
                f"image {kept.position} of {key} is {record.image_id} now, and was {kept.image_id}"
            )
        refuse_change(record)
        return record

    def diagnosed(self, kept: KeptImage, method: str, label: str) -> Diagnosed:
        """A row of the diagnostic figure; the image must keep the method's maps."""
        maps = kept.maps(method)
        assert maps is not None
        return Diagnosed(label, self.record(kept).image(), maps.last_drift, maps.last_gate, maps.post_drift)

    def compared(self, kept: KeptImage, methods: Sequence[str], title: str) -> ComparedImage:
        """A row of the figure of predictions."""
        task, record = self.run.task, self.record(kept)
        names = (BASELINE, *methods)
        found = [each for name in names if (each := task.decode(kept.rows[name])) is not None]
        if self.run.plan.label_free:
            truth = task.decode(kept.rows[methods[0]], f"{CLEAN_PREFIX}picture")
        else:
            truth = task.as_prediction(task.read_truth(record))
        if truth is None or len(found) < len(names):
            raise GramLoopError(f"image {kept.image_id} of {kept.condition} keeps no picture")
        return ComparedImage(title, record.image(), task, truth, tuple(found), self.run.plan.categories)


def diagnostic_figures(
    images: ShownImages, method: str, kept: Sequence[KeptImage], chosen: Sequence[KeptImage]
) -> Iterator[tuple[str, CaptionedFigure]]:
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


def severities_of_one_image(kept: Sequence[KeptImage], method: str) -> list[KeptImage]:
    """The first image kept under the severities of one shift, mildest first; fixed beforehand, not picked."""
    mapped = [image for image in kept if image.maps(method) is not None and image.condition.name != "clean"]
    names = list(dict.fromkeys(image.condition.name for image in mapped))
    if not names:
        return []
    name = next((each for each in _SHOWN_FIRST if each in names), names[0])
    of_shift = [image for image in mapped if image.condition.name == name]
    first = min(image.position for image in of_shift)
    same = (image for image in of_shift if image.position == first)
    return sorted(same, key=lambda image: image.condition.severity)


def prediction_figures(
    images: ShownImages, methods: Sequence[str], kept: Sequence[KeptImage], chosen: Sequence[KeptImage]
) -> Iterator[tuple[str, CaptionedFigure]]:
    """Baseline and methods in the images that the reader chose, or in the best, the worst and a typical one of the first."""
    run = images.run
    if run.changes_only:
        return
    pairs = [(image, "chosen by the reader") for image in {each.place: each for each in chosen}.values()]
    if not pairs:
        shifted = [image for image in kept if image.condition.name != "clean"] or list(kept)
        gains = {index: image_gain(run, image, methods[0]) for index, image in enumerate(shifted)}
        unit = f"points of {run.task.image_metric}" + " with the clean prediction" * run.plan.label_free
        pairs = [(shifted[index], why) for index, why in choose(gains, unit).items()]
    rows = [images.compared(image, methods, f"{why} · {image.place}") for image, why in pairs[:_MOST_ROWS]]
    if rows:
        truth = "clean prediction" if run.plan.label_free else "annotation"
        title = f"Predictions of {', '.join((BASELINE, *methods[:-1]))} and {methods[-1]}"
        drawn = qualitative(rows, title, (BASELINE, *methods), truth)
        yield f"{run.key}-predictions", drawn.of(run.name)


def image_gain(run: Run, image: KeptImage, method: str) -> float:
    """What a method gains over the baseline on one image."""
    return run.task.image_score(image.rows[method]) - run.task.image_score(image.rows[BASELINE])


def choose(gains: Mapping[Key, float], unit: str) -> dict[Key, str]:
    """From gains by image: the largest gain, the largest loss and the median, with the words that say so.

    Of equal gains the first is taken. An image is shown once, under the first name that fits it.
    """
    finite = {key: gain for key, gain in gains.items() if np.isfinite(gain)}
    if not finite:
        return {}
    keys, values = list(finite), np.array(list(finite.values()))
    among = f"of {len(keys)} images kept" if len(keys) > 1 else "the one image kept"
    picks = [
        (int(values.argmax()), "largest gain" if values.max() > 0 else "smallest loss"),
        (int(values.argmin()), "largest loss" if values.min() < 0 else "smallest gain"),
        (int(np.abs(values - float(np.median(values))).argmin()), "typical (median)"),
    ]
    chosen: dict[Key, str] = {}
    for index, name in picks:
        words = f"{name} {among}, {signed_difference(float(values[index]), 1)} {unit}"
        chosen.setdefault(keys[index], words)
    return chosen


def parse_exemplar(text: str) -> tuple[str, str]:
    """An image named by the reader, ``CONDITION:IMAGE`` such as ``fog/3:scene-0007``."""
    condition, colon, image = text.partition(":")
    if not colon or not condition or not image:
        raise GramLoopError(f"an exemplar is CONDITION:IMAGE, such as fog/3:17, not {text!r}")
    return condition, image
