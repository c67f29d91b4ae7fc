"""Rotation, translation and shear of images, label maps, depth and instance masks.

The canvas keeps its size. Directions are a pair of signs per image, (x, y); rotation and shear use the first.
"""

import math
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from gramloop.errors import GramLoopError
from gramloop.shifts.common import Scale

Matrix = npt.NDArray[np.float64]  # (2, 3), from source to target coordinates (x, y, 1)
Mask = npt.NDArray[np.uint8]  # (H, W), 0 or 1

GEOMETRIC = ("rotate", "translate", "shear")

_SCALES = {
    "rotate": Scale((20, 30, 40, 50, 60), "add", most=180),  # degrees
    "translate": Scale((20, 40, 60, 80, 100), "add"),  # pixels
    "shear": Scale((5, 10, 15, 20, 25), "add", most=85),  # degrees
}


def affine_matrix(name: str, severity: int, height: int, width: int, signs: tuple[int, int]) -> Matrix:
    """The forward affine map of a transform; the middle of an image is ((W-1)/2, (H-1)/2).

    A positive rotation is clockwise on the screen, a positive shear moves the top to the right.
    """
    if len(signs) != 2 or any(sign not in (-1, 1) for sign in signs):
        raise GramLoopError(f"signs {signs!r} of {name}: a pair of 1 or -1 is expected")
    amount = _SCALES[name].at(name, severity)
    if name == "rotate":
        turned: Matrix = cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), -amount * signs[0], 1)
        return turned
    if name == "translate":
        return np.array([[1, 0, amount * signs[0]], [0, 1, amount * signs[1]]], dtype=np.float64)
    slope = math.tan(math.radians(amount * signs[0]))
    return np.array([[1, -slope, slope * (height - 1) / 2], [0, 1, 0]], dtype=np.float64)


def warp_image(image: npt.NDArray[np.uint8], affine: Matrix) -> npt.NDArray[np.uint8]:
    """The image (H, W) or (H, W, 3) moved, bilinear, black where nothing was."""
    size = image.shape[1], image.shape[0]
    warped: npt.NDArray[np.uint8] = cv2.warpAffine(image, affine, size, flags=cv2.INTER_LINEAR, borderValue=0)
    return warped


def warp_labels(labels: npt.NDArray[Any], affine: Matrix, fill: int) -> npt.NDArray[Any]:
    """Labels or depth (H, W) moved, nearest neighbour, `fill` where nothing was; a mean of two would be in neither."""
    # OpenCV warps few types; float64 holds every label below 2**53 exactly.
    known = labels.dtype in (np.uint8, np.uint16, np.int16, np.float32)
    carrier = labels if known else labels.astype(np.float64)
    size = labels.shape[1], labels.shape[0]
    warped = cv2.warpAffine(carrier, affine, size, flags=cv2.INTER_NEAREST, borderValue=float(fill))
    return np.asarray(warped).astype(labels.dtype, copy=False)


def warp_mask(mask: npt.NDArray[Any], affine: Matrix) -> Mask:
    """The mask (H, W) of an instance, true where it is, moved bilinearly and rounded back to 0 and 1."""
    return warp_image(_as_mask(mask), affine)


def visible_box(mask: npt.NDArray[Any]) -> tuple[int, int, int, int] | None:
    """The tight box (x, y, width, height) of a mask's pixels, or None if it has none."""
    x, y, width, height = cv2.boundingRect(_as_mask(mask))
    return (int(x), int(y), int(width), int(height)) if width and height else None


def area(mask: npt.NDArray[Any]) -> int:
    """The number of a mask's pixels."""
    return int(np.count_nonzero(mask))


def polygons(mask: npt.NDArray[Any]) -> list[list[float]]:
    """The outlines of a mask as [x0, y0, x1, y1, …]; outlines with fewer than three corners are left out.

    An instance without a polygon counts as vanished. Outlines of holes are listed too, as the published sets
    list them; COCO reads a list of polygons as their union, so holes are filled.
    """
    outlines, _ = cv2.findContours(_as_mask(mask), cv2.RETR_TREE, cv2.CHAIN_APPROX_SIMPLE)
    return [outline.astype(float).reshape(-1).tolist() for outline in outlines if len(outline) >= 3]


def _as_mask(mask: npt.NDArray[Any]) -> Mask:
    return np.ascontiguousarray(mask != 0).view(np.uint8)
