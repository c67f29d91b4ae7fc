"""One vocabulary for every data set: a sequence of records, decoded, checked and shifted when requested."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, overload

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from gramloop.data.suites import Condition, SuiteKind
from gramloop.data.truth import (
    Annotation,
    ClassList,
    DepthFormat,
    DepthMap,
    Instances,
    LabelMap,
    ObjectMasks,
    SegmentMap,
    annotation_mask,
    decoding,
    encode_mask,
    read_label_values,
    read_segment_map,
)
from gramloop.errors import GramLoopError
from gramloop.shifts import geometry
from gramloop.shifts.common import generator, signs
from gramloop.shifts.recipes import PERTURBATION_RECIPES, RECIPES
from gramloop.util.files import read_digest

ImageId = int | str
TaskName = str  # a task as `gramloop.tasks` knows it, or the kind of annotations that a data set has
Image8 = NDArray[np.uint8]  # (H, W, 3) RGB
Encoding = Literal["png", "jpg"]
_FLAGS = {
    "png": (cv2.IMWRITE_PNG_COMPRESSION, 1),  # more costs several times the time for a tenth of the bytes
    "jpg": (cv2.IMWRITE_JPEG_QUALITY, 95),  # of the released -P images
}


class ChangedFileError(GramLoopError):
    """A file that changed since the run was planned; code that skips unusable images must not skip this."""


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
        if self.encoding not in _FLAGS:
            raise GramLoopError(f"the encoding must be one of {', '.join(_FLAGS)}, not {self.encoding!r}")

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
        recipe = (PERTURBATION_RECIPES if self.kind == "p" else RECIPES)[name]
        return recipe.apply(image, name, severity, rng, self.frost_textures)

    def stored_pixels(self, image: Image8, record: Record) -> Image8:
        """The shifted image as it would be read from a file."""
        shifted = self.pixels(image, record)
        if self.encoding == "png":
            return shifted
        with Image.open(io.BytesIO(encode(shifted, self.encoding))) as picture:
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
            warped = geometry.warp_mask(mask, affine)
            box = geometry.visible_box(warped)
            shape = encode_mask(warped) if run_lengths else geometry.polygons(warped)
            if box is not None and shape:
                moved = {"bbox": list(box), "area": geometry.area(warped), "segmentation": shape}
                yield {**annotation, **moved}


@dataclass(frozen=True)
class Record:
    """One image with its annotations; nothing is decoded, or shifted, before it is requested.

    Which annotations there are depends on the reader: ``labels`` needs ``label_path`` and ``classes``, ``depth`` needs
    ``label_path`` and ``depth_format``, ``segments`` needs ``label_path`` and ``annotations``, and objects need
    ``annotations`` alone. A task with other annotations reads ``label_path`` and ``annotations`` on its own.
    """

    image_id: ImageId
    path: Path
    name: str  # path relative to the folder of images, with forward slashes
    height: int
    width: int
    label_path: Path | None = None
    classes: ClassList | None = field(default=None, repr=False)
    annotations: tuple[Annotation, ...] | None = field(default=None, repr=False)
    depth_format: DepthFormat | None = field(default=None, repr=False)  # of ``label_path``
    upright: bool = False  # rotated as its EXIF tag says; labels fit the pixels as stored
    content: tuple[str, ...] = field(default=(), repr=False)  # sha256 of its files, where they are known
    shift: Shift | None = None  # of the pixels, and of the annotations where it moves them

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that the record reads."""
        return (self.path,) if self.label_path is None else (self.path, self.label_path)

    @property
    def _move(self) -> geometry.Matrix | None:
        """How annotations move with the pixels, if they do."""
        return self.shift.affine(self) if self.shift is not None and self.shift.moves else None

    def image(self) -> Image8:
        """The pixels, (H, W, 3) RGB uint8, at native size."""
        pixels = decode_image(self.path, upright=self.upright)
        return pixels if self.shift is None else self.shift.stored_pixels(pixels, self)

    def labels(self) -> LabelMap:
        """The class index of every pixel, (H, W); ``classes.ignored`` where nothing is scored."""
        if self.label_path is None or self.classes is None:
            raise self._lacks("label map")
        labels = self.classes.to_indices(read_label_values(self.label_path), self.label_path)
        move = self._move
        return labels if move is None else geometry.warp_labels(labels, move, self.classes.ignored)

    def depth(self) -> DepthMap:
        """The distance of every pixel, 0 where it is not known."""
        if self.label_path is None or self.depth_format is None:
            raise self._lacks("depth")
        found, move = self.depth_format.read(self.label_path), self._move
        return found if move is None else found.moved(move)

    def segments(self) -> SegmentMap:
        """The segment of every pixel, and what each is."""
        if self.label_path is None or self.annotations is None:
            raise self._lacks("segments")
        found, move = read_segment_map(self.label_path, self.annotations), self._move
        return found if move is None else found.moved(move)

    def object_masks(self) -> ObjectMasks:
        """The masks of the annotated objects."""
        if self.annotations is None:
            raise self._lacks("instances")
        found = ObjectMasks.from_annotations(self.annotations, self.height, self.width)
        move = self._move
        return found if move is None else found.moved(move)

    def coco_entries(self) -> tuple[Annotation, ...]:
        """The entries of the COCO file for this image."""
        if self.annotations is None:
            raise self._lacks("instances")
        if self.shift is None or not self.shift.moves:
            return self.annotations
        return tuple(self.shift.annotations(self.annotations, self))

    def instances(self) -> Instances:
        """The annotated objects as columns."""
        return Instances.from_annotations(self.coco_entries())

    def has_content(self) -> bool:
        """Whether the annotations hold anything that can be scored."""
        if self.classes is not None:
            return bool((self.labels() != self.classes.ignored).any())
        if self.depth_format is not None:
            return bool(self.depth().known.any())
        return any(not entry.get("iscrowd", 0) for entry in self.coco_entries())

    def _lacks(self, what: str) -> GramLoopError:
        return GramLoopError(f"image {self.image_id} has no {what}: its data set has other annotations")


