"""One list of boxes from several views: weighted box fusion against soft suppression, and the time of fusion.

Both merge the same views of the embedded model, on scenes that nothing else uses; AP in points with a paired 95%
interval over scenes. The time is that of two views of 1,500 random boxes each.

    python benchmarks/box_merging.py --scenes 20
    python benchmarks/box_merging.py --time
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from gramloop.data.scenes.drawing import THINGS, Scene, scene
from gramloop.metrics.ap import rank_matches
from gramloop.metrics.bootstrap import Score, image_bootstrap, image_draws, mean_interval, paired_delta
from gramloop.metrics.matching import GroundTruthBoxes, match_boxes
from gramloop.mitigations import apply
from gramloop.models.tiny import WEIGHTS
from gramloop.shifts import corrupt
from gramloop.tasks import load_predictor
from gramloop.tasks.base import get_task
from gramloop.tasks.detection import Detection
from gramloop.util.device import deterministic
from simulated_set import predicted_boxes

CONDITIONS = ("clean", "gaussian_noise", "defocus_blur", "fog")
TASK = get_task("detection")
SIGMA = 0.5  # of soft suppression, as its authors have it
SIZES = (0.75, 1.25)


def softly_suppressed(views: list[Detection], sigma: float = SIGMA) -> Detection:
    """All boxes of all views, each score lowered by exp(-overlap² / sigma) for every better box of its class."""
    boxes = np.concatenate([view.boxes for view in views]).astype(np.float64)
    scores = np.concatenate([view.scores for view in views]).astype(np.float64)
    labels = np.concatenate([view.labels for view in views])
    order, left = [], np.arange(len(scores))
    while len(left):
        best = left[scores[left].argmax()]
        order.append(best)
        left = left[left != best]
        rivals = left[labels[left] == labels[best]]
        shared = (
            (np.minimum(boxes[best, 2:], boxes[rivals, 2:]) - np.maximum(boxes[best, :2], boxes[rivals, :2]))
            .clip(min=0)
            .prod(1)
        )
        areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
        overlap = shared / np.maximum(areas[rivals] + areas[best] - shared, 1e-9)
        scores[rivals] *= np.exp(-(overlap**2) / sigma)
    order = order[: max(len(view.scores) for view in views)]
    return Detection(boxes[order].astype(np.float32), scores[order].astype(np.float32), labels[order])


def fusion_seconds(boxes: int, classes: int, rounds: int = 5) -> float:
    """Processor seconds to fuse two views that nearly agree, the fastest of some rounds."""
    rng = np.random.default_rng(0)
    corners = rng.uniform(0, 900, (boxes, 2))
    base, labels = (
        np.concatenate([corners, corners + rng.uniform(5, 100, (boxes, 2))], 1),
        rng.integers(0, classes, boxes),
    )
    views = []
    for _ in range(2):
        scores = np.sort(rng.uniform(0, 1, boxes))[::-1]
        moved = base + rng.normal(0, 3, base.shape)
        views.append(Detection(moved.astype(np.float32), scores.astype(np.float32), labels))
    seconds = []
    for _ in range(rounds):
        began = time.process_time()
        TASK.merge(views)
        seconds.append(time.process_time() - began)
    return min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenes", type=int, default=20)
    parser.add_argument("--severity", type=int, default=3)
    parser.add_argument("--time", action="store_true", help="measure the time of fusion alone")
    args = parser.parse_args()
    if args.time:
        for classes in (1, 80):
            print(f"2 x 1,500 boxes of {classes} classes: {fusion_seconds(1500, classes):.3f} s")
        return
    predictor = load_predictor("detection", {"folder": str(WEIGHTS)})
    resized = [apply(f"resize:{size}", predictor) for size in SIZES]
    drawn = [scene(index, split="box-merging") for index in range(args.scenes)]
    truth = _truth(drawn)
    found: dict[tuple[str, str], dict[int, Detection]] = {}
    with deterministic(1):
        for condition in CONDITIONS:
            for index, one in enumerate(drawn):
                rng = np.random.default_rng([index, len(condition)])
                shown = (
                    one.image if condition == "clean" else corrupt(one.image, condition, args.severity, rng)
                )
                plain = predictor.predict(shown)
                mirrored = predictor.predict(np.ascontiguousarray(shown[:, ::-1]))
                views = {
                    "flip": [plain, TASK.flip(mirrored, shown.shape[1])],
                    "scales": [plain, *(each.predict(shown) for each in resized)],
                }
                found.setdefault(("plain", condition), {})[index] = plain
                for name, each in views.items():
                    found.setdefault((f"{name}, fused", condition), {})[index] = TASK.merge(each)
                    found.setdefault((f"{name}, suppressed", condition), {})[index] = softly_suppressed(each)
    print(f"{args.scenes} scenes, severity {args.severity}, points of AP")
    print(
        f"| views | {' | '.join(f'Δ {each}' for each in CONDITIONS)} | Δ mean of shifts |\n|{'---|' * (len(CONDITIONS) + 2)}"
    )
    for views in ("flip", "scales"):
        names = (f"{views}, fused", f"{views}, suppressed")
        for name, against in ((names[0], "plain"), (names[1], "plain"), names[::-1]):
            deltas = [
                paired_delta(*(ap_score(truth, found[way, each]) for way in (against, name)))
                for each in CONDITIONS
            ]
            cells = [str(image_bootstrap(each, args.scenes)) for each in deltas]
            mean = mean_interval([image_draws(each, args.scenes) for each in deltas[1:]], args.scenes)
            print(f"| {name} against {against} | {' | '.join(cells)} | {mean} |", flush=True)


def ap_score(truth: GroundTruthBoxes, found: dict[int, Any]) -> Score:
    """The AP of one method on any draw of the scenes."""
    matches = match_boxes(truth, predicted_boxes(found))
    return rank_matches(matches, truth.categories, len(truth.images)).average_precision


def _truth(drawn: list[Scene]) -> GroundTruthBoxes:
    owners = np.repeat(np.arange(len(drawn)), [len(one.categories) for one in drawn])
    boxes = np.concatenate([one.boxes for one in drawn]).astype(np.float64)
    return GroundTruthBoxes(
        images=list(range(len(drawn))),
        categories=list(range(1, len(THINGS) + 1)),
        image_ids=owners,
        boxes=boxes,
        labels=np.concatenate([one.categories for one in drawn]) + 1,
        areas=boxes[:, 2:].prod(1),
        crowd=np.zeros(len(boxes), dtype=bool),
    )


if __name__ == "__main__":
    main()
