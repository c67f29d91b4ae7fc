"""Instance masks: COCO's polygons, boxes and run lengths to pixels.

Rasterisation follows COCO's convention to the pixel, so that masks warped here are the masks which
everybody else scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gramloop.data.run_lengths import run_length_mask
from gramloop.errors import GramLoopError
from gramloop.shifts.geometry import Mask

if TYPE_CHECKING:
    from gramloop.data.records import Annotation

SUPERSAMPLING = 5  # COCO traces polygons on a grid five times finer than the pixels


def annotation_mask(annotation: Annotation, height: int, width: int) -> Mask:
    """The pixels of one annotation; its box where no segmentation is known."""
    segmentation = annotation.get("segmentation")
    if not segmentation:
        return box_mask(annotation["bbox"], height, width)
    if isinstance(segmentation, dict):
        mask = run_length_mask(segmentation)
        if mask.shape != (height, width):
            raise GramLoopError(
                f"the run lengths of annotation {annotation.get('id')} fill {mask.shape[1]} x {mask.shape[0]} "
                f"pixels, but its image is {width} x {height}"
            )
        return mask
    mask = np.zeros((height, width), dtype=np.uint8)
    for polygon in segmentation:
        mask |= polygon_mask(polygon, height, width)
    return mask


def box_mask(box: Sequence[float], height: int, width: int) -> Mask:
    """A filled box; a pixel belongs to it when its centre does."""
    x, y, w, h = box
    mask = np.zeros((height, width), dtype=np.uint8)
    top, bottom = (max(0, int(np.ceil(edge - 0.5))) for edge in (y, y + h))
    left, right = (max(0, int(np.ceil(edge - 0.5))) for edge in (x, x + w))
    mask[top:bottom, left:right] = 1
    return mask


def polygon_mask(polygon: Sequence[float], height: int, width: int) -> Mask:
    """Fill one polygon x0, y0, x1, y1, … the way COCO does."""
    corners = np.asarray(polygon, dtype=np.float64).reshape(-1, 2)
    fine = (corners * SUPERSAMPLING + 0.5).astype(np.int64)
    u, v = _outline(fine, np.roll(fine, -1, axis=0))
    stepped = np.flatnonzero(u[1:] != u[:-1]) + 1
    column = np.where(u[stepped] < u[stepped - 1], u[stepped], u[stepped] - 1)
    x = (column + 0.5) / SUPERSAMPLING - 0.5
    y = (np.minimum(v[stepped], v[stepped - 1]) + 0.5) / SUPERSAMPLING - 0.5
    y = np.ceil(np.clip(y, 0, height))
    inside = (x == np.floor(x)) & (x >= 0) & (x <= width - 1)
    crossings = (x[inside] * height + y[inside]).astype(np.int64)
    # down the columns, every crossing of the outline turns filling on or off
    turns = np.sort(np.append(crossings, height * width))
    filled = np.zeros(height * width, dtype=np.uint8)
    for start, stop in zip(turns[:-1:2].tolist(), turns[1::2].tolist(), strict=False):
        filled[start:stop] = 1
    return np.ascontiguousarray(filled.reshape(width, height).T)


def _outline(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
    """All fine-grid points along the closed outline, edge after edge, both ends included."""
    us: list[NDArray[np.int64]] = []
    vs: list[NDArray[np.int64]] = []
    for (xs, ys), (xe, ye) in zip(starts.tolist(), ends.tolist(), strict=True):
        flat = abs(xe - xs) >= abs(ye - ys)
        backward = xs > xe if flat else ys > ye
        if backward:
            xs, ys, xe, ye = xe, ye, xs, ys
        length = xe - xs if flat else ye - ys
        t = np.arange(length + 1)
        if backward:
            t = t[::-1]
        slope = ((ye - ys) if flat else (xe - xs)) / length if length else 0.0
        across = ((ys if flat else xs) + slope * t + 0.5).astype(np.int64)
        along = t + (xs if flat else ys)
        us.append(along if flat else across)
        vs.append(across if flat else along)
    return np.concatenate(us), np.concatenate(vs)
