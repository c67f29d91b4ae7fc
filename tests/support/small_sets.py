"""Small data sets in the public layouts, with contents that the tests know exactly."""

import json
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

COCO_IDS = [number for number in range(1, 91) if number not in (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)]


def picture(index: int, height: int, width: int) -> np.ndarray:
    rng = np.random.default_rng(index)
    rough = rng.integers(0, 256, (6, 8, 3)).astype(np.uint8)
    return cv2.resize(rough, (width, height), interpolation=cv2.INTER_CUBIC)


def rectangle(box: tuple[int, int, int, int]) -> list[list[int]]:
    x, y, w, h = box
    return [[x, y, x + w, y, x + w, y + h, x, y + h]]


def coco_content(count: int, height: int = 96, width: int = 128) -> dict:
    """Every image has two rectangles; all 80 categories of COCO are listed."""
    boxes = [(40, 30, 50, 40), (0, 0, 12, 9)]
    annotations = [
        {
            "id": 1 + 2 * image + number,
            "image_id": 100 + image,
            "category_id": COCO_IDS[(7 * image + number) % 80],
            "bbox": list(box),
            "area": box[2] * box[3],
            "iscrowd": 0,
            "segmentation": rectangle(box),
        }
        for image in range(count)
        for number, box in enumerate(boxes)
    ]
    return {
        "info": {"description": "small"},
        "images": [
            {"id": 100 + image, "file_name": f"{image:06d}.jpg", "height": height, "width": width}
            for image in range(count)
        ],
        "annotations": annotations,
        "categories": [{"id": number, "name": f"thing {number}"} for number in COCO_IDS],
    }


def write_coco(root: Path, content: dict, split: str = "val2017") -> Path:
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    (root / split).mkdir(exist_ok=True)
    for entry in content["images"]:
        pixels = picture(entry["id"], entry["height"], entry["width"])
        Image.fromarray(pixels).save(root / split / entry["file_name"], quality=95)
    (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))
    return root


def write_semantic(root: Path, count: int, classes: str | None = "sky\nroad\ncar\n", top: int = 3) -> Path:
    """Label values 0..top in blocks, 96 x 128."""
    for folder in ("images", "annotations"):
        (root / folder / "validation").mkdir(parents=True)
    for image in range(count):
        Image.fromarray(picture(image, 96, 128)).save(root / f"images/validation/scene_{image:03d}.jpg")
        blocks = np.random.default_rng(image).integers(0, top + 1, (6, 8)).astype(np.uint8)
        labels = np.kron(blocks, np.ones((16, 16), dtype=np.uint8))
        Image.fromarray(labels).save(root / f"annotations/validation/scene_{image:03d}.png")
    if classes is not None:
        (root / "classes.txt").write_text(classes)
    return root
