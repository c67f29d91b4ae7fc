"""The paper's files in miniature: 40-block weights under their released names, and the sets in their public layouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from golden import make_weight
from gramloop.models.backbone import BackboneShape
from gramloop.models.detector import DETECTOR_BACKBONE, WindowedDetector
from gramloop.models.dino import meta_backbone
from gramloop.models.mask2former import SEGMENTOR_BACKBONE, Mask2FormerSegmentor, Mask2FormerShape
from gramloop.models.plain_detr import PlainDetr, PlainDetrConfig
from gramloop.reproduce import read_recipe
from gramloop.util.yaml_files import read_yaml
from small_sets import coco_content, picture, write_coco

EXEMPLAR = 360325  # the paper's COCO image
HEIGHT, WIDTH = 64, 96
_SHAPE = BackboneShape(40, 32, head_dim=16, hidden=16, gated=True, qkv_bias=False, local_cls_norm=True)
_DETECTOR = PlainDetrConfig(256, 32, 8, 1, 32, 1, 32, 8, queries=12)
_SEGMENTER = Mask2FormerShape(32, hidden=32, queries=10, feedforward=32)


def write_weights(folder: Path) -> Path:
    """Random weights with the released names of files and tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    recipe = read_recipe("paper")
    with torch.device("meta"):
        detector = WindowedDetector(meta_backbone(_SHAPE), PlainDetr(_DETECTOR)).released_shapes()
        segmenter = Mask2FormerSegmentor(meta_backbone(_SHAPE), _SEGMENTER).released_shapes()
    backbone = _weights({n: s for n, s in detector.items() if n.startswith(DETECTOR_BACKBONE)})
    backbone = {name.removeprefix(DETECTOR_BACKBONE): value for name, value in backbone.items()}
    torch.save(backbone, folder / recipe.models["detector"].backbone)
    head = _weights({n: s for n, s in detector.items() if not n.startswith(DETECTOR_BACKBONE)})
    torch.save({"model": head}, folder / recipe.models["detector"].head)
    head = _weights({n: s for n, s in segmenter.items() if not n.startswith(SEGMENTOR_BACKBONE)})
    torch.save(head, folder / recipe.models["segmenter"].head)
    return folder


def _weights(shapes: Mapping[str, Sequence[int]]) -> dict[str, torch.Tensor]:
    return {name: make_weight(name, list(shape), 0, _SHAPE.head_dim) for name, shape in shapes.items()}


def write_sets(folder: Path, perturbed: Sequence[str], severities: Sequence[int] = (3, 5)) -> Path:
    """COCO, COCO-O, COCO-P, ADE20K and ADE20K-P in their public layouts, two images each.

    Args:
        folder: for all of them.
        perturbed: names of the perturbations of both -P suites.
        severities: of these.
    """
    content = _coco()
    write_coco(folder / "coco", content)
    for domain in ("cartoon", "handmake", "painting", "sketch", "tattoo", "weather"):
        write_coco(folder / "ood_coco" / domain, content)
    _write_ade20k(folder / "ADEChallengeData2016")
    for name in perturbed:
        for severity in severities:
            write_coco(folder / f"coco-p/{name}/{severity}/coco", content)
            _write_ade20k(folder / f"ade20k-p/{name}/{severity}/ade/ADEChallengeData2016")
    return folder


def _coco() -> dict[str, Any]:
    content = coco_content(2, HEIGHT, WIDTH)
    for part, key in (("images", "id"), ("annotations", "image_id")):
        for entry in content[part]:
            entry[key] = EXEMPLAR if entry[key] == 101 else entry[key]
    return content


def _write_ade20k(root: Path) -> None:
    for part in ("images", "annotations"):
        (root / part / "validation").mkdir(parents=True)
    for number in (1, 2):
        name = f"validation/ADE_val_{number:08d}"
        Image.fromarray(picture(number, HEIGHT, WIDTH)).save(root / f"images/{name}.jpg")
        blocks = np.random.default_rng(number).integers(0, 151, (4, 6)).astype(np.uint8)
        Image.fromarray(np.kron(blocks, np.ones((16, 16), np.uint8))).save(root / f"annotations/{name}.png")


def small_recipe(families: Sequence[str], perturbed: Sequence[str]) -> dict[str, Any]:
    """The paper's recipe with small views, fewer conditions and fewer images to time: every output is its own."""
    path = Path(read_recipe("paper").folder) / "paper.yaml"
    content: dict[str, Any] = read_yaml(path, "a recipe")
    content["comparable"] = False
    content["printed"] = str(path.with_name("printed.yaml"))
    content["models"]["detector"]["sizes"] = {"short_side": 64}
    content["models"]["segmenter"]["sizes"] = {"short_side": 64, "crop": 64, "stride": 48}
    for entry in content["data"].values():
        entry["partial"] = True
    for entry in content["evaluations"].values():
        entry["time_images"] = min(entry.get("time_images", 0), 2)
        if entry.get("severities") != [10]:
            kind = entry["suite"].rpartition("-")[2]
            chosen = {"c": families, "p": perturbed}.get(kind)
            if chosen is not None:
                entry.update(conditions=list(chosen), severities=[3, 5])
    return content
