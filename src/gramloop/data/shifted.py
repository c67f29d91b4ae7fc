"""Records under a shift, computed when they are read: pixels, label maps, boxes and masks move together."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gramloop.data.masks import annotation_mask, encode_mask
from gramloop.data.records import DataSet, Image8, Record
from gramloop.data.suites import Condition, SuiteKind
from gramloop.data.truth import Annotation, DepthMap, LabelMap, ObjectMasks, SegmentMap
from gramloop.errors import GramLoopError
from gramloop.shifts import geometry
from gramloop.shifts.corruptions import corrupt
from gramloop.shifts.perturbations import perturb
from gramloop.shifts.seeds import generator, signs

Encoding = Literal["png", "jpg"]
ENCODINGS = ("png", "jpg")
JPEG_QUALITY = 95  # of the released -P images
PNG_COMPRESSION = 1  # larger values cost several times the time for a tenth of the bytes


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


@dataclass(frozen=True)
class ShiftedRecord(Record):
    """A record whose image, and annotations where they move, are shifted when read."""

    shift: Shift | None = None

    def image(self) -> Image8:
        """The shifted pixels, (H, W, 3) RGB uint8."""
        shift = self._shift()
        pixels = shift.pixels(super().image(), self)
        return pixels if shift.encoding == "png" else _through_jpeg(pixels)

    def encoded(self) -> bytes:
        """The shifted image as the bytes of a file."""
        shift = self._shift()
        return encode(shift.pixels(super().image(), self), shift.encoding)

    def labels(self) -> LabelMap:
        """The label map, moved with the pixels; ignored where the image was not."""
        labels, shift = super().labels(), self._shift()
        if not shift.moves or self.classes is None:
            return labels
        moved: LabelMap = geometry.warp_labels(labels, shift.affine(self), self.classes.ignored)
        return moved

    def depth(self) -> DepthMap:
        """The depth, moved with the pixels; not known where the image was not."""
        depth, shift = super().depth(), self._shift()
        if not shift.moves:
            return depth
        return replace(depth, metres=geometry.warp_depth(depth.metres, shift.affine(self)))

    def segments(self) -> SegmentMap:
        """The segments, moved with the pixels; none where the image was not."""
        segments, shift = super().segments(), self._shift()
        return segments.moved(shift.affine(self)) if shift.moves else segments

    def object_masks(self) -> ObjectMasks:
        """The masks of the objects, moved with the pixels."""
        masks, shift = super().object_masks(), self._shift()
        return masks.moved(shift.affine(self)) if shift.moves else masks

    def coco_entries(self) -> tuple[Annotation, ...]:
        """The entries of the COCO file, moved with the pixels."""
        annotations, shift = super().coco_entries(), self._shift()
        return tuple(shift.annotations(annotations, self)) if shift.moves else annotations

    def _shift(self) -> Shift:
        if self.shift is None:
            raise GramLoopError(f"the shifted record of image {self.image_id} was made without a shift")
        return self.shift


def shift_record(record: Record, shift: Shift) -> ShiftedRecord:
    """The same image under a shift."""
    return ShiftedRecord(**{each.name: getattr(record, each.name) for each in fields(Record)}, shift=shift)


def shift_data_set(data: DataSet, shift: Shift) -> DataSet:
    """A whole set under a shift; nothing is computed before a record is read."""
    return replace(data, records=tuple(shift_record(record, shift) for record in data))


def encode(pixels: Image8, encoding: Encoding) -> bytes:
    """RGB pixels as the bytes of a PNG file, or of a JPEG file of quality 95."""
    flags = (
        [cv2.IMWRITE_PNG_COMPRESSION, PNG_COMPRESSION]
        if encoding == "png"
        else [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY]
    )
    written, data = cv2.imencode(f".{encoding}", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR), flags)
    if not written:
        raise GramLoopError(
            f"an image of {pixels.shape[1]} x {pixels.shape[0]} cannot be written as {encoding}"
        )
    return bytes(data)


def encode_labels(values: NDArray[Any]) -> bytes:
    """Label values (H, W) of 8 or 16 bits as the bytes of a PNG file."""
    written, data = cv2.imencode(".png", values)
    if not written:
        raise GramLoopError(f"labels of type {values.dtype} cannot be written as a PNG file")
    return bytes(data)


def _through_jpeg(pixels: Image8) -> Image8:
    with Image.open(io.BytesIO(encode(pixels, "jpg"))) as picture:
        return np.array(picture.convert("RGB"))
