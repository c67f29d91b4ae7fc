"""What is known to be in an image: the class, depth or segment of every pixel, and the boxes or masks of objects.

Masks are pixels, or COCO's run lengths: the lengths of runs of equal pixels, down the columns, the first run outside the
mask. Polygons are filled as COCO fills them, to the pixel.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

import hotcoco.mask
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gramloop.errors import GramLoopError
from gramloop.shifts.geometry import Matrix, area, visible_box, warp_labels, warp_mask

Annotation = Mapping[str, Any]  # one entry of a COCO file's "annotations"
LabelMap = NDArray[np.unsignedinteger[Any]]  # (H, W) class indices
DepthCrop = Literal["none", "eigen"]
NEAREST, FARTHEST = 1e-3, 1e3  # metres between which depth is scored by default
VOID = 0  # the id of pixels without a segment
UNREADABLE = (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError)  # of Pillow and numpy
_MOST_SEGMENTS = 256**3  # ids that a colour can be


@contextmanager
def decoding(what: str) -> Iterator[None]:
    """Turn what Pillow and numpy raise on a bad file into one message."""
    try:
        yield
    except GramLoopError:
        raise
    except UNREADABLE as error:
        raise GramLoopError(f"cannot decode {what}: {error}") from error


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


def read_label_values(path: Path) -> NDArray[Any]:
    """Decode a label file to its numbers, (H, W); a palette image gives its indices."""
    with decoding(f"the label file {path}"), Image.open(path) as picture:
        values: NDArray[Any] = np.array(picture)
    if values.min(initial=0) < 0 or values.max(initial=0) > 65535:
        raise GramLoopError(f"{path} holds numbers outside 0..65535")
    return values


@dataclass(frozen=True)
class PixelLabels:
    """The class of every pixel of an image."""

    indices: LabelMap  # (H, W)
    ignored: int = 255  # the index of pixels that are not scored


@dataclass(frozen=True)
class Instances:
    """The annotated objects of one image; row k of every field belongs to object k."""

    ids: NDArray[np.int64]  # (N,)
    boxes: NDArray[np.float64]  # (N, 4) x, y, width, height
    categories: NDArray[np.int64]  # (N,) category ids as the file spells them
    areas: NDArray[np.float64]  # (N,)
    iscrowd: NDArray[np.bool_]  # (N,)

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
        )


class RunLengths(TypedDict):
    """A mask as a JSON file holds it."""

    size: list[int]  # height, width
    counts: str  # the lengths in COCO's compressed letters


def encode_mask(mask: NDArray[Any]) -> RunLengths:  # (H, W)
    """A mask as run lengths; every pixel that is not 0 lies inside."""
    found = hotcoco.mask.encode(np.asarray(mask != 0))
    return {"size": [int(side) for side in mask.shape], "counts": found["counts"].decode()}


def decode_mask(run_lengths: Mapping[str, Any] | RunLengths) -> NDArray[np.uint8]:
    """Run lengths {size: [H, W], counts: list, or COCO's compressed string} as pixels; 1 inside."""
    return np.ascontiguousarray(hotcoco.mask.decode(dict(run_lengths)))


def mask_area(run_lengths: Mapping[str, Any] | RunLengths) -> int:
    """The number of pixels inside."""
    return int(hotcoco.mask.area(dict(run_lengths)))


def annotation_mask(annotation: Mapping[str, Any], height: int, width: int) -> NDArray[np.uint8]:
    """The pixels (H, W) of one COCO annotation; its box where it has no segmentation."""
    segmentation = annotation.get("segmentation")
    if not segmentation:
        return box_mask(annotation["bbox"], height, width)
    if isinstance(segmentation, dict):
        return decode_mask(segmentation)
    polygons = [[float(value) for value in polygon] for polygon in segmentation]
    filled = hotcoco.mask.merge(hotcoco.mask.frPyObjects(polygons, height, width))
    return np.ascontiguousarray(hotcoco.mask.decode(filled))


def box_mask(box: Sequence[float], height: int, width: int) -> NDArray[np.uint8]:
    """A filled box (H, W); a pixel belongs to it when its centre does."""
    x, y, w, h = box
    mask = np.zeros((height, width), dtype=np.uint8)
    top, bottom = (max(0, int(np.ceil(edge - 0.5))) for edge in (y, y + h))
    left, right = (max(0, int(np.ceil(edge - 0.5))) for edge in (x, x + w))
    mask[top:bottom, left:right] = 1
    return mask


@dataclass(frozen=True)
class ObjectMasks:
    """The masks of the objects of one image; row k of every column belongs to object k."""

    masks: tuple[RunLengths, ...]  # n
    categories: NDArray[np.int64]  # (n,) category ids
    areas: NDArray[np.float64]  # (n,) as annotated: they decide whether an object is small, medium or large
    crowd: NDArray[np.bool_]  # (n,)
    size: tuple[int, int]  # height and width of the image

    def __len__(self) -> int:
        return len(self.masks)

    def mask(self, index: int) -> NDArray[np.bool_]:  # → (H, W)
        """One of the masks as pixels."""
        return decode_mask(self.masks[index]).astype(np.bool_)

    def as_map(self) -> SegmentMap:
        """The objects as segments that do not overlap: the first lies on top, as the best of a prediction does."""
        ids = np.zeros(self.size, dtype=np.int32)
        for index in reversed(range(len(self))):
            ids[self.mask(index)] = index + 1
        seen = np.unique(ids[ids > VOID]).astype(np.int64)
        return SegmentMap(ids, seen, self.categories[seen - 1], self.crowd[seen - 1])

    @classmethod
    def from_annotations(cls, annotations: Sequence[Annotation], height: int, width: int) -> ObjectMasks:
        """The masks of entries of a COCO file, which must have one each."""
        for entry in annotations:
            if not entry.get("segmentation"):
                raise GramLoopError(
                    f"annotation {entry.get('id')} has no segmentation; instance masks need one of every object"
                )
        return cls(
            tuple(encode_mask(annotation_mask(entry, height, width)) for entry in annotations),
            np.array([entry["category_id"] for entry in annotations], dtype=np.int64),
            np.array([entry["area"] for entry in annotations], dtype=np.float64),
            np.array([entry["iscrowd"] for entry in annotations], dtype=np.bool_),
            (height, width),
        )

    def moved(self, affine: Matrix) -> ObjectMasks:
        """The objects after a move of the image; those that left it are gone."""
        warped = [warp_mask(self.mask(index), affine) for index in range(len(self))]
        areas = np.array([area(mask) for mask in warped], dtype=np.float64)
        seen = areas > 0
        masks = tuple(encode_mask(mask) for mask in warped if mask.any())
        return ObjectMasks(masks, self.categories[seen], areas[seen], self.crowd[seen], self.size)


@dataclass(frozen=True)
class SegmentMap:
    """Which segment every pixel belongs to; row k of every column belongs to segment k."""

    ids: NDArray[np.int32]  # (H, W), 0 where there is no segment
    numbers: NDArray[np.int64]  # (n,) the ids that occur in the map, rising
    categories: NDArray[np.int64]  # (n,) category ids
    crowd: NDArray[np.bool_]  # (n,) regions of several things that were not separated

    def __post_init__(self) -> None:
        if self.ids.ndim != 2 or not np.issubdtype(self.ids.dtype, np.integer):
            raise GramLoopError(
                f"segments are one whole number per pixel, (H, W), not {self.ids.dtype} {self.ids.shape}"
            )
        if (np.diff(self.numbers) <= 0).any() or (len(self.numbers) and self.numbers[0] <= VOID):
            raise GramLoopError(f"the ids of segments rise from 1 on, unlike {self.numbers[:8].tolist()}")
        if not len(self.numbers) == len(self.categories) == len(self.crowd):
            raise GramLoopError("segments need one category and one crowd flag for each id")

    def places(self) -> NDArray[np.int32]:  # (H, W)
        """The row of each pixel's segment counted from 1; 0 where there is none."""
        last = int(self.numbers.max(initial=VOID))
        table = np.zeros(
            last + 2, dtype=np.int32
        )  # many times faster than a search; what is not used takes no memory
        table[self.numbers] = np.arange(1, len(self.numbers) + 1)
        places: NDArray[np.int32] = table[np.clip(self.ids, VOID, last + 1)]
        if (strange := (places == 0) & (self.ids != VOID)).any():
            raise GramLoopError(f"a pixel belongs to segment {self.ids[strange][0]}, which is not listed")
        return places

    def moved(self, affine: Matrix) -> SegmentMap:
        """The map after a move of the image; segments that left it are gone."""
        ids = warp_labels(self.ids.astype(np.int32), affine, VOID)
        visible = np.isin(self.numbers, ids)
        return SegmentMap(ids, self.numbers[visible], self.categories[visible], self.crowd[visible])


def segments_info(found: SegmentMap) -> list[dict[str, Any]]:
    """What a panoptic JSON file lists of each segment: id, category, crowd flag, area and box."""
    infos = []
    for number, category, crowd in zip(found.numbers, found.categories, found.crowd, strict=True):
        mask = found.ids == number
        info = {"id": int(number), "category_id": int(category), "iscrowd": int(crowd), "area": area(mask)}
        infos.append({**info, "bbox": list(visible_box(mask) or (0, 0, 0, 0))})
    return infos


def read_segment_map(path: Path, infos: Sequence[Any]) -> SegmentMap:
    """The segments of a PNG file, whose entries of the JSON file are ``infos``; both must list the same ones.

    A segment's id is a colour: red + 256 green + 65536 blue; 0 means no segment.
    """
    with decoding(f"the segments {path}"), Image.open(path) as picture:
        colours = np.array(picture.convert("RGB"), dtype=np.int32)
    ids: NDArray[np.int32] = colours @ np.array([1, 256, 65536], dtype=np.int32)
    listed = sorted(infos, key=lambda info: int(info["id"]))
    numbers = np.array([info["id"] for info in listed], dtype=np.int64)
    present = np.unique(ids)
    present = present[present != VOID]
    if strangers := sorted(set(present.tolist()) ^ set(numbers.tolist())):
        has, lists = ("holds", "does not list") if strangers[0] in present else ("lacks", "lists")
        raise GramLoopError(f"{path} {has} segment {strangers[0]}, which the annotation file {lists}")
    return SegmentMap(
        ids,
        numbers,
        np.array([info["category_id"] for info in listed], dtype=np.int64),
        np.array([info.get("iscrowd", 0) for info in listed], dtype=np.bool_),
    )


def segments_png(ids: NDArray[Any]) -> bytes:  # of (H, W)
    """Ids as the bytes of a PNG file of colours."""
    if ids.min(initial=0) < 0 or ids.max(initial=0) >= _MOST_SEGMENTS:
        raise GramLoopError(
            f"the ids of segments lie in 0..{_MOST_SEGMENTS - 1}, unlike {ids.min()}..{ids.max()}"
        )
    colours = np.stack([ids, ids >> 8, ids >> 16], axis=-1) & 255
    buffer = io.BytesIO()
    Image.fromarray(colours.astype(np.uint8)).save(buffer, format="png")
    return buffer.getvalue()


@dataclass(frozen=True)
class DepthMap:
    """The distance of every pixel of an image."""

    metres: NDArray[np.float32]  # (H, W); 0 where it is not known
    near: float = NEAREST  # nearer and farther pixels are not scored
    far: float = FARTHEST

    def __post_init__(self) -> None:
        if not 0 < self.near < self.far < np.inf:
            raise GramLoopError(
                f"depth is scored from near to far, 0 < near < far, not from {self.near} to {self.far} m"
            )

    @property
    def known(self) -> NDArray[np.bool_]:  # (H, W)
        """Which pixels are scored."""
        return np.isfinite(self.metres) & (self.metres >= self.near) & (self.metres <= self.far)

    def moved(self, affine: Matrix) -> DepthMap:
        """The depth after a move of the image; not known where the image was not."""
        return replace(self, metres=warp_labels(self.metres, affine, 0))


@dataclass(frozen=True)
class DepthFormat:
    """How a set stores depth: numbers per metre, the range that is scored, and the part of the image."""

    scale: float = 1000.0  # stored numbers per metre
    near: float = NEAREST
    far: float = FARTHEST
    crop: DepthCrop = "none"  # "eigen": of NYU, without the frame of its images

    def __post_init__(self) -> None:
        if not 0 < self.scale < np.inf:
            raise GramLoopError(f"the scale of stored depth is above 0, not {self.scale}")
        if self.crop not in get_args(DepthCrop):
            raise GramLoopError(f"the crop is one of {', '.join(get_args(DepthCrop))}, not {self.crop!r}")
        DepthMap(np.zeros((0, 0), np.float32), self.near, self.far)  # checks the range

    def read(self, path: Path) -> DepthMap:
        """The depth of a file, a PNG or an array of numpy."""
        with decoding(f"the depth file {path}"):
            if path.suffix == ".npy":
                values = np.load(path, allow_pickle=False)
            else:
                with Image.open(path) as picture:
                    values = np.array(picture)
        metres = values.astype(np.float32) / np.float32(self.scale)
        metres[~np.isfinite(metres)] = 0
        if self.crop == "eigen":
            high, wide = metres.shape
            inside = np.zeros(metres.shape, dtype=np.bool_)
            inside[45 * high // 480 : 471 * high // 480, 41 * wide // 640 : 601 * wide // 640] = True
            metres[~inside] = 0
        return DepthMap(metres, self.near, self.far)
