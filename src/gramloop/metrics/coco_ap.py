"""COCO's average precision over boxes, by hotcoco, or by pycocotools where hotcoco is not installed.

Both are shown the same numbers and give the same curves; what is made of the curves is done here. Hand over
every detection: COCO's limit of 100 holds for one image and one category, so a list cut to the 100 best of
an image scores lower. Annotations are numbered afresh from 1, because pycocotools takes the number 0 for
"no match".
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gramloop.errors import GramLoopError
from gramloop.metrics.boxes import FoundBoxes, TrueBoxes, places

Evaluator = Literal["hotcoco", "pycocotools"]
DETECTIONS_PER_CATEGORY = 100  # of one image, as COCO's evaluator keeps them
AREAS: dict[str, list[float]] = {
    "all": [0, 1e10],
    "small": [0, 32**2],
    "medium": [32**2, 96**2],
    "large": [96**2, 1e10],
}
ALL, SMALL, MEDIUM, LARGE = range(4)  # places of these ranges
AT_50, AT_75 = 0, 5  # places of these thresholds among 0.50, 0.55, … 0.95


@dataclass(frozen=True)
class ApResult:
    """Average precision in percent; NaN where the truth holds no object to be found."""

    ap: float
    ap50: float
    ap75: float
    small: float
    medium: float
    large: float
    by_category: Mapping[int, float] = field(repr=False)


def average_precision(
    truth: TrueBoxes, detections: FoundBoxes, *, evaluator: Evaluator | None = None
) -> ApResult:
    """Score detections as COCO does.

    Detections of categories that the truth does not list are passed over, as a detector may know more; at
    least one must be listed. A detection in an image that is not to be scored is a mistake.
    """
    evaluation = matched(truth, detections, evaluator=evaluator)
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation.accumulate()
    precision = np.asarray(evaluation.eval["precision"])[..., 0]  # (thresholds, recalls, categories, areas)
    return ApResult(
        ap=_mean(precision[..., ALL]),
        ap50=_mean(precision[AT_50, ..., ALL]),
        ap75=_mean(precision[AT_75, ..., ALL]),
        small=_mean(precision[..., SMALL]),
        medium=_mean(precision[..., MEDIUM]),
        large=_mean(precision[..., LARGE]),
        by_category={
            category: _mean(precision[:, :, place, ALL])
            for place, category in enumerate(sorted(truth.categories))
        },
    )


def installed_evaluator() -> Evaluator:
    """The evaluator that will be used: hotcoco, else pycocotools."""
    if find_spec("hotcoco"):
        return "hotcoco"
    if find_spec("pycocotools"):
        return "pycocotools"
    raise GramLoopError(
        "average precision needs the package hotcoco (or pycocotools), which is not installed"
    )


def matched(
    truth: TrueBoxes,
    detections: FoundBoxes,
    *,
    areas: tuple[str, ...] = tuple(AREAS),
    evaluator: Evaluator | None = None,
) -> Any:
    """The evaluator's own object, with detections matched to objects, image by image.

    Images and categories are numbered 1, 2, 3, … in their sorted order.
    """
    refuse_foreign_labels(truth, detections)
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools speaks while it works
        evaluation = _EVALUATORS[evaluator or installed_evaluator()](*numbered(truth, detections))
        evaluation.params.maxDets = [DETECTIONS_PER_CATEGORY]
        evaluation.params.areaRng = [AREAS[name] for name in areas]
        evaluation.params.areaRngLbl = list(areas)
        evaluation.evaluate()
    return evaluation


def numbered(truth: TrueBoxes, detections: FoundBoxes) -> tuple[TrueBoxes, FoundBoxes]:
    """The same with images and categories 1, 2, 3, … in their order, which decides between equal scores."""
    images, categories = np.sort(np.asarray(truth.images)), np.sort(np.asarray(truth.categories))
    listed = np.isin(detections.labels, categories)
    return (
        TrueBoxes(
            range(1, len(images) + 1),
            range(1, len(categories) + 1),
            places(truth.image_ids, images) + 1,
            np.asarray(truth.boxes, dtype=np.float64),
            np.searchsorted(categories, truth.labels) + 1,
            np.asarray(truth.areas, dtype=np.float64),
            np.asarray(truth.crowd, dtype=np.bool_),
        ),
        FoundBoxes(
            (places(detections.image_ids, images) + 1)[listed],
            np.asarray(detections.boxes, dtype=np.float64)[listed],
            np.asarray(detections.scores, dtype=np.float64)[listed],
            np.searchsorted(categories, detections.labels[listed]) + 1,
        ),
    )


def _hotcoco_evaluation(truth: TrueBoxes, detections: FoundBoxes) -> Any:
    from hotcoco import COCO, COCOeval

    annotated = COCO.from_arrays(
        [{"id": number} for number in truth.images],
        [{"id": number, "name": str(number)} for number in truth.categories],
        truth.image_ids,
        truth.labels,
        truth.boxes,
        area=truth.areas,
        iscrowd=truth.crowd,
    )
    found = annotated.load_res(
        np.column_stack([detections.image_ids, detections.boxes, detections.scores, detections.labels])
    )
    return COCOeval(annotated, found, "bbox")


def _pycocotools_evaluation(truth: TrueBoxes, detections: FoundBoxes) -> Any:
    from pycocotools.cocoeval import COCOeval  # type: ignore[import-untyped]

    annotated = _dictionaries(
        image_id=truth.image_ids,
        category_id=truth.labels,
        bbox=truth.boxes,
        area=truth.areas,
        iscrowd=truth.crowd.astype(np.int64),
    )
    found = _dictionaries(
        image_id=detections.image_ids,
        category_id=detections.labels,
        bbox=detections.boxes,
        score=detections.scores,
        area=detections.boxes[:, 2] * detections.boxes[:, 3],
        iscrowd=np.zeros(len(detections.scores), dtype=np.int64),
    )
    shared = {
        "images": [{"id": number} for number in truth.images],
        "categories": [{"id": number} for number in truth.categories],
    }
    sets = (pycocotools_set({**shared, "annotations": entries}) for entries in (annotated, found))
    return COCOeval(*sets, "bbox")


_EVALUATORS = {"hotcoco": _hotcoco_evaluation, "pycocotools": _pycocotools_evaluation}


def _dictionaries(**columns: NDArray[Any]) -> list[dict[str, Any]]:
    names, values = ("id", *columns), [column.tolist() for column in columns.values()]
    return [
        dict(zip(names, (number, *row), strict=True))
        for number, row in enumerate(zip(*values, strict=True), start=1)
    ]


def pycocotools_set(content: dict[str, Any]) -> Any:
    """What a COCO file would hold, as pycocotools holds it."""
    from pycocotools.coco import COCO  # type: ignore[import-untyped]

    collection = COCO()
    collection.dataset = content
    collection.createIndex()
    return collection


def _mean(precision: NDArray[np.float64]) -> float:
    present = precision[precision > -1]  # -1 stands for a category without objects
    return float(100 * present.mean()) if present.size else float("nan")


def refuse_foreign_labels(truth: TrueBoxes, detections: FoundBoxes) -> None:
    """Refuse detections that have nothing to do with the truth: not one has a category of it."""
    labels = np.unique(detections.labels)
    if len(labels) and not np.isin(labels, np.asarray(truth.categories)).any():
        raise GramLoopError(
            f"no detection has a category of the truth: detections have {labels[:5].tolist()}…, "
            f"the truth lists {sorted(truth.categories)[:5]}…"
        )
