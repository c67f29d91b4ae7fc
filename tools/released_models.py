"""The table of released heads in docs/models.md, from models without weights: parameters, memory of weights, blocks.

``--measure NAME`` also predicts one image with random weights of that size, ordinary and replayed, and tells seconds and
the peak of memory: ``python tools/released_models.py --measure coco_panoptic_pmt_small_640_dinov3``.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from gramloop import ReplayConfig
from gramloop.models import (
    PMT,
    Backbone,
    DptDepthHead,
    Mask2FormerSegmentor,
    PMTHead,
    PMTShape,
    WindowedDetector,
)
from gramloop.models.backbone import default_taps
from gramloop.models.dino import SHAPES
from gramloop.models.plain_detr import PlainDetr
from gramloop.tasks import (
    Detector,
    DptDepthEstimator,
    Prediction,
    QueryConfig,
    QuerySegmenter,
    Segmenter,
    ViTPredictor,
)
from gramloop.tasks.semantic import SegmentConfig


@dataclass(frozen=True)
class Released:
    """A released head: its backbone, and how a predictor with both is made."""

    backbone: str
    make: Callable[[Backbone], ViTPredictor[Prediction]]


def pmt(backbone: Backbone, classes: int, queries: int = 200) -> PMT:
    """A PMT head on a backbone."""
    shape = PMTShape(backbone.shape.width, backbone.shape.head_dim, queries, classes)
    return PMT(backbone, PMTHead(shape))


def panoptic(side: int) -> Callable[[Backbone], ViTPredictor[Prediction]]:
    """COCO's 133 classes, in squares of this side."""
    return lambda vit: QuerySegmenter(pmt(vit, 133), "panoptic", QueryConfig(side))


def instance(side: int) -> Callable[[Backbone], ViTPredictor[Prediction]]:
    """COCO's 80 classes, in squares of this side."""
    return lambda vit: QuerySegmenter(pmt(vit, 80), "instance", QueryConfig(side))


HEADS = {
    "coco_panoptic_pmt_small_640_dinov3": Released("vits16", panoptic(640)),
    "coco_panoptic_pmt_base_640_dinov3": Released("vitb16", panoptic(640)),
    "coco_panoptic_pmt_large_640_dinov3": Released("vitl16", panoptic(640)),
    "coco_panoptic_pmt_large_1280_dinov3": Released("vitl16", panoptic(1280)),
    "coco_instance_pmt_large_640_dinov3": Released("vitl16", instance(640)),
    "coco_instance_pmt_large_1280_dinov3": Released("vitl16", instance(1280)),
    "ade20k_semantic_pmt_large_512_dinov3": Released(
        "vitl16", lambda vit: Segmenter(pmt(vit, 150, 100), SegmentConfig("even", 512))
    ),
    "dinov3_vit7b16_ade20k_m2f_head": Released(
        "vit7b16", lambda vit: Segmenter(Mask2FormerSegmentor(vit, 4096))
    ),
    "dinov3_vit7b16_coco_detr_head": Released(
        "vit7b16", lambda vit: Detector(WindowedDetector(vit, PlainDetr()))
    ),
    "dinov3_vit7b16_synthmix_dpt_head": Released(
        "vit7b16", lambda vit: DptDepthEstimator(vit, DptDepthHead(default_taps(40)))
    ),
}


def parameters(module: nn.Module) -> int:
    """How many numbers the weights are."""
    return sum(value.numel() for value in module.parameters())


def row(name: str) -> str:
    """One line of the table."""
    released = HEADS[name]
    with torch.device("meta"):
        predictor = released.make(Backbone(SHAPES[released.backbone]))
    head = getattr(predictor, "model", None) or predictor.head  # type: ignore[attr-defined]
    inner = getattr(head, "head", head)
    backbone, own = parameters(predictor.backbone.model), parameters(inner)
    gigabytes = [f"{(backbone + own) * size / 1e9:.2f} GB" for size in (4, 2)]
    cost = predictor.cost(ReplayConfig(), paired=True)
    cells = [f"`{name}`", released.backbone, f"{own / 1e6:.1f} M", *gigabytes, cost.baseline, cost.blocks]
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def measure(name: str) -> str:
    """Seconds and memory of one pair on this machine, with random weights."""
    released = HEADS[name]
    torch.manual_seed(0)
    predictor = released.make(Backbone(SHAPES[released.backbone]))
    image = np.random.default_rng(0).integers(0, 256, (480, 640, 3), dtype=np.uint8)
    predictor.predict(image)
    start = time.process_time()
    predictor.predict(image)
    plain = time.process_time() - start
    start = time.process_time()
    predictor.predict(image, ReplayConfig(), paired=True)
    pair = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return f"{name}: {plain:.1f} s of a core for a prediction, {pair:.1f} s for a pair, {peak:.2f} GB at most"


def main() -> None:
    """Print the table, or what one model takes here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", choices=tuple(HEADS))
    args = parser.parse_args()
    if args.measure:
        torch.set_num_threads(1)
        print(measure(args.measure))
        return
    print("| head | backbone | its parameters | float32 | bfloat16 | blocks | of a pair |")
    print("|---|---|---|---|---|---|---|")
    for name in HEADS:
        print(row(name))


if __name__ == "__main__":
    main()
