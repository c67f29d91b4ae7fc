"""A set the size of COCO val2017 and predictions on it, both made up by rule: no photograph, no model, no chance.

Objects, sizes and classes are drawn as densely as COCO has them (7.36 objects an image, a third of them people). A
prediction finds an object or misses it, sets its box a little off and adds false alarms, the more of each the more severe
the shift; it follows from the image, the condition and the method alone.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from gramloop.data.coco import COCO_CATEGORY_IDS
from gramloop.data.opening import COCO_VAL2017
from gramloop.data.truth import Instances
from gramloop.evaluate.methods import BASELINE
from gramloop.models.tiny import WEIGHTS, DenseDetectConfig, DenseDetectHead, load_tiny
from gramloop.tasks.detection import Detection
from gramloop.tasks.released import DenseDetector

CATEGORIES = np.array(sorted(COCO_CATEGORY_IDS))
WIDTH, HEIGHT = 640, 480
DENSITY = (COCO_VAL2017.objects or 0) / (COCO_VAL2017.images or 1)
CROWDS = 0.01  # share of objects that are crowds
_SHAPE = np.exp(-0.045 * np.arange(len(CATEGORIES)))  # how common the classes are, but for people
_COMMON = np.concatenate([[0.3], 0.7 * _SHAPE[1:] / _SHAPE[1:].sum()])


def detector(device: torch.device) -> DenseDetector:
    """What the plan names as its model: one with COCO's classes that can be replayed; nothing is predicted with it."""
    tiny = load_tiny(WEIGHTS, device)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        head = DenseDetectHead(DenseDetectConfig(tiny.backbone.shape.width, len(CATEGORIES), 16))
    classes = {int(number): f"class {number}" for number in CATEGORIES}
    return DenseDetector(tiny.backbone, head.eval().to(device), tiny.segment.taps[-1], classes)


def write_set(folder: Path, images: int) -> None:
    """Image files and annotations in COCO's layout."""
    place = folder / "val2017"
    place.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(2017)
    ids, objects = annotated(rng, images)
    for number, colours in zip(ids, rng.integers(0, 256, (images, 3, 4, 3), dtype=np.uint8), strict=True):
        small = Image.fromarray(colours)
        small.resize((WIDTH, HEIGHT), Image.Resampling.NEAREST).save(place / f"{number:012d}.jpg", quality=40)
    content = {
        "images": [
            {"id": int(number), "file_name": f"{number:012d}.jpg", "width": WIDTH, "height": HEIGHT}
            for number in ids
        ],
        "annotations": objects,
        "categories": [{"id": int(number), "name": f"class {number}"} for number in CATEGORIES],
    }
    file = folder / "annotations" / "instances_val2017.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(content), encoding="utf-8")


def annotated(rng: np.random.Generator, images: int) -> tuple[NDArray[np.int64], list[dict[str, Any]]]:
    """The numbers of images, and the objects of all of them, image by image, as COCO's file has them."""
    total = round(DENSITY * images)
    owners = np.sort(rng.integers(0, images, total))  # some images have none, as in COCO
    ids = 139 + 97 * np.arange(images)
    objects = zip(ids[owners].tolist(), _objects(rng, total), strict=True)
    return ids, [{"id": 1 + place, "image_id": owner, **one} for place, (owner, one) in enumerate(objects)]


def _objects(rng: np.random.Generator, many: int) -> list[dict[str, object]]:
    sides = np.exp(rng.normal(4.1, 0.9, (many, 1)) + rng.normal(0, 0.35, (many, 2))).clip(
        6, [WIDTH - 1, HEIGHT - 1]
    )
    corners = rng.random((many, 2)) * ([WIDTH, HEIGHT] - sides)
    boxes = np.concatenate([corners, sides], axis=1).round(2)
    areas = (boxes[:, 2] * boxes[:, 3] * rng.uniform(0.4, 0.9, many)).round(2)
    labels = rng.choice(CATEGORIES, many, p=_COMMON)
    crowd = rng.random(many) < CROWDS
    return [
        {"bbox": box, "category_id": label, "area": area, "iscrowd": int(whole)}
        for box, label, area, whole in zip(
            boxes.tolist(), labels.tolist(), areas.tolist(), crowd, strict=True
        )
    ]


@cache
def _weakness(condition: str, method: str) -> float:
    """How bad predictions are, from 0 on clean images to about 1; a replay makes up for a part of it."""
    name, _, severity = condition.partition("/")
    kind = 0.6 + 0.4 * np.random.default_rng(list(name.encode())).random()
    gained = 0.0 if method == BASELINE else 0.03
    return float((int(severity or 0) / 5) * kind - gained)


def made_up(
    image: int, condition: str, method: str, truth: Instances, detections: int, blocks: int = 1
) -> Detection:
    """What a method predicts of one image under a condition."""
    weakness = _weakness(condition, method)
    seed = [image, *condition.encode()]
    shared, own = (np.random.default_rng(each) for each in (seed, [*seed, *method.encode()]))
    many = len(truth)
    luck = shared.normal(size=(many, 6)) + 0.3 * own.normal(size=(many, 6))
    sides = truth.boxes[:, 2:]
    ease = 0.8 * np.log(sides.prod(axis=1) / 60**2) / 2 + 2.2 - 1.6 * weakness + luck[:, 0]
    seen = (ease > -0.5) & ~truth.iscrowd
    care = np.exp(0.5 * shared.normal(size=(many, 1))) * (
        0.025 + 0.03 * weakness
    )  # some are harder to outline
    boxes = truth.boxes + luck[:, 2:] * np.tile(sides, 2) * care
    scores = 1 / (1 + np.exp(-(ease + 0.8 * luck[:, 1])))
    boxes, scores, labels = boxes[seen][:detections], scores[seen][:detections], truth.categories[seen]
    wrong = detections - len(boxes)
    alarms, marks = _false_alarms(own, truth, wrong, weakness)
    order_of = np.concatenate([scores, marks])
    order = np.argsort(-order_of, kind="stable")
    found = np.concatenate([boxes, alarms])
    found[:, 2:] = found[:, :2] + found[:, 2:].clip(1)
    names = np.concatenate([labels[:detections], own.choice(CATEGORIES, wrong)])
    return Detection(
        found[order].astype(np.float32), order_of[order].astype(np.float32), names[order], blocks=blocks
    )


def _false_alarms(
    rng: np.random.Generator, truth: Instances, many: int, weakness: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Boxes anywhere, with scores that are mostly low and seldom high."""
    spots = rng.random((many, 5))
    sides = np.exp(2.5 + 3.2 * spots[:, :2])
    boxes = np.concatenate([spots[:, 2:4] * ([WIDTH, HEIGHT] - sides.clip(max=400)), sides], axis=1)
    near = min(len(truth), many)
    boxes[:near] = truth.boxes[:near] * (0.6 + 0.8 * spots[:near, :1])  # some lie beside an object
    return boxes, spots[:, 4] ** (24 - 12 * max(weakness, 0.0))
