"""What an evaluation kept of its first images, and the images themselves where their set is still there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gramloop.data.checks import refuse_change
from gramloop.data.records import DataSet, Record
from gramloop.data.suites import Condition
from gramloop.data.truth import DepthMap
from gramloop.errors import GramLoopError
from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.plan import condition_of
from gramloop.evaluate.rows import CLEAN_PICTURE, KeptMaps, depth_of, first_rows, maps_of, picture_of
from gramloop.evaluate.segment_rows import map_of, shown_f1
from gramloop.evaluate.sources import open_condition, open_planned
from gramloop.evaluate.store import Store, UnusableFile
from gramloop.evaluate.truth import UNSCORED
from gramloop.metrics.miou import mean_iou
from gramloop.metrics.panoptic import STATISTICS, mean_quality
from gramloop.report.figures.boxes import DetectionRow
from gramloop.report.figures.depth import DepthRow
from gramloop.report.figures.diagnostic import Diagnosed
from gramloop.report.figures.matching import Annotated, f1
from gramloop.report.figures.qualitative import Row, SegmentationRow
from gramloop.report.figures.segments import SegmentsRow
from gramloop.report.run import Run
from gramloop.tasks.detection import Detection
from gramloop.util.checksums import load_checksums

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
    for key in run.plan.conditions:
        units = [unit for unit in run.plan.units_of(key) if unit.start < run.plan.pictures]
        try:
            tables = [stored.table for unit in units if (stored := store.read(unit)) is not None]
        except UnusableFile:
            continue  # the report tells of it elsewhere
        if not tables:
            continue
        rows = {name: first_rows(tables, name, run.plan.pictures) for name in (BASELINE, method)}
        for pair in zip(rows[BASELINE], rows[method], strict=True):
            named = dict(zip((BASELINE, method), pair, strict=True))
            found.append(KeptImage(condition_of(key), pair[0]["position"], pair[0]["image_id"], named))
    return found


class Images:
    """The images of a run that figures show, opened when first asked for."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._opened: Any = None
        self._sets: dict[str, DataSet] = {}

    def record(self, kept: KeptImage) -> Record:
        """The image with its truth; a sentence if the set is gone or is another."""
        key = kept.condition.key
        if key not in self._sets:
            if self._opened is None:
                load_checksums(self.run.folder)
                self._opened = open_planned(self.run.plan)
            self._sets[key] = open_condition(self.run.plan, self._opened, key)
        record = self._sets[key][kept.position]
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
            depths = [depth_of(kept.rows[name]) for name in (BASELINE, method)]
            if depths[0] is None or depths[1] is None:
                raise GramLoopError(f"image {kept.image_id} of {kept.condition} keeps no depth")
            clean = depth_of(kept.rows[method], CLEAN_PICTURE) if plan.label_free else None
            true = record.depth() if clean is None else DepthMap(clean)
            known = np.where(true.known, true.metres, np.float32(np.nan))
            return DepthRow(title, record.image(), known, depths[0], depths[1])
        if plan.task in ("panoptic", "instance"):
            return self._segments(kept, method, title, record)
        maps = [picture_of(kept.rows[name]) for name in (BASELINE, method)]
        if maps[0] is None or maps[1] is None:
            raise GramLoopError(f"image {kept.image_id} of {kept.condition} keeps no label map")
        if plan.label_free:
            shown, ignored = picture_of(kept.rows[method], CLEAN_PICTURE), UNSCORED
        else:
            shown = record.labels().astype(np.int32)
            ignored = 255 if record.classes is None else record.classes.ignored
        if shown is None:
            raise GramLoopError(f"image {kept.image_id} of {kept.condition} keeps no clean prediction")
        return SegmentationRow(title, record.image(), shown, maps[0], maps[1], plan.categories, ignored)

    def _segments(self, kept: KeptImage, method: str, title: str, record: Record) -> SegmentsRow:
        """A row of segments, or of masks laid over each other."""
        task, label_free = self.run.plan.task, self.run.plan.label_free
        shown = [map_of(kept.rows[name], task) for name in (BASELINE, method)]
        truth = map_of(kept.rows[method], task, CLEAN_PICTURE) if label_free else None
        if not label_free:
            truth = record.segments() if task == "panoptic" else record.object_masks().as_map()
        if shown[0] is None or shown[1] is None or truth is None:
            raise GramLoopError(f"image {kept.image_id} of {kept.condition} keeps no segments")
        return SegmentsRow(title, record.image(), truth, shown[0], shown[1], self.run.plan.categories)


def _found(row: Mapping[str, object]) -> Detection:
    boxes, scores = (np.asarray(row[name], dtype=np.float32) for name in ("boxes", "scores"))
    return Detection(boxes.reshape(-1, 4), scores, np.asarray(row["labels"], dtype=np.int64))


def _annotated(row: Mapping[str, Any]) -> Annotated:
    """The objects of an image; crowds are regions, not objects, and are not drawn."""
    boxes = np.asarray(row["truth_boxes"], dtype=np.float64).reshape(-1, 4).copy()
    boxes[:, 2:] += boxes[:, :2]
    single = ~np.asarray(row["truth_crowd"], dtype=np.bool_)
    return Annotated(boxes[single], np.asarray(row["truth_labels"], dtype=np.int64)[single])
