"""Panoptic and instance segmentation: segments that part the image, scored by PQ, and masks that may overlap, by AP."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gramloop.data.records import Record
from gramloop.data.truth import (
    VOID,
    ObjectMasks,
    RunLengths,
    SegmentMap,
    decode_mask,
    encode_mask,
    mask_area,
    segments_info,
    segments_png,
)
from gramloop.errors import GramLoopError
from gramloop.metrics.ap import mask_average_precision
from gramloop.metrics.bootstrap import Score
from gramloop.metrics.matching import match_masks
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
from gramloop.shifts.geometry import visible_box
from gramloop.tasks.base import Categories, ClassScores, Row, Rows, Task, Truth
from gramloop.tasks.class_names import Classes
from gramloop.tasks.detection import MatchedTask, image_identity, result_lines
from gramloop.tasks.images import RGB
from gramloop.tasks.prediction import NO_CLASS, Changes, DrawStyle, Prediction, PredictionT
from gramloop.tasks.semantic import labels_png, read_picture, renumbered
from gramloop.util.plotting import GAINED, LOST, nearest, paint_classes, photograph, shrunk

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = 0.4  # least score of a mask that a stored picture keeps


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
        found: Any = self.as_truth(prediction, threshold)
        segments: SegmentMap = found.as_map() if isinstance(found, ObjectMasks) else found
        return segments

    def class_map(self, prediction: PredictionT, threshold: float) -> NDArray[Any]:
        return _class_map(self.segments(prediction, threshold))

    def draw(self, axes: Axes, image: RGB, prediction: PredictionT, style: DrawStyle) -> None:
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
        sure = (self.segments(each, style.threshold) for each in (before, after))
        first, second = (found_segments(each, true) for each in sure)
        gained, lost = true.numbers[second & ~first], true.numbers[first & ~second]
        marked = [*((number, LOST) for number in lost), *((number, GAINED) for number in gained)]
        return Changes(
            f"of {(~true.crowd).sum()} segments {first.sum()} are found before and {second.sum()} after",
            [(true.ids == number, colour) for number, colour in marked],
            legend=((GAINED, f"gained {len(gained)}"), (LOST, f"lost {len(lost)}")),
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

    def statistics(self, prediction: Panoptic, truth: SegmentMap, categories: Categories) -> Row:
        rows = panoptic_statistics(segment_map(prediction), truth, categories.ids)
        types = [kind.removesuffix("[]") for kind in self.columns.values()]
        return {name: row.astype(kind) for name, row, kind in zip(STATISTICS, rows, types, strict=True)}

    def score(self, rows: Rows, categories: Categories) -> dict[str, float]:
        total = self._statistics(rows).sum(axis=0)  # (4, categories)
        things = np.isin(categories.ids, list(categories.things))
        groups = [mean_quality(total, chosen) for chosen in (EVERY, things, ~things)]
        return dict(zip(self.metrics, np.concatenate(groups).tolist(), strict=True))

    def scorer(self, rows: Rows, categories: Categories) -> Score:
        return pq_score(self._statistics(rows))

    def class_scores(self, rows: Rows, categories: Categories) -> ClassScores:
        all_images = np.ones((1, rows.images), dtype=np.int64)
        (sums,) = np.tensordot(all_images, self._statistics(rows), axes=1)  # (4, categories)
        return ClassScores(class_quality(sums)[0], sums[1] + sums[3] > 0)  # found or missed

    def _statistics(self, rows: Rows) -> NDArray[np.float64]:  # → (images, 4, categories)
        return np.stack([rows.matrix(name).astype(np.float64) for name in STATISTICS], axis=1)

    def encode(self, prediction: Panoptic) -> Row:
        found = segment_map(prediction)
        categories = found.categories.astype(np.int32)
        return {"picture": labels_png(found.places()), "picture_categories": categories}

    def decode(self, row: Row, column: str = "picture") -> Panoptic | None:
        if row.get(column) is None:
            return None
        categories = np.asarray(row[f"{column}_categories"], dtype=np.int64)
        numbers, crowd = np.arange(1, len(categories) + 1), np.zeros(len(categories), np.bool_)
        return self.as_prediction(SegmentMap(read_picture(row[column]), numbers, categories, crowd))

    def as_prediction(self, truth: SegmentMap) -> Panoptic:
        """Crowds are regions, not segments, and are not drawn."""
        single = ~truth.crowd
        numbers, categories = truth.numbers[single], truth.categories[single]
        kept = np.where(np.isin(truth.ids, numbers), truth.ids, VOID).astype(np.int32)
        pairs = zip(numbers.tolist(), categories.tolist(), strict=True)
        return Panoptic(kept, tuple(Segment(*pair, is_thing=True, score=1.0) for pair in pairs))

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

    def rescale(self, prediction: Panoptic, input_size: tuple[int, int], size: tuple[int, int]) -> Panoptic:
        picture = Image.fromarray(prediction.segments).resize((size[1], size[0]), Image.Resampling.NEAREST)
        segments = np.asarray(picture).astype(np.int32)
        left = set(np.unique(segments).tolist())
        infos = tuple(info for info in prediction.infos if info.id in left)
        return replace(prediction, segments=segments, infos=infos)

    def renumber(self, prediction: Panoptic, numbers: Mapping[int, int]) -> Panoptic:
        known = (info for info in prediction.infos if info.category in numbers)
        infos = [replace(info, category=numbers[info.category]) for info in known]
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


@dataclass(frozen=True, repr=False)
class InstanceMasks(Prediction):
    """Scored masks of single objects, best first; they may overlap.

    Masks are kept as run lengths: a hundred of a photograph would fill a gigabyte as pixels.
    """

    masks: tuple[RunLengths, ...]  # n, as COCO's results have them
    scores: NDArray[np.float32]  # (n,)
    labels: NDArray[np.int64]  # (n,) category ids
    boxes: NDArray[np.float32]  # (n, 4): left, top, right, bottom of the masks' pixels; zeros if empty
    size: tuple[int, int]  # height and width of the image, which every mask has

    def __post_init__(self) -> None:
        many = len(self.masks)
        shapes = self.scores.shape, self.labels.shape, self.boxes.shape
        if shapes != ((many,), (many,), (many, 4)):
            raise GramLoopError(
                f"{many} masks have scores {shapes[0]}, labels {shapes[1]} and boxes {shapes[2]}; they are ({many},), "
                f"({many},) and ({many}, 4)"
            )
        if misfits := [mask["size"] for mask in self.masks if tuple(mask["size"]) != self.size]:
            raise GramLoopError(
                f"a mask of {misfits[0][1]} x {misfits[0][0]} pixels does not fit an image of "
                f"{self.size[1]} x {self.size[0]}"
            )

    @classmethod
    def from_masks(
        cls, masks: NDArray[np.bool_], scores: NDArray[np.generic], labels: NDArray[np.generic]
    ) -> Self:  # (n, H, W), (n,), (n,)
        """Masks of pixels in any order."""
        best = np.argsort(-scores.astype(np.float64), kind="stable")
        return cls(
            tuple(encode_mask(masks[index]) for index in best),
            scores[best].astype(np.float32),
            labels[best].astype(np.int64),
            np.array([box_around(masks[index]) for index in best], dtype=np.float32).reshape(-1, 4),
            (masks.shape[1], masks.shape[2]),
        )

    def mask(self, index: int) -> NDArray[np.bool_]:  # → (H, W)
        """One of the masks as pixels."""
        return decode_mask(self.masks[index]).astype(np.bool_)


class InstanceTask(MatchedTask[InstanceMasks, ObjectMasks], SegmentTask[InstanceMasks, ObjectMasks]):
    """Rows keep how masks and objects were matched, not the masks: a set's AP follows from the matches."""

    name = "instance"
    title = "instance segmentation"
    class_metric = "Mask AP"
    prediction = InstanceMasks
    truth_noun = "masks"

    def read_truth(self, record: Record) -> ObjectMasks:
        return record.object_masks()

    def truth_shape(self, truth: ObjectMasks) -> tuple[int, ...]:
        return truth.size

    def as_truth(self, prediction: InstanceMasks, threshold: float) -> ObjectMasks:
        return object_masks(prediction, threshold)

    def statistics(self, prediction: InstanceMasks, truth: ObjectMasks, categories: Categories) -> Row:
        masks, scores = prediction.masks, prediction.scores
        return self.matched(match_masks(truth, masks, scores, prediction.labels, categories.ids))

    def score(self, rows: Rows, categories: Categories) -> dict[str, float]:
        return mask_average_precision(self.matches(rows, categories), categories.ids, rows.images)

    def encode(self, prediction: InstanceMasks) -> Row:
        found = object_masks(prediction, SHOWN)
        pairs = zip(found.masks, found.categories.tolist(), strict=True)
        masks = [{"counts": mask["counts"], "category_id": label} for mask, label in pairs]
        return {"picture": json.dumps({"size": list(found.size), "masks": masks}).encode()}

    def decode(self, row: Row, column: str = "picture") -> InstanceMasks | None:
        if row.get(column) is None:
            return None
        content = json.loads(row[column])
        height, width = content["size"]
        masks = [RunLengths(size=[height, width], counts=each["counts"]) for each in content["masks"]]
        labels = np.array([each["category_id"] for each in content["masks"]], dtype=np.int64)
        return _drawn(masks, labels, (height, width))

    def as_prediction(self, truth: ObjectMasks) -> InstanceMasks:
        """Crowds are regions, not objects, and are not drawn."""
        single = np.flatnonzero(~truth.crowd)
        return _drawn([truth.masks[index] for index in single], truth.categories[single], truth.size)

    def describe(self, prediction: InstanceMasks, style: DrawStyle) -> str:
        count = int((prediction.scores >= style.threshold).sum())
        return f"{count} mask{'s' * (count != 1)} ≥ {style.threshold:g}"

    def files(self, prediction: InstanceMasks, image: Path, name: str, classes: Classes) -> dict[str, bytes]:
        return {".json": result_lines(image, prediction, "segmentation", prediction.masks)}

    def rescale(
        self, prediction: InstanceMasks, input_size: tuple[int, int], size: tuple[int, int]
    ) -> InstanceMasks:
        masks = [
            np.asarray(Image.fromarray(prediction.mask(index)).resize((size[1], size[0])))
            for index in range(len(prediction.masks))
        ]
        stacked = np.stack(masks) if masks else np.zeros((0, *size), dtype=np.bool_)
        moved = InstanceMasks.from_masks(stacked, prediction.scores, prediction.labels)
        return replace(prediction, masks=moved.masks, boxes=moved.boxes, size=size)

    def renumber(self, prediction: InstanceMasks, numbers: Mapping[int, int]) -> InstanceMasks:
        labels = renumbered(prediction.labels, numbers)
        kept = labels >= 0
        masks = tuple(mask for mask, keep in zip(prediction.masks, kept, strict=True) if keep)
        boxes, scores = prediction.boxes[kept], prediction.scores[kept]
        return replace(prediction, masks=masks, boxes=boxes, scores=scores, labels=labels[kept])


