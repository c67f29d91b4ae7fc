"""Scoring one condition of COCO as the detector of the paper fills it: 5,000 images, 1,500 boxes each, two methods.

Prints seconds and peak memory of reading its units and of everything a report needs of it, and what that makes for all
conditions of the paper that are scored by AP.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from gramloop.data.suites import find_suite
from gramloop.data.truth import Instances
from gramloop.evaluate.methods import read_methods
from gramloop.evaluate.plan import DataSource, Plan, PlannedModel, Workload
from gramloop.evaluate.rows import Facts, UnitRows
from gramloop.evaluate.store import Store, read_condition
from gramloop.report.load import measure_condition
from gramloop.tasks.detection import Detection

CATEGORIES = {number: f"category {number}" for number in range(1, 81)}
SUITES = ("coco", "coco-o", "coco-c", "coco-p")
KEY = "fog/3"


def make_image(rng: np.random.Generator, boxes: int) -> tuple[Detection, Instances]:
    """Objects as in COCO (7 an image, of few categories), boxes around them and many that are nowhere near."""
    many = rng.poisson(7.3)
    corner, size = rng.uniform(0, 400, (many, 2)), rng.lognormal(4, 1, (many, 2))
    labels = rng.choice(rng.integers(1, 81, 3), many)
    truth = np.hstack([corner, size])
    near = min(boxes, 12 * many)
    whose = rng.integers(0, max(many, 1), near)
    found = rng.uniform(0, 400, (boxes, 4))
    found[:, 2:] = found[:, :2] + rng.lognormal(4, 1, (boxes, 2))
    classes = rng.integers(1, 81, boxes)
    if many:
        found[:near] = np.hstack([corner, corner + size])[whose] + rng.normal(0, 8, (near, 4))
        classes[:near] = labels[whose]
    scores = np.sort(rng.beta(0.3, 4, boxes))[::-1]
    detection = Detection(found.astype(np.float32), scores.astype(np.float32), classes)
    areas, crowd = size.prod(axis=1), rng.random(many) < 0.01
    return detection, Instances(np.arange(many), truth, labels, areas, crowd)


def write(folder: Path, images: int, boxes: int) -> Store[Plan]:
    """One condition in a store, as an evaluation leaves it."""
    plan = Plan(
        "coco-c", "detection", tuple(read_methods(["baseline", "gramloop"])), {KEY: images}, max(1, images // 50),
        CATEGORIES, DataSource("none"), PlannedModel("files", {}, {}, 40),
    )  # fmt: skip
    store = Store(folder, plan)
    workload = Workload(plan.hash, "detection", plan.classes, *(lambda *_: None,) * 2, plan.load_task)
    for part in plan.parts:
        made = {position: make_image(np.random.default_rng(position), boxes) for position in part.images}
        for unit in part.units:
            rows = UnitRows(workload, plan.load_task(), unit)
            for position, (detection, truth) in made.items():
                rows.add(position, str(position), detection, truth)
            store.write(unit, rows.table(), [], [], Facts(1.0, "", 1.0, 0, "cpu", "here"))
    return store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--boxes", type=int, default=1500)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = write(Path(folder), options.images, options.boxes)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.process_time()
        stored = read_condition(store, KEY)
        read = time.process_time() - began
        assert stored is not None
        measure_condition(store.plan, stored)
        took = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    conditions = sum(len(find_suite(name).conditions) for name in SUITES)
    print(
        f"{options.images:,} images, {options.boxes:,} boxes, 2 methods: {took:.1f} s ({read:.1f} s to read)"
    )
    print(f"peak memory {peak / 1e6:.2f} GB ({before / 1e6:.2f} GB before)")
    print(
        f"{conditions} conditions: {took * conditions / 60:.0f} core-minutes, {took * conditions / 480:.1f} minutes on 8 cores"
    )


if __name__ == "__main__":
    main()
