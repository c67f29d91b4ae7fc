"""Score the embedded model on unseen scenes, clean and under the fifteen corruptions, against its bars.

    python tools/score_tiny.py --scenes 100

Scenes come from the split "test", which training never sees; every corruption is seeded by condition, severity and
scene. Prints clean mIoU and AP, mPC (the mean over 15 corruptions x 5 severities) and every condition's mean.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import cv2
import numpy as np
import torch
from rich.progress import Progress

from gramloop.data.scenes import CLASSES, THINGS, scene
from gramloop.models.tiny import WEIGHTS, TinyModel, load_tiny
from gramloop.shifts.common import generator
from gramloop.shifts.recipes import CORRUPTIONS, corrupt
from tiny_model import normalise, predict

SPLIT = "test"
CLEAN = ("clean", 0)
Condition = tuple[str, int]


@dataclass(frozen=True)
class Score:
    """One condition's results in percent."""

    miou: float
    ap: float


_model: TinyModel | None = None


def _start(folder: Path) -> None:
    global _model
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    _model = load_tiny(folder)


def shifted(index: int, condition: Condition) -> np.ndarray:
    """The pixels of a test scene under a condition, (H, W, 3) uint8."""
    image = scene(index, split=SPLIT).image
    name, severity = condition
    if condition == CLEAN:
        return image
    return np.asarray(corrupt(image, name, severity, generator("scenes-c", name, severity, index)))


def score_condition(condition: Condition, count: int) -> Score:
    """mIoU and AP over the first scenes of the test split."""
    assert _model is not None
    classes = len(CLASSES)
    confusion = np.zeros((classes, classes))
    found: list[dict[str, object]] = []
    for first in range(0, count, 4):
        indices = range(first, min(first + 4, count))
        images = torch.from_numpy(np.stack([shifted(index, condition) for index in indices]))
        labels, detections = predict(_model, normalise(images))
        for index, predicted, *things in zip(indices, labels.numpy(), *detections, strict=True):
            true = scene(index, split=SPLIT).labels.astype(np.int64) - 1
            confusion += np.bincount(
                true.ravel() * classes + predicted.ravel(), minlength=classes**2
            ).reshape(classes, classes)
            for box, score, kind in zip(*things, strict=True):
                if kind < 0:  # no box
                    continue
                left, top, right, bottom = (float(side) for side in box)
                entry = {"image_id": index + 1, "category_id": int(kind) + 1, "score": float(score)}
                found.append({**entry, "bbox": [left, top, right - left, bottom - top]})
    hit = np.diag(confusion)
    iou = hit / (confusion.sum(0) + confusion.sum(1) - hit).clip(min=1)
    present = confusion.sum(1) > 0
    return Score(float(100 * iou[present].mean()), average_precision(found, count))


def average_precision(found: list[dict[str, object]], count: int) -> float:
    """COCO's AP over IoU 0.50 to 0.95 by the reference evaluator, in percent."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    if not found:
        return 0.0
    annotations = []
    for index in range(count):
        one = scene(index, split=SPLIT)
        for box, kind in zip(one.boxes.tolist(), one.categories, strict=True):
            entry = {
                "id": len(annotations) + 1,
                "image_id": index + 1,
                "category_id": int(kind) + 1,
                "iscrowd": 0,
            }
            annotations.append({**entry, "bbox": box, "area": box[2] * box[3]})
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = {
            "images": [{"id": index + 1} for index in range(count)],
            "annotations": annotations,
            "categories": [{"id": number, "name": name} for number, name in enumerate(THINGS, start=1)],
        }
        truth.createIndex()
        evaluator = COCOeval(truth, truth.loadRes(found), "bbox")
        evaluator.evaluate()
        evaluator.accumulate()
        evaluator.summarize()
    return float(100 * evaluator.stats[0])


def score_all(args: argparse.Namespace) -> dict[Condition, Score]:
    """Every condition, over all processes, with a progress bar."""
    conditions = [CLEAN] + [(name, severity) for name in CORRUPTIONS for severity in args.severities]
    scores: dict[Condition, Score] = {}
    with (
        ProcessPoolExecutor(args.processes, get_context("spawn"), _start, (args.weights,)) as pool,
        Progress() as bar,
    ):
        task = bar.add_task("scoring", total=len(conditions))
        jobs = {pool.submit(score_condition, condition, args.scenes): condition for condition in conditions}
        for job in as_completed(jobs):
            scores[jobs[job]] = job.result()
            bar.advance(task)
    return scores


def summary(scores: dict[Condition, Score]) -> dict[str, float]:
    """The four numbers the bars speak of."""
    hard = [score for condition, score in scores.items() if condition != CLEAN]
    return {
        "clean_miou": scores[CLEAN].miou,
        "clean_ap": scores[CLEAN].ap,
        "mpc_miou": float(np.mean([score.miou for score in hard])),
        "mpc_ap": float(np.mean([score.ap for score in hard])),
    }


def main() -> int:
    """Print the scores; 1 when a bar is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    parser.add_argument("--scenes", type=int, default=100)
    parser.add_argument("--severities", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path, help="also write the scores here")
    args = parser.parse_args()
    scores = score_all(args)
    total = summary(scores)
    print(f"{args.scenes} scenes of split {SPLIT!r}, indices 0 to {args.scenes - 1}, 192 px, {args.weights}")
    print(f"{'corruption (mean over severities)':36s}  mIoU    AP")
    for name in CORRUPTIONS:
        rows = [scores[name, severity] for severity in args.severities]
        print(
            f"{name:36s} {np.mean([row.miou for row in rows]):5.1f} {np.mean([row.ap for row in rows]):5.1f}"
        )
    bars = {
        "clean mIoU >= 85": (total["clean_miou"], total["clean_miou"] >= 85),
        "clean AP >= 45": (total["clean_ap"], total["clean_ap"] >= 45),
        "mPC at least 8 below, mIoU": (total["mpc_miou"], total["clean_miou"] - total["mpc_miou"] >= 8),
        "mPC at least 8 below, AP": (total["mpc_ap"], total["clean_ap"] - total["mpc_ap"] >= 8),
    }
    for bar, (value, met) in bars.items():
        print(f"{bar:36s} {value:5.2f} {'met' if met else 'MISSED'}")
    if args.json:
        args.json.write_text(json.dumps(total, indent=2) + "\n")
    return 0 if all(met for _, met in bars.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
