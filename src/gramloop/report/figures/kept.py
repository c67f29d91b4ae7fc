"""What an evaluation kept of its first images, and the images themselves where their set is still there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gramloop.data.checks import refuse_change
from gramloop.data.records import Record
from gramloop.data.suites import Condition
from gramloop.data.truth import DepthMap, SegmentMap
from gramloop.errors import GramLoopError
from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.plan import Unit, condition_of
from gramloop.evaluate.provenance import PlannedImages
from gramloop.evaluate.rows import CLEAN_PREFIX, KeptMaps, maps_of
from gramloop.evaluate.store import Store, UnusableFile
from gramloop.metrics.miou import mean_iou
from gramloop.metrics.panoptic import STATISTICS, mean_quality
from gramloop.report.figures.boxes import DetectionRow
from gramloop.report.figures.depth import DepthRow
from gramloop.report.figures.diagnostic import Diagnosed
from gramloop.report.figures.matching import Annotated, f1
from gramloop.report.figures.qualitative import Row, SegmentationRow
from gramloop.report.figures.segments import SegmentsRow
from gramloop.report.run import Run
from gramloop.tasks.depth import DEPTH_STEPS
from gramloop.tasks.detection import Detection
from gramloop.tasks.instance import shown_f1, stored_masks
from gramloop.tasks.panoptic import stored_segments
from gramloop.tasks.semantic import UNSCORED, read_picture
from gramloop.util.checksums import load_checksums

_CLEAN = f"{CLEAN_PREFIX}picture"
UNITS = {
    "semantic": "points of mIoU",
    "detection": "points of F1",
    "depth": "points of delta1",
    "panoptic": "points of PQ",
    "instance": "points of F1 over overlaps from 0.50 to 0.95",
}


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

    def score(self, task: str, method: str) -> float:
        """How good one prediction is by itself, in percent.

        That is F1 of the boxes or masks that pictures show, delta1, PQ over the classes found or annotated, or mIoU over the classes that the image is annotated with: a
        few stray pixels of another class would otherwise decide it.
        """
        row = self.rows[method]
        if task == "semantic":
            counts = np.stack([row[name] for name in ("intersection", "prediction", "label")])
            present = counts[2] > 0
            return float(mean_iou(counts[:, present])) if present.any() else float("nan")
        if task == "depth":
            return float(row["delta1"])
        if task == "panoptic":
            return float(mean_quality(np.stack([row[name] for name in STATISTICS]))[0])
        if task == "instance":
            return 100 * shown_f1(row)
        return 100 * f1(_found(row), _annotated(row))


def kept_images(run: Run, method: str) -> list[KeptImage]:
    """The images that keep a prediction of the baseline and of ``method``, condition after condition."""
    store, found = Store(run.folder, run.plan), []
    methods = [each for each in run.plan.methods if each.name in (BASELINE, method)]
    for key in run.plan.conditions:
        parts = [part for part in run.plan.parts_of(key) if part.images[0] < run.plan.pictures]
        try:
            rows = {
                each.name: store.rows([Unit(key, each, part.images) for part in parts]) for each in methods
            }
        except UnusableFile:
            continue  # the report tells of it elsewhere
        kept = {
            name: {row["position"]: row for row in each.first(run.plan.pictures)}
            for name, each in rows.items()
            if each is not None
        }
        if len(kept) < len(methods):
            continue
        for position in sorted(set.intersection(*(set(each) for each in kept.values()))):
            named = {name: each[position] for name, each in kept.items()}
            found.append(KeptImage(condition_of(key), position, named[method]["image_id"], named))
    return found


class Images:
    """The images of a run that figures show, opened when first asked for."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._images: PlannedImages | None = None

    def record(self, kept: KeptImage) -> Record:
        """The image with its truth; a sentence if the set is gone or is another."""
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
        drift, gate = maps.last_drift, maps.last_gate
        return Diagnosed(label, self.record(kept).image(), drift, gate, maps.post_drift)

    def row(self, kept: KeptImage, method: str, why: str) -> Row:
        """A row of the figure of predictions."""
        record, plan = self.record(kept), self.run.plan
        title = f"{why} · {kept.place}"
        if plan.task == "detection":
            found = [_found(kept.rows[name]) for name in (BASELINE, method)]
            truth = _annotated(kept.rows[method])
            return DetectionRow(title, record.image(), truth, found[0], found[1], plan.categories)
        if plan.task == "depth":
            depths = [_depth(kept.rows[name]) for name in (BASELINE, method)]
            if depths[0] is None or depths[1] is None:
                raise GramLoopError(f"image {kept.image_id} of {kept.condition} keeps no depth")
            clean = _depth(kept.rows[method], _CLEAN) if plan.label_free else None
            true = record.depth() if clean is None else DepthMap(clean)
            known = np.where(true.known, true.metres, np.float32(np.nan))
            return DepthRow(title, record.image(), known, depths[0], depths[1])
        if plan.task in ("panoptic", "instance"):
            return self._segments(kept, method, title, record)
        maps = [_labels(kept.rows[name]) for name in (BASELINE, method)]
        if maps[0] is None or maps[1] is None:
            raise GramLoopError(f"image {kept.image_id} of {kept.condition} keeps no label map")
        if plan.label_free:
            shown, ignored = _labels(kept.rows[method], _CLEAN), UNSCORED
        else:
            shown = record.labels().astype(np.int32)
            ignored = 255 if record.classes is None else record.classes.ignored
        if shown is None:
            raise GramLoopError(f"image {kept.image_id} of {kept.condition} keeps no clean prediction")
        return SegmentationRow(title, record.image(), shown, maps[0], maps[1], plan.categories, ignored)

    def _segments(self, kept: KeptImage, method: str, title: str, record: Record) -> SegmentsRow:
        """A row of segments, or of masks laid over each other."""
        task, label_free = self.run.plan.task, self.run.plan.label_free
        shown = [_map(kept.rows[name], task) for name in (BASELINE, method)]
        truth = _map(kept.rows[method], task, _CLEAN) if label_free else None
        if not label_free:
            truth = record.segments() if task == "panoptic" else record.object_masks().as_map()
        if shown[0] is None or shown[1] is None or truth is None:
            raise GramLoopError(f"image {kept.image_id} of {kept.condition} keeps no segments")
        return SegmentsRow(title, record.image(), truth, shown[0], shown[1], self.run.plan.categories)


