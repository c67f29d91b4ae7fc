"""The paper's files in miniature: 40-block weights under their released names, and the sets in their public layouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from golden import detector_shapes, make_weight, segmentor_shapes
from gramloop.models.backbone import BackboneShape
from gramloop.models.detector import DETECTOR_BACKBONE, WindowedDetector
from gramloop.models.dino import meta_backbone
from gramloop.models.mask2former import SEGMENTOR_BACKBONE, Mask2FormerSegmentor
from gramloop.models.plain_detr import PlainDetr, PlainDetrConfig
from gramloop.reproduce import read_recipe
from gramloop.util.json_files import read_yaml
from small_sets import coco_content, picture, write_coco

EXEMPLAR = 360325  # the paper's COCO image
DOMAINS = ("cartoon", "handmake", "painting", "sketch", "tattoo", "weather")  # of COCO-O
HEIGHT, WIDTH = 64, 96
_HEAD_DIM = 16
_DETECTOR = PlainDetrConfig(256, 32, 8, 1, 32, 1, 32, 8, queries=12)


def write_weights(folder: Path, blocks: int = 40) -> Path:
    """Random weights with the released names of tensors; names of files end in no digest, which they would not have."""
    folder.mkdir(parents=True, exist_ok=True)
    shape = BackboneShape(
        blocks, 32, head_dim=_HEAD_DIM, hidden=16, gated=True, qkv_bias=False, local_cls_norm=True
    )
    with torch.device("meta"):
        detector = detector_shapes(WindowedDetector(meta_backbone(shape), PlainDetr(_DETECTOR)))
        segmentor = Mask2FormerSegmentor(meta_backbone(shape), 32, hidden=32, queries=10, feedforward=32)
        segmenter = segmentor_shapes(segmentor)
    backbone = _weights({n: s for n, s in detector.items() if n.startswith(DETECTOR_BACKBONE)})
    backbone = {name.removeprefix(DETECTOR_BACKBONE): value for name, value in backbone.items()}
    torch.save(backbone, folder / "backbone.pth")
    head = _weights({n: s for n, s in detector.items() if not n.startswith(DETECTOR_BACKBONE)})
    torch.save({"model": head}, folder / "detector.pth")
    head = _weights({n: s for n, s in segmenter.items() if not n.startswith(SEGMENTOR_BACKBONE)})
    torch.save(head, folder / "segmenter.pth")
    return folder


def _weights(shapes: Mapping[str, Sequence[int]]) -> dict[str, torch.Tensor]:
    return {name: make_weight(name, list(shape), 0, _HEAD_DIM) for name, shape in shapes.items()}


def write_sets(folder: Path, perturbed: Sequence[str], images: int = 2) -> Path:
    """COCO, COCO-O, COCO-P, ADE20K and ADE20K-P in their public layouts.

    Args:
        folder: for all of them.
        perturbed: names of the perturbations of both -P suites, with severities 3 and 5.
        images: how many COCO, COCO-O and COCO-P have in each condition; the others have two.
    """
    content = _coco(images)
    write_coco(folder / "coco", content)
    for domain in DOMAINS:
        write_coco(folder / "ood_coco" / domain, content)
    _write_ade20k(folder / "ADEChallengeData2016")
    for name in perturbed:
        for severity in (3, 5):
            write_coco(folder / f"coco-p/{name}/{severity}/coco", content)
            _write_ade20k(folder / f"ade20k-p/{name}/{severity}/ade/ADEChallengeData2016")
    return folder


def _coco(images: int) -> dict[str, Any]:
    content = coco_content(images, HEIGHT, WIDTH)
    for part, key in (("images", "id"), ("annotations", "image_id")):
        for entry in content[part]:
            entry[key] = EXEMPLAR if entry[key] == 99 + images else entry[key]
    return content


def _write_ade20k(root: Path) -> None:
    for part in ("images", "annotations"):
        (root / part / "validation").mkdir(parents=True)
    for number in (1, 2):
        name = f"validation/ADE_val_{number:08d}"
        Image.fromarray(picture(number, HEIGHT, WIDTH)).save(root / f"images/{name}.jpg")
        blocks = np.random.default_rng(number).integers(0, 151, (4, 6)).astype(np.uint8)
        Image.fromarray(np.kron(blocks, np.ones((16, 16), np.uint8))).save(root / f"annotations/{name}.png")


def small_recipe(
    families: Sequence[str],
    perturbed: Sequence[str],
    severities: Sequence[int] = (3, 5),
    domains: Sequence[str] = DOMAINS,
    timed: int = 2,
) -> dict[str, Any]:
    """The paper's recipe with small views, fewer conditions and fewer images to time: every output is its own.

    Args:
        families: of the -C suites.
        perturbed: of the -P suites, with severities 3 and 5, as released.
        severities: of the -C suites.
        domains: of COCO-O.
        timed: images to time each method on.
    """
    path = Path(read_recipe("paper").folder) / "paper.yaml"
    content: dict[str, Any] = read_yaml(path, "a recipe")
    content["comparable"] = False
    content["printed"] = str(path.with_name("printed.yaml"))
    for name, model in content["models"].items():
        model.update(backbone="backbone.pth", head=f"{name}.pth")
    content["models"]["detector"]["sizes"] = {"short_side": 64}
    content["models"]["segmenter"]["sizes"] = {"short_side": 64, "crop": 64, "stride": 48}
    for entry in content["data"].values():
        entry["partial"] = True
    content["evaluations"]["coco-o"]["conditions"] = list(domains)
    for entry in content["evaluations"].values():
        entry["time_images"] = min(entry.get("time_images", 0), timed)
        if entry.get("severities") != [10]:
            kind = entry["suite"].rpartition("-")[2]
            chosen = {"c": (families, severities), "p": (perturbed, (3, 5))}.get(kind)
            if chosen is not None:
                entry.update(conditions=list(chosen[0]), severities=list(chosen[1]))
    return content
