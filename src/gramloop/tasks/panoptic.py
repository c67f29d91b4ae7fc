"""Panoptic segmentation: every pixel in one segment, scored by panoptic quality."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gramloop.data.records import Record, Shift
from gramloop.data.truth import VOID, SegmentMap, segments_info, segments_png
from gramloop.errors import GramLoopError
from gramloop.metrics.bootstrap import Score
from gramloop.metrics.segmentation import (
    EVERY,
    QUALITIES,
    STATISTICS,
    class_quality,
    found_segments,
    mean_quality,
    panoptic_statistics,
    pq_score,
)
from gramloop.tasks.base import Categories, ClassScores, Row, Rows, Task, Truth
from gramloop.tasks.class_names import Classes
from gramloop.tasks.detection import image_identity
from gramloop.tasks.images import RGB
from gramloop.tasks.prediction import (
    NO_CLASS,
    Changes,
    DrawStyle,
    Prediction,
    PredictionT,
)
from gramloop.tasks.semantic import labels_png, read_picture
from gramloop.util.plotting import GAINED, LOST, nearest, paint_classes, photograph, shrunk

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class SegmentTask(Task[PredictionT, Truth]):
    """A task whose predictions are segments, or masks that are laid over each other."""

    figure_caption = (
        "Colours are classes, and white lines part one segment from the next; the photograph shows where there is none. "
        "Green outlines: segments of the {truth} that {after} alone finds, magenta: those that {before} alone finds, by a "
        "segment of the same class with an overlap of more than 0.50. Masks of instances are shown from a score of 0.40 "
        "on, the best on top; these filters serve the picture and enter no score."
    )

    def segments(self, prediction: PredictionT, threshold: float) -> SegmentMap:
        """The segments, or the masks that score at least the threshold, the best on top."""
        raise NotImplementedError

    def class_map(self, prediction: PredictionT, threshold: float) -> NDArray[Any]:
        return _class_map(self.segments(prediction, threshold))

    def draw(
        self, axes: Axes, image: RGB, prediction: PredictionT, style: DrawStyle, colours: Sequence[str] = ()
    ) -> None:
        """Segments over the photograph, which shows where there is none."""
        found, small = self.segments(prediction, style.threshold), shrunk(image)
        ids = nearest(found.places(), small.shape)
        picture = paint_classes(small, _class_map(found), style.colours, NO_CLASS)
        picture[ids == VOID] = small[ids == VOID]
        rims = np.zeros(ids.shape, dtype=np.bool_)
        rims[:, :-1] |= ids[:, :-1] != ids[:, 1:]
        rims[:-1] |= ids[:-1] != ids[1:]
        picture[rims] = 255
        photograph(axes, picture, image.shape)

    def changes(
        self, before: PredictionT, after: PredictionT, truth: PredictionT | None, style: DrawStyle
    ) -> Changes:
        """Which true segments are found; without truth, how many pixels change their class."""
        if truth is None:
            return super().changes(before, after, None, style)
        true = self.segments(truth, 0.0)
        first, second = (
            found_segments(self.segments(each, style.threshold), true) for each in (before, after)
        )
        gained, lost = second & ~first, first & ~second
        outlines = [
            (true.ids == number, colour)
            for flags, colour in ((lost, LOST), (gained, GAINED))
            for number in true.numbers[flags]
        ]
        real = int((~true.crowd).sum())
        return Changes(
            f"of {real} segments {int(first.sum())} are found before and {int(second.sum())} after",
            outlines,
            legend=((GAINED, f"gained {int(gained.sum())}"), (LOST, f"lost {int(lost.sum())}")),
        )


def _class_map(found: SegmentMap) -> NDArray[Any]:  # → (H, W)
    """The category of every pixel; -1 where there is no segment."""
    categories: NDArray[np.int64] = np.append(NO_CLASS, found.categories)[found.places()]
    return categories


@dataclass(frozen=True)
class Segment:
    """What is known of one segment of a panoptic map."""

    id: int  # its number in the map, above 0
    category: int  # a number of the predictor's classes
    is_thing: bool  # one object, or else all that is there of one kind of stuff
    score: float  # from 0 to 1


@dataclass(frozen=True, repr=False)
class Panoptic(Prediction):
    """Every pixel in one segment, or in none."""

    segments: NDArray[np.int32]  # (H, W) ids; 0 where there is no segment
    infos: tuple[Segment, ...]  # of the ids in the map, rising, each once

    def __post_init__(self) -> None:
        if self.segments.ndim != 2 or self.segments.dtype != np.int32:
            raise GramLoopError(
                f"a panoptic map is one int32 per pixel, (H, W), not {self.segments.dtype} {self.segments.shape}"
            )
        found = np.unique(self.segments)
        found = found[found != 0].tolist()
        listed = [info.id for info in self.infos]
        if listed != found or any(number < 0 for number in listed):
            raise GramLoopError(
                f"a panoptic map with the segments {found} cannot have the infos of {listed}; there is one for each "
                "id, rising from 1 on, and 0 means no segment"
            )


class PanopticTask(SegmentTask[Panoptic, SegmentMap]):
    """Statistics per category and image add up to the panoptic quality of any set of images."""

    name = "panoptic"
    title = "panoptic segmentation"
    class_metric = "PQ"
    metrics_caption = (
        "Panoptic quality in percent, PQ = SQ x RQ for each category: SQ is the mean overlap of the segments that were found, "
        "RQ the share found (F1). Means over all categories, over things (th) and over stuff (st)."
    )
    metrics = tuple(f"{quality}{group}" for group in ("", "th", "st") for quality in QUALITIES)
    columns: ClassVar[Mapping[str, str]] = {
        name: "float64[]" if name == STATISTICS[0] else "int32[]" for name in STATISTICS
    }
    picture_columns: ClassVar[Mapping[str, str]] = {"picture": "binary", "picture_categories": "int32[]"}
    prediction = Panoptic
    truth_noun = "segments"
    truth_bytes = 4

    def read_truth(self, record: Record) -> SegmentMap:
        return record.segments()

    def truth_shape(self, truth: SegmentMap) -> tuple[int, ...]:
        return truth.ids.shape

    def as_truth(self, prediction: Panoptic, threshold: float) -> SegmentMap:
        return segment_map(prediction)

    def move_truth(self, truth: SegmentMap, record: Record, shift: Shift) -> SegmentMap:
        return truth.moved(shift.affine(record))

    def statistics(self, prediction: Panoptic, truth: SegmentMap, categories: Categories) -> Row:
        rows = panoptic_statistics(segment_map(prediction), truth, categories.ids)
        return {
            name: row if name == STATISTICS[0] else row.astype(np.int32)
            for name, row in zip(STATISTICS, rows, strict=True)
        }

    def score(self, rows: Rows, categories: Categories) -> dict[str, float]:
        total = self._statistics(rows).sum(axis=0)  # (4, categories)
        things = np.isin(categories.ids, list(categories.things))
        groups = [mean_quality(total, chosen) for chosen in (EVERY, things, ~things)]
        return dict(zip(self.metrics, np.concatenate(groups).tolist(), strict=True))

    def scorer(self, rows: Rows, categories: Categories) -> Score:
        return pq_score(self._statistics(rows))

    def class_scores(self, rows: Rows, categories: Categories, members: NDArray[np.int64]) -> ClassScores:
        sums = np.tensordot(members, self._statistics(rows), axes=1)  # (1 + subsets, 4, categories)
        held = sums[0, 1] + sums[0, 3] > 0  # found or missed
        return ClassScores(class_quality(sums[0])[0], held, mean_quality(sums)[1:, 0])

    def image_score(self, row: Row) -> float:
        return float(mean_quality(np.stack([row[name] for name in STATISTICS]))[0])

    def _statistics(self, rows: Rows) -> NDArray[np.float64]:  # → (images, 4, categories)
        return np.stack([rows.matrix(name).astype(np.float64) for name in STATISTICS], axis=1)

    def encode(self, prediction: Panoptic) -> Row:
        return self.encode_truth(segment_map(prediction))

    def encode_truth(self, truth: SegmentMap) -> Row:
        return {
            "picture": labels_png(truth.places()),
            "picture_categories": truth.categories.astype(np.int32),
        }

    def stored_truth(self, row: Row, column: str) -> SegmentMap:
        categories = np.asarray(row[f"{column}_categories"], dtype=np.int64)
        numbers, crowd = np.arange(1, len(categories) + 1), np.zeros(len(categories), np.bool_)
        return SegmentMap(read_picture(row[column]), numbers, categories, crowd)

    def as_prediction(self, truth: SegmentMap) -> Panoptic:
        """Crowds are regions, not segments, and are not drawn."""
        single = ~truth.crowd
        numbers, categories = truth.numbers[single], truth.categories[single]
        kept = np.where(np.isin(truth.ids, numbers), truth.ids, VOID).astype(np.int32)
        pairs = zip(numbers.tolist(), categories.tolist(), strict=True)
        return Panoptic(kept, tuple(Segment(*pair, is_thing=True, score=1.0) for pair in pairs))

    def segments(self, prediction: Panoptic, threshold: float) -> SegmentMap:
        return segment_map(prediction)

    def size(self, prediction: Panoptic, image: Sequence[int] | None = None) -> tuple[int, int]:
        return prediction.segments.shape

    def classes_in(self, prediction: Panoptic) -> set[int]:
        return {info.category for info in prediction.infos}

    def describe(self, prediction: Panoptic, style: DrawStyle) -> str:
        return f"{len(prediction.infos)} segment{'s' * (len(prediction.infos) != 1)}"

    def files(self, prediction: Panoptic, image: Path, name: str, classes: Classes) -> dict[str, bytes]:
        infos = segments_info(segment_map(prediction))
        for entry, info in zip(infos, prediction.infos, strict=True):
            entry["score"] = round(info.score, 6)
        kinds = {info.category: info.is_thing for info in prediction.infos}
        identity, (height, width) = image_identity(image), prediction.segments.shape
        content = {
            "images": [{"id": identity, "file_name": image.name, "height": height, "width": width}],
            "annotations": [{"image_id": identity, "file_name": f"{name}.png", "segments_info": infos}],
            "categories": [
                {"id": number, "name": classes.get(number) or f"class {number}", "isthing": int(thing)}
                for number, thing in sorted(kinds.items())
            ],
        }
        text = (json.dumps(content) + "\n").encode()
        return {".png": segments_png(prediction.segments), ".json": text}

    def rescale(self, prediction: Panoptic, shown: tuple[int, int], size: tuple[int, int]) -> Panoptic:
        picture = Image.fromarray(prediction.segments).resize((size[1], size[0]), Image.Resampling.NEAREST)
        segments = np.asarray(picture).astype(np.int32)
        left = set(np.unique(segments).tolist())
        infos = tuple(info for info in prediction.infos if info.id in left)
        return replace(prediction, segments=segments, infos=infos)

    def renumber(self, prediction: Panoptic, numbers: Mapping[int, int]) -> Panoptic:
        infos = [
            replace(info, category=numbers[info.category])
            for info in prediction.infos
            if info.category in numbers
        ]
        kept = np.isin(prediction.segments, [info.id for info in infos])
        segments = np.where(kept, prediction.segments, 0).astype(np.int32)
        return replace(prediction, segments=segments, infos=tuple(infos))


def segment_map(prediction: Panoptic) -> SegmentMap:
    """The segments of a prediction as truth is kept; none is a crowd."""
    return SegmentMap(
        prediction.segments,
        np.array([info.id for info in prediction.infos], dtype=np.int64),
        np.array([info.category for info in prediction.infos], dtype=np.int64),
        np.zeros(len(prediction.infos), dtype=np.bool_),
    )
