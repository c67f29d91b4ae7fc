"""Segments and instance masks that a transformers folder's own image processor reads from queries.

Processors give segments with thresholds of their own, and are asked to fuse nothing: all stuff of one class is made one
segment here, since fusing in some of them numbers two segments alike. Masks of instances are taken without a threshold,
as average precision wants them; where a processor paints them over each other, they are read from the queries.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch.nn.functional as F

from gramloop.errors import GramLoopError
from gramloop.tasks.class_names import COCO, Classes
from gramloop.tasks.instance import InstanceMasks
from gramloop.tasks.module_predictor import Size
from gramloop.tasks.panoptic import Panoptic, Segment
from gramloop.tasks.queries import Masks, best_masks

KEPT = 100  # masks of one image


def thing_numbers(classes: Classes) -> frozenset[int]:
    """The classes that COCO counts as things, by name; all of them where no name is COCO's."""
    names = set(COCO.values())
    known = frozenset(number for number, name in classes.items() if name in names)
    return known or frozenset(classes)


def read_segments(processor: Any, outputs: Any, size: Size, classes: Classes) -> Panoptic:
    """The segments of one image of ``size`` (height, width)."""
    _refuse_windows(processor)
    read, things = processor.post_process_panoptic_segmentation, thing_numbers(classes)
    none: dict[str, Any] = (
        {"label_ids_to_fuse": set()} if "label_ids_to_fuse" in inspect.signature(read).parameters else {}
    )
    found = read(outputs, target_sizes=[size], **none)[0]
    given = found["segmentation"].cpu().numpy()
    segments = np.zeros(size, np.int32)
    infos: list[Segment] = []
    stuff: dict[int, int] = {}
    for info in found["segments_info"]:
        mask, kind, score = given == info["id"], int(info["label_id"]), float(info["score"])
        if not mask.any():
            continue
        number = len(infos) + 1 if kind in things else stuff.setdefault(kind, len(infos) + 1)
        if number > len(infos):
            infos.append(Segment(number, kind, kind in things, score))
        elif score > infos[number - 1].score:
            infos[number - 1] = Segment(number, kind, False, score)
        segments[mask] = number
    return Panoptic(segments, tuple(infos))


def read_masks(processor: Any, outputs: Any, size: Size) -> InstanceMasks:
    """The masks of one image of ``size`` (height, width), best first."""
    _refuse_windows(processor)
    read = processor.post_process_instance_segmentation
    if "return_binary_maps" not in inspect.signature(read).parameters:
        return _from_queries(processor, outputs, size)
    shown = _on_cpu(outputs)
    found: Mapping[str, Any] = read(shown, threshold=0.0, target_sizes=[size], return_binary_maps=True)[0]
    infos = found["segments_info"]
    maps = found["segmentation"].cpu().numpy().reshape(-1, *size)[: len(infos)] > 0
    scores, labels = (np.array([info[key] for info in infos]) for key in ("score", "label_id"))
    return InstanceMasks.from_masks(maps, scores, labels)


def _on_cpu(outputs: Any) -> SimpleNamespace:
    """The queries, for processors that paint them into a map of the CPU wherever they are."""
    names = ("class_queries_logits", "masks_queries_logits")
    return SimpleNamespace(**{name: getattr(outputs, name).cpu() for name in names})


def _from_queries(processor: Any, outputs: Any, size: Size) -> InstanceMasks:
    """EoMT's: from the padded square back to the image, then the best pairs of query and class."""
    short, long = (processor.size.get(f"{which}_edge") for which in ("shortest", "longest"))
    if not short:
        raise GramLoopError(
            f"the image processor shows images in the size {dict(processor.size)}; masks of instances need shortest_edge, as "
            "the folders for instances have it"
        )
    square = (short, long or short)
    logits = F.interpolate(outputs.masks_queries_logits.float(), square, mode="bilinear", align_corners=False)
    whole = processor.unpad_image(logits, [size], processor.size)[0]  # (queries, H, W)
    masks = Masks(size, lambda chosen: whole[chosen], size[0] * size[1])
    found = best_masks(outputs.class_queries_logits[0], masks, KEPT)
    return InstanceMasks(found.masks, found.scores, found.classes, found.boxes, size)


def _refuse_windows(processor: Any) -> None:
    if getattr(processor, "do_split_image", False):
        raise GramLoopError(
            "the image processor cuts images into windows (do_split_image), as for a class per pixel; segments and "
            "masks need a folder whose processor shows the whole image"
        )
