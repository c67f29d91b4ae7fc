"""AP on draws of images: the compiled way against the straight one, and what it takes to load it.

One condition the size of COCO val2017, with predictions made up by rule (`simulated_set`). Both score the same draws, in
turns; seconds are those of one core. Scores must agree to 1e-11 of a percentage.

    python benchmarks/ap_draws.py                  # 5,000 images x 100 boxes
    python benchmarks/ap_draws.py --images 500
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from datetime import date
from typing import Any

import numpy as np

from gramloop.data.truth import Instances
from gramloop.metrics import ap
from gramloop.metrics.bootstrap import REPLICATES, Score
from gramloop.tasks.base import Categories, Rows, get_task
from simulated_set import CATEGORIES, annotated, made_up

CONDITION = "fog/3"
SAME = 1e-11
TURNS = 3


def matched(images: int, detections: int, method: str = "baseline") -> Score:
    ids, objects = annotated(np.random.default_rng(2017), images)
    own: dict[int, list[Any]] = {number: [] for number in ids.tolist()}
    for each in objects:
        own[each["image_id"]].append(each)
    task, categories = get_task("detection"), Categories({int(each): "" for each in CATEGORIES})
    rows = []
    for number, each in own.items():
        truth = Instances.from_annotations(each)
        found = made_up(number, CONDITION, method, truth, detections)
        rows.append(task.statistics(found, truth, categories))
    return task.scorer(Rows.of(rows), categories)


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    began = time.process_time()
    found = call()
    return time.process_time() - began, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--detections", type=int, default=100, help="boxes an image (100)")
    parser.add_argument("--draws", type=int, default=256, help="that are scored both ways (256)")
    args = parser.parse_args()
    found, images = matched(args.images, args.detections), args.images
    draws = np.random.default_rng(0).multinomial(images, np.full(images, 1 / images), size=args.draws)
    ap.COMPILED_WORK = 0

    def straight() -> Any:
        few = ap.COMPILED_DRAWS - 1
        return np.concatenate([found(draws[at : at + few]) for at in range(0, len(draws), few)])

    first, _ = seconds(lambda: found(draws))
    turns = [(seconds(lambda: found(draws)), seconds(straight)) for _ in range(TURNS)]
    apart = max(float(np.abs(one[1] - other[1]).max()) for one, other in turns)
    if apart > SAME:
        raise SystemExit(f"scores differ by {apart}")
    compiled, plain = (min(turn[which][0] for turn in turns) for which in (0, 1))
    print(f"{images} images x {args.detections} boxes, {args.draws} draws, {date.today()}")
    print("| | seconds | of 10,000 draws |\n|---|---:|---:|")
    for name, each in (("straight", plain), ("compiled", compiled)):
        print(f"| {name} | {each:.3f} | {each * REPLICATES / len(draws):.1f} |")
    print(f"ratio {plain / compiled:.1f}; scores differ by {apart:.1e} at most")
    print(
        f"the first call of a process takes {first - compiled:.2f} s more: lists, numba, compiling or loading"
    )


if __name__ == "__main__":
    main()
