"""A part of COCO as label pictures of VOC's 21 classes, or of objects and what is none.

Every photograph with at least one object of these classes is taken, in the file's order. Larger objects are drawn
first, objects of other classes are background, and crowds of these classes are ignored.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image
from pycocotools.coco import COCO

VOC = [
    "background",
    "aeroplane",
    "bicycle",
    "bird",
    "boat",
    "bottle",
    "bus",
    "car",
    "cat",
    "chair",
    "cow",
    "diningtable",
    "dog",
    "horse",
    "motorbike",
    "person",
    "pottedplant",
    "sheep",
    "sofa",
    "train",
    "tvmonitor",
]
RENAMED = {
    "airplane": "aeroplane",
    "motorcycle": "motorbike",
    "dining table": "diningtable",
    "potted plant": "pottedplant",
    "couch": "sofa",
    "tv": "tvmonitor",
}
IGNORED = 255
OBJECTS = ["elsewhere", "salient"]


def write(coco_folder: Path, out: Path, objects: bool = False) -> None:
    """Photographs and label pictures, in ADE20K's layout; nothing where they are there."""
    if (out / "classes.txt").is_file():
        return
    coco = COCO(str(coco_folder / "annotations" / "instances_train2017.json"))
    numbers = dict.fromkeys(coco.cats, 1) if objects else voc_numbers(coco)
    chosen = [
        image for image in coco.dataset["images"]
        if any(each["category_id"] in numbers and not each["iscrowd"] for each in coco.imgToAnns[image["id"]])
    ]  # fmt: skip
    for place, image in enumerate(chosen):
        name = Path(image["file_name"])
        target = out / "images" / "validation" / f"{place:03}_{name}"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.symlink_to((coco_folder / "train2017" / name).resolve())
        label = out / "annotations" / "validation" / f"{target.stem}.png"
        label.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw(coco, image, numbers)).save(label)
    names = OBJECTS if objects else VOC
    (out / "classes.txt").write_text("".join(f"{i} {name}\n" for i, name in enumerate(names)))


def voc_numbers(coco: COCO) -> dict[int, int]:
    """VOC's class by COCO's category id."""
    names = {number: RENAMED.get(each["name"], each["name"]) for number, each in coco.cats.items()}
    return {number: VOC.index(name) for number, name in names.items() if name in VOC}


def draw(coco: COCO, image: dict[str, object], numbers: dict[int, int]) -> np.ndarray:
    """The label picture of one photograph, (H, W) uint8."""
    labels = np.zeros((image["height"], image["width"]), np.uint8)
    found = coco.imgToAnns[image["id"]]
    crowds = [each for each in found if each["iscrowd"] and each["category_id"] in numbers]
    for each in crowds:  # below the objects that are annotated one by one
        labels[coco.annToMask(each) > 0] = IGNORED
    for each in sorted((each for each in found if not each["iscrowd"]), key=lambda each: -each["area"]):
        labels[coco.annToMask(each) > 0] = numbers.get(each["category_id"], 0)
    return labels
