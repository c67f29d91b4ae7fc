"""One vocabulary for every data set: a data set is a sequence of records, decoded when asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from gramloop.data.depth_maps import DepthFormat, DepthMap
from gramloop.data.object_masks import ObjectMasks
from gramloop.data.segment_maps import SegmentMap, read_segments
from gramloop.errors import GramLoopError

ImageId = int | str
Task = Literal["semantic", "detection", "depth", "panoptic", "instance"]
TASKS: tuple[Task, ...] = get_args(Task)
Annotation = Mapping[str, Any]  # one entry of a COCO file's "annotations"
Image8 = NDArray[np.uint8]  # (H, W, 3) RGB
LabelMap = NDArray[np.unsignedinteger[Any]]  # (H, W) class indices
LABEL_MODES = ("L", "P", "I", "I;16", "I;16B", "I;16L")  # Pillow's names for one channel of numbers


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
class Instances:
    """The annotated objects of one image; row k of every field belongs to object k."""

    ids: NDArray[np.int64]  # (N,)
    boxes: NDArray[np.float64]  # (N, 4) x, y, width, height
    categories: NDArray[np.int64]  # (N,) category ids as the file spells them
    areas: NDArray[np.float64]  # (N,)
    iscrowd: NDArray[np.bool_]  # (N,)
    segmentations: tuple[Any, ...]  # polygons, run lengths, or None where only a box is known

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def from_annotations(cls, annotations: Sequence[Annotation]) -> Instances:
        """Columns from the entries of a COCO file."""
        count = len(annotations)
        return cls(
            ids=np.array([entry["id"] for entry in annotations], dtype=np.int64),
            boxes=np.array([entry["bbox"] for entry in annotations], dtype=np.float64).reshape(count, 4),
            categories=np.array([entry["category_id"] for entry in annotations], dtype=np.int64),
            areas=np.array([entry["area"] for entry in annotations], dtype=np.float64),
            iscrowd=np.array([entry["iscrowd"] for entry in annotations], dtype=np.bool_),
            segmentations=tuple(entry.get("segmentation") or None for entry in annotations),
        )


@dataclass(frozen=True)
class Record:
    """One image with its ground truth; nothing is decoded before it is asked for."""

    image_id: ImageId
    path: Path
    name: str  # path relative to the folder of images, with forward slashes
    height: int
    width: int
    label_path: Path | None = None
    classes: ClassList | None = field(default=None, repr=False)
    annotations: tuple[Annotation, ...] | None = field(default=None, repr=False)
    depth_format: DepthFormat | None = field(
        default=None, repr=False
    )  # of ``label_path``, where it holds depth
    upright: bool = False  # turned as its EXIF tag says, where no labels have to fit the pixels as stored
    content: tuple[str, ...] = field(default=(), repr=False)  # sha256 of its files, where they are known

    def image(self) -> Image8:
        """The pixels, (H, W, 3) RGB uint8, at native size."""
        return read_image(self.path, upright=self.upright)

    def labels(self) -> LabelMap:
        """The class index of every pixel, (H, W); ``classes.ignored`` where nothing is scored."""
        if self.label_path is None or self.classes is None:
            raise GramLoopError(
                f"image {self.image_id} has no label map: its data set annotates another task"
            )
        labels = self.classes.to_indices(read_label_values(self.label_path), self.label_path)
        if labels.shape != (self.height, self.width):
            raise GramLoopError(
                f"{self.label_path} is {labels.shape[1]} x {labels.shape[0]}, "
                f"but its image is {self.width} x {self.height}"
            )
        return labels

    def depth(self) -> DepthMap:
        """The distance of every pixel, 0 where it is not known."""
        if self.label_path is None or self.depth_format is None:
            raise GramLoopError(f"image {self.image_id} has no depth: its data set annotates another task")
        return self.depth_format.read(self.label_path)

    def segments(self) -> SegmentMap:
        """The segment of every pixel; ``label_path`` holds their colours, and ``annotations`` what each is."""
        if self.label_path is None or self.annotations is None:
            raise GramLoopError(f"image {self.image_id} has no segments: its data set annotates another task")
        found = read_segments(self.label_path, self.annotations)
        if found.ids.shape != (self.height, self.width):
            raise GramLoopError(
                f"{self.label_path} is {found.ids.shape[1]} x {found.ids.shape[0]}, "
                f"but its image is {self.width} x {self.height}"
            )
        return found

    def object_masks(self) -> ObjectMasks:
        """The masks of the annotated objects."""
        if self.annotations is None:
            raise GramLoopError(f"image {self.image_id} has no instances: its data set has label maps")
        return ObjectMasks.from_annotations(self.annotations, self.height, self.width)

    def shown_annotations(self) -> tuple[Annotation, ...]:
        """The entries of the COCO file for this image."""
        if self.annotations is None:
            raise GramLoopError(f"image {self.image_id} has no instances: its data set has label maps")
        return self.annotations

    def instances(self) -> Instances:
        """The annotated objects as columns."""
        return Instances.from_annotations(self.shown_annotations())


@dataclass(frozen=True)
class DataSet(Sequence[Record]):
    """Checked records of one task, with the classes they are labelled in."""

    root: Path
    task: Task
    records: tuple[Record, ...] = field(repr=False)
    categories: Mapping[int, str] = field(repr=False)  # class index or COCO category id: name
    annotation_file: Path | None = None
    notes: tuple[str, ...] = ()  # what was put right at opening
    things: frozenset[int] = frozenset()  # of a panoptic set: the categories that are counted, unlike stuff

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


def read_image(path: Path, *, upright: bool = False) -> Image8:
    """Decode an image file to (H, W, 3) RGB uint8, what is transparent in it on white.

    Args:
        path: the file.
        upright: turn it as its EXIF tag says; labels fit the pixels as they are stored.
    """
    try:
        with Image.open(path) as picture:
            return np.array(on_white(ImageOps.exif_transpose(picture) if upright else picture))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise GramLoopError(f"cannot decode the image {path}: {error}") from error


def on_white(picture: Image.Image) -> Image.Image:
    """A picture as RGB; what lies below transparent pixels is nobody's to see."""
    if picture.has_transparency_data:
        layered = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", layered.size, "white"), layered)
    return picture.convert("RGB")


def read_label_values(path: Path) -> NDArray[Any]:
    """Decode a label file to its numbers, (H, W); a palette image gives its indices."""
    try:
        with Image.open(path) as picture:
            if picture.mode not in LABEL_MODES:
                raise GramLoopError(
                    f"{path} is a {picture.mode} picture; a label file has one channel of class numbers"
                )
            values: NDArray[Any] = np.array(picture)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        if isinstance(error, GramLoopError):
            raise
        raise GramLoopError(f"cannot decode the label file {path}: {error}") from error
    if values.min(initial=0) < 0 or values.max(initial=0) > 65535:
        raise GramLoopError(f"{path} holds numbers outside 0..65535")
    return values