def _drawn(masks: Sequence[RunLengths], labels: NDArray[np.int64], size: tuple[int, int]) -> InstanceMasks:
    """Masks without scores as a prediction."""
    boxes = np.array([box_around(decode_mask(mask)) for mask in masks], dtype=np.float32).reshape(-1, 4)
    return InstanceMasks(tuple(masks), np.ones(len(masks), dtype=np.float32), labels, boxes, size)


def object_masks(prediction: InstanceMasks, threshold: float = 0.0) -> ObjectMasks:
    """The masks that score at least the threshold and hold a pixel, as truth is kept; none is a crowd."""
    areas = np.array([mask_area(mask) for mask in prediction.masks], dtype=np.float64)
    sure = (prediction.scores >= threshold) & (areas > 0)
    return ObjectMasks(
        tuple(mask for mask, kept in zip(prediction.masks, sure, strict=True) if kept),
        prediction.labels[sure].astype(np.int64),
        areas[sure],
        np.zeros(int(sure.sum()), dtype=np.bool_),
        prediction.size,
    )


def box_around(mask: NDArray[Any]) -> tuple[int, int, int, int]:  # (H, W)
    """Left, top, right and bottom of a mask's pixels, the latter two one beyond the last; zeros if it has none."""
    left, top, wide, high = visible_box(mask) or (0, 0, 0, 0)
    return left, top, left + wide, top + high
