"""Instance truth: the masks of the annotated objects of an image, to the pixel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gramloop.data.masks import annotation_mask
from gramloop.data.run_lengths import RunLengths, run_length_mask, run_lengths_of
from gramloop.data.segment_maps import VOID, SegmentMap
from gramloop.errors import GramLoopError
from gramloop.shifts import geometry

if TYPE_CHECKING:
    from gramloop.data.records import Annotation


@dataclass(frozen=True)
class ObjectMasks:
    """The objects of one image; row k of every column belongs to object k."""

    masks: tuple[RunLengths, ...]  # n
    categories: NDArray[np.int64]  # (n,) category ids
    areas: NDArray[np.float64]  # (n,) as annotated: they decide whether an object is small, medium or large
    crowd: NDArray[np.bool_]  # (n,)
    size: tuple[int, int]  # height and width of the image

    def __len__(self) -> int:
        return len(self.masks)

    def mask(self, index: int) -> NDArray[np.bool_]:  # → (H, W)
        """One of the masks as pixels."""
        return run_length_mask(self.masks[index]).astype(np.bool_)

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
            tuple(run_lengths_of(annotation_mask(entry, height, width)) for entry in annotations),
            np.array([entry["category_id"] for entry in annotations], dtype=np.int64),
            np.array([entry["area"] for entry in annotations], dtype=np.float64),
            np.array([entry["iscrowd"] for entry in annotations], dtype=np.bool_),
            (height, width),
        )

    def moved(self, affine: geometry.Matrix) -> ObjectMasks:
        """The objects after a move of the image; those that left it are gone."""
        warped = [geometry.warp_masks(self.mask(index)[None], affine)[0] for index in range(len(self))]
        left = np.array([bool(mask.any()) for mask in warped], dtype=np.bool_)
        return ObjectMasks(
            tuple(run_lengths_of(mask) for mask in warped if mask.any()),
            self.categories[left],
            np.array([geometry.area(mask) for mask in warped if mask.any()], dtype=np.float64),
            self.crowd[left],
            self.size,
        )


def moved_annotations(
    annotations: Iterable[Annotation], affine: geometry.Matrix, height: int, width: int
) -> Iterator[dict[str, Any]]:
    """COCO entries after a move of the image, with the run lengths of their visible pixels; the vanished dropped."""
    for annotation in annotations:
        mask = geometry.warp_masks(annotation_mask(annotation, height, width)[None], affine)[0]
        if (box := geometry.visible_box(mask)) is not None:
            moved = {"bbox": list(box), "area": geometry.area(mask), "segmentation": run_lengths_of(mask)}
            yield {**annotation, **moved}