@dataclass(frozen=True)
class LabelledImage:
    """An image in memory with its truth; None where it has no labels, or they are not requested."""

    image_id: ImageId
    pixels: Image8  # (H, W, 3) RGB
    truth: Any


@dataclass(frozen=True)
class DataSet(Sequence[Record]):
    """Checked records with one kind of annotations, and the classes they are labelled in."""

    root: Path
    task: TaskName  # the kind of annotations
    records: tuple[Record, ...] = field(repr=False)
    categories: Mapping[int, str] = field(repr=False)  # class index or COCO category id: name
    annotation_file: Path | None = None
    notes: tuple[str, ...] = ()  # what was repaired at opening
    things: frozenset[int] = frozenset()  # of a panoptic set: countable categories, unlike stuff

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Record, ...]: ...
    def __getitem__(self, index: int | slice) -> Record | tuple[Record, ...]:
        return self.records[index]


def shift_record(record: Record, shift: Shift) -> Record:
    """The same image under a shift."""
    return replace(record, shift=shift)


def shift_data_set(data: DataSet, shift: Shift) -> DataSet:
    """A whole set under a shift; nothing is computed before a record is read."""
    return replace(data, records=tuple(shift_record(record, shift) for record in data))


def refuse_change(record: Record) -> None:
    """Refuse a record whose files changed since its checksums were taken; without checksums do nothing."""
    for path, expected in zip(record.files, record.content, strict=False):
        try:
            found = read_digest(path)  # of the file as it is now
        except FileNotFoundError:
            raise ChangedFileError(f"{path} is gone; it was there when the run was planned") from None
        except OSError as error:
            raise GramLoopError(f"cannot read {path}: {error.strerror}") from error
        if found != expected:
            raise ChangedFileError(
                f"{path} changed since the run was planned: its sha256 is {found[:12]}…, not {expected[:12]}…; restore "
                "it, or choose another folder for the results"
            )


def decode_image(path: Path, *, upright: bool = False) -> Image8:
    """Decode an image file to (H, W, 3) RGB uint8, transparent pixels on white.

    Args:
        path: the file.
        upright: rotate as the EXIF tag says; labels fit the pixels as they are stored.
    """
    with decoding(f"the image {path}"), Image.open(path) as picture:
        return np.array(on_white(ImageOps.exif_transpose(picture) if upright else picture))


def on_white(picture: Image.Image) -> Image.Image:
    """A picture as RGB, transparent pixels on white."""
    if picture.has_transparency_data:
        layered = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", layered.size, "white"), layered)
    return picture.convert("RGB")


def encode(pixels: NDArray[Any], encoding: Encoding = "png") -> bytes:
    """RGB pixels (H, W, 3), or numbers (H, W) of 8 or 16 bits, as the bytes of a PNG or JPEG file."""
    ordered = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR) if pixels.ndim == 3 else pixels
    written, data = cv2.imencode(f".{encoding}", ordered, _FLAGS[encoding])
    if not written:
        size = f"{pixels.shape[1]} x {pixels.shape[0]}"
        raise GramLoopError(f"an image of {size} and type {pixels.dtype} cannot be written as {encoding}")
    return bytes(data)