def _labels(row: Mapping[str, Any], column: str = "picture") -> NDArray[np.int32] | None:
    return None if row.get(column) is None else read_picture(row[column])


def _depth(row: Mapping[str, Any], column: str = "picture") -> NDArray[np.float32] | None:
    stored = _labels(row, column)
    return None if stored is None else stored.astype(np.float32) / np.float32(DEPTH_STEPS)


def _map(row: Mapping[str, Any], task: str, column: str = "picture") -> SegmentMap | None:
    """What a row keeps as segments that do not overlap; of masks the best lies on top."""
    if task == "panoptic":
        return stored_segments(row, column)
    masks = stored_masks(row, column)
    return None if masks is None else masks.as_map()


def _found(row: Mapping[str, object]) -> Detection:
    boxes, scores = (np.asarray(row[name], dtype=np.float32) for name in ("boxes", "scores"))
    return Detection(boxes.reshape(-1, 4), scores, np.asarray(row["labels"], dtype=np.int64))


def _annotated(row: Mapping[str, Any]) -> Annotated:
    """The objects of an image; crowds are regions, not objects, and are not drawn."""
    boxes = np.asarray(row["truth_boxes"], dtype=np.float64).reshape(-1, 4).copy()
    boxes[:, 2:] += boxes[:, :2]
    single = ~np.asarray(row["truth_crowd"], dtype=np.bool_)
    return Annotated(boxes[single], np.asarray(row["truth_labels"], dtype=np.int64)[single])
