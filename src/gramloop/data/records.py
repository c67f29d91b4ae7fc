"""One vocabulary for every data set: a data set is a sequence of records, decoded when requested."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from gramloop.data.truth import (
    Annotation,
    DepthFormat,
    DepthMap,
    Instances,
    LabelMap,
    ObjectMasks,
    SegmentMap,
    decoding,
    read_segment_map,
)
from gramloop.errors import GramLoopError
from gramloop.shifts.geometry import Matrix, warp_labels

if TYPE_CHECKING:
    from gramloop.data.shifted import Shift

ImageId = int | str
TaskName = str  # a task as `gramloop.tasks` knows it, or the kind of annotations that a data set has
Image8 = NDArray[np.uint8]  # (H, W, 3) RGB


@dataclass(frozen=True)
class ClassList:
    """The classes of a semantic data set and the numbers that stand for them in its label files."""

    names: tuple[str, ...]
    values: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.names or len(self.names) != len(self.values):
            raise GramLoopError("a class list needs at least one class, and one label value for each")
        if len(set(self.values)) != len(self.values):
            twice = next(value for value in self.values if self.values.count(value) > 1)
            raise GramLoopError(f"the class list gives label value {twice} to more than one class")
        if min(self.values) < 0 or max(self.values) > 65535:
            raise GramLoopError("label values of a class list must lie in 0..65535")

    @classmethod
    def numbered_from_one(cls, names: Sequence[str]) -> ClassList:
        """Classes 1, 2, 3, … as in ADE20K, where 0 means unlabelled."""
        return cls(tuple(names), tuple(range(1, len(names) + 1)))

    @property
    def ignored(self) -> int:
        """The index that means "do not score this pixel" in a mapped label map."""
        return 255 if len(self.names) <= 255 else 65535

    @property
    def ignored_value(self) -> int:
        """The number that means the same in a label file: 0 where it is free, else 255 or 65535."""
        return next(value for value in (0, 255, 65535) if value not in self.values)

    def to_indices(self, raw: NDArray[Any], source: Path) -> LabelMap:
        """Numbers of a label file to class indices, in the smallest unsigned type."""
        known = np.full(65536, -1, dtype=np.int32)
        known[[0, 255, 65535]] = self.ignored
        known[list(self.values)] = np.arange(len(self.values))
        mapped = known[raw]
        if mapped.min(initial=0) < 0:
            stranger = int(raw[mapped < 0].min())
            raise GramLoopError(
                f"{source} holds the label value {stranger}, which the class list does not name "
                f"(it names {len(self.values)} values in {min(self.values)}..{max(self.values)})"
            )
        indices: LabelMap = mapped.astype(np.uint8 if self.ignored == 255 else np.uint16)
        return indices

    def to_values(self, indices: LabelMap) -> LabelMap:
        """Class indices back to the numbers of a label file."""
        values = np.full(self.ignored + 1, self.ignored_value, dtype=np.int64)
        values[: len(self.values)] = self.values
        raw = values[indices]
        return raw.astype(np.uint8 if max(*self.values, self.ignored_value) < 256 else np.uint16)


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
    def _move(self) -> Matrix | None:
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
        return labels if move is None else warp_labels(labels, move, self.classes.ignored)

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


def read_label_values(path: Path) -> NDArray[Any]:
    """Decode a label file to its numbers, (H, W); a palette image gives its indices."""
    with decoding(f"the label file {path}"), Image.open(path) as picture:
        values: NDArray[Any] = np.array(picture)
    if values.min(initial=0) < 0 or values.max(initial=0) > 65535:
        raise GramLoopError(f"{path} holds numbers outside 0..65535")
    return values
