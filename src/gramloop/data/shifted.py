"""Shifts of records, computed when they are read: pixels, label maps, boxes and masks move together."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gramloop.data.masks import annotation_mask, encode_mask
from gramloop.data.records import DataSet, Image8, Record
from gramloop.data.suites import Condition, SuiteKind
from gramloop.data.truth import Annotation
from gramloop.errors import GramLoopError
from gramloop.shifts import geometry
from gramloop.shifts.corruptions import corrupt
from gramloop.shifts.perturbations import perturb
from gramloop.shifts.seeds import generator, signs

Encoding = Literal["png", "jpg"]
ENCODINGS = ("png", "jpg")
_FLAGS = {
    "png": (cv2.IMWRITE_PNG_COMPRESSION, 1),  # more costs several times the time for a tenth of the bytes
    "jpg": (cv2.IMWRITE_JPEG_QUALITY, 95),  # of the released -P images
}
ShiftedRecord = Record  # one whose ``shift`` is set


@dataclass(frozen=True)
class Shift:
    """What happens to every image of a condition.

    ``encoding`` is ``png`` for the exact pixels, or ``jpg`` for pixels that went through a JPEG file of
    quality 95, as those of the released -P sets did.
    """

    suite: str
    kind: SuiteKind
    condition: Condition
    encoding: Encoding = "png"
    frost_textures: Path | None = None

    def __post_init__(self) -> None:
        if self.encoding not in ENCODINGS:
            raise GramLoopError(f"the encoding must be one of {', '.join(ENCODINGS)}, not {self.encoding!r}")

    @property
    def moves(self) -> bool:
        """Whether annotations move with the pixels."""
        return self.kind == "p" and self.condition.name in geometry.GEOMETRIC

    def affine(self, record: Record) -> geometry.Matrix:
        """The map from clean to shifted coordinates; one image keeps its directions over all severities."""
        name, severity = self.condition.name, self.condition.severity
        directions = signs(record.image_id, self.suite)
        return geometry.affine_matrix(name, severity, record.height, record.width, directions)

    def pixels(self, image: Image8, record: Record) -> Image8:
        """The shifted image, before any encoding."""
        name, severity = self.condition.name, self.condition.severity
        if self.moves:
            return geometry.warp_image(image, self.affine(record))
        rng = generator(self.suite, name, severity, record.image_id)
        if self.kind == "p":
            return perturb(image, name, severity, rng)
        return corrupt(image, name, severity, rng, frost_textures=self.frost_textures)

    def encoded(self, image: Image8, record: Record) -> bytes:
        """The shifted image as the bytes of a file."""
        return encode(self.pixels(image, record), self.encoding)

    def stored_pixels(self, image: Image8, record: Record) -> Image8:
        """The shifted image as it would be read from a file."""
        if self.encoding == "png":
            return self.pixels(image, record)
        with Image.open(io.BytesIO(self.encoded(image, record))) as picture:
            return np.array(picture.convert("RGB"))

    def annotations(
        self, annotations: Iterable[Annotation], record: Record, *, run_lengths: bool = False
    ) -> Iterator[Annotation]:
        """COCO entries after the move: boxes, areas and shapes of the visible pixels; the vanished dropped.

        Shapes are outlines, as the released sets have them, or exact ``run_lengths``.
        """
        affine = self.affine(record)
        for annotation in annotations:
            mask = annotation_mask(annotation, record.height, record.width)
            warped = geometry.warp_masks(mask[None], affine)[0]
            box = geometry.visible_box(warped)
            shape = encode_mask(warped) if run_lengths else geometry.polygons(warped)
            if box is not None and shape:
                moved = {"bbox": list(box), "area": geometry.area(warped), "segmentation": shape}
                yield {**annotation, **moved}


def shift_record(record: Record, shift: Shift) -> Record:
    """The same image under a shift."""
    return replace(record, shift=shift)


def shift_data_set(data: DataSet, shift: Shift) -> DataSet:
    """A whole set under a shift; nothing is computed before a record is read."""
    return replace(data, records=tuple(shift_record(record, shift) for record in data))


def encode(pixels: NDArray[Any], encoding: Encoding = "png") -> bytes:
    """RGB pixels (H, W, 3), or numbers (H, W) of 8 or 16 bits, as the bytes of a PNG or JPEG file."""
    ordered = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR) if pixels.ndim == 3 else pixels
    written, data = cv2.imencode(f".{encoding}", ordered, _FLAGS[encoding])
    if not written:
        size = f"{pixels.shape[1]} x {pixels.shape[0]}"
        raise GramLoopError(f"an image of {size} and type {pixels.dtype} cannot be written as {encoding}")
    return bytes(data)
