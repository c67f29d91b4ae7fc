"""pycocotools and hotcoco as second opinions on matches and average precision."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from random_boxes import FoundBoxes, TrueBoxes


def box_entries(
    truth: TrueBoxes, predictions: FoundBoxes, first_id: int = 1
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A COCO file, and results as COCO has them."""
    columns = (truth.image_ids, truth.boxes, truth.labels, truth.areas, truth.crowd)
    annotations = [
        {"id": k, "image_id": i, "bbox": b, "category_id": c, "area": a, "iscrowd": int(s)}
        for k, (i, b, c, a, s) in enumerate(
            zip(*(each.tolist() for each in columns), strict=True), start=first_id
        )
    ]
    found = (predictions.image_ids, predictions.boxes, predictions.scores, predictions.labels)
    results = [
        {"image_id": i, "bbox": b, "score": s, "category_id": c}
        for i, b, s, c in zip(*(each.tolist() for each in found), strict=True)
    ]
    content = {
        "info": {},
        "images": [{"id": i} for i in truth.images],
        "categories": [{"id": c, "name": str(c)} for c in truth.categories],
        "annotations": annotations,
    }
    return content, results


def evaluation(content: dict[str, Any], results: Sequence[dict[str, Any]], kind: str, package: str) -> Any:
    """The package's evaluation after matching, with COCO's own settings."""
    with contextlib.redirect_stdout(io.StringIO()):
        if package == "hotcoco":
            import hotcoco

            annotated = hotcoco.COCO(content)
            done = hotcoco.COCOeval(annotated, annotated.load_res(list(results)), kind)
        else:
            annotated = COCO()
            annotated.dataset = content
            annotated.createIndex()
            done = COCOeval(annotated, annotated.loadRes(list(results)), kind)
        done.evaluate()
    return done


def coco_figures(
    content: dict[str, Any], results: Sequence[dict[str, Any]], kind: str = "bbox"
) -> list[float]:
    """The six figures of pycocotools' own summary, in percent."""
    done = evaluation(content, results, kind, "pycocotools")
    with contextlib.redirect_stdout(io.StringIO()):
        done.accumulate()
        done.summarize()
    return [100 * value if value > -1 else math.nan for value in np.asarray(done.stats[:6]).tolist()]


def box_figures(truth: TrueBoxes, predictions: FoundBoxes, first_id: int = 1) -> list[float]:
    """`coco_figures` of boxes."""
    return coco_figures(*box_entries(truth, predictions, first_id))
