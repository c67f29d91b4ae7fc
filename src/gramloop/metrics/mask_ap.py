"""COCO's average precision over masks: matched image by image, so that no mask has to be kept.

An image's masks are matched to its objects by hotcoco (or pycocotools), once, when they are predicted. What is kept of
it is which mask found an object at which threshold of overlap, for objects of any, small, medium and large area; the
curves of any set of images follow from that.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gramloop.data.masks import RunLengths, mask_area
from gramloop.data.truth import ObjectMasks
from gramloop.errors import GramLoopError
from gramloop.metrics.ap_bootstrap import Matched, MatchedCategory
from gramloop.metrics.bootstrap import Delta, Score
from gramloop.metrics.coco_ap import (
    ALL,
    AREAS,
    AT_50,
    AT_75,
    DETECTIONS_PER_CATEGORY,
    LARGE,
    MEDIUM,
    SMALL,
    ApResult,
    Evaluator,
    installed_evaluator,
    pycocotools_set,
)
from gramloop.metrics.means import mean_of_known

THRESHOLDS = 10  # of overlap: 0.50, 0.55, … 0.95
_BITS = 1 << np.arange(THRESHOLDS)


@dataclass(frozen=True)
class MaskMatches:
    """How masks and objects were matched, of one image or of many; row k of every column belongs to one mask or object.

    A bit of ``found`` and ``counted`` stands for a threshold, one of ``to_find`` for a range of areas.
    """

    images: NDArray[np.int64]  # (n,) the place of each mask's image
    scores: NDArray[np.float64]  # (n,)
    labels: NDArray[np.int64]  # (n,) category ids
    found: NDArray[np.uint16]  # (n, areas) an object that counts
    counted: NDArray[np.uint16]  # (n, areas) neither a crowd's nor otherwise passed over
    true_images: NDArray[np.int64]  # (m,)
    true_labels: NDArray[np.int64]  # (m,)
    to_find: NDArray[np.uint8]  # (m,)

    def among(
        self, categories: Sequence[int], many: int, area: int = ALL, at: slice = slice(None)
    ) -> Matched:
        """The matches of ``many`` images in a range of areas, at some thresholds."""
        wanted = self.to_find & (1 << area) > 0
        bits = _BITS[at, None]
        order = np.argsort(-self.scores, kind="stable")
        parts, numbers = [], []
        for number, category in enumerate(sorted(categories), start=1):
            own = order[self.labels[order] == category]
            objects = np.bincount(self.true_images[wanted & (self.true_labels == category)], minlength=many)
            if len(own) or objects.any():
                hit, seen = (each[own, area][None] & bits > 0 for each in (self.found, self.counted))
                parts.append(MatchedCategory(self.images[own], hit, seen, objects))
                numbers.append(number)
        return Matched(np.arange(many), tuple(parts), tuple(numbers))


def match_masks(
    truth: ObjectMasks,
    masks: Sequence[RunLengths],
    scores: NDArray[Any],
    labels: NDArray[Any],
    categories: Sequence[int],
    *,
    evaluator: Evaluator | None = None,
) -> MaskMatches:
    """Match the predicted masks of one image; those of categories that are not listed are passed over."""
    for name, each in (("true", truth.masks), ("predicted", masks)):
        if strange := [mask["size"] for mask in each if tuple(mask["size"]) != truth.size]:
            raise GramLoopError(
                f"a {name} mask is {strange[0][1]} x {strange[0][0]}, but its image is {truth.size[1]} x {truth.size[0]}"
            )
    listed = np.isin(labels, categories)
    kept = [mask for mask, known in zip(masks, listed, strict=True) if known]
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools speaks while it works
        guesses = kept, np.asarray(scores, dtype=np.float64)[listed], np.asarray(labels)[listed]
        evaluation = _evaluation(truth, *guesses, categories, evaluator or installed_evaluator())
        evaluation.params.maxDets = [DETECTIONS_PER_CATEGORY]
        evaluation.params.areaRng = list(AREAS.values())
        evaluation.params.areaRngLbl = list(AREAS)
        evaluation.evaluate()
    return _matches([entry for entry in evaluation.evalImgs if entry is not None])


def _matches(entries: list[dict[str, Any]]) -> MaskMatches:
    """One image's matches, category after category, from the evaluator's entries for each range of areas."""
    ranges = list(AREAS.values())
    by_category: dict[int, list[dict[str, Any]]] = {}
    for entry in entries:
        by_category.setdefault(int(entry["category_id"]), []).append(entry)
    scores, labels, found, counted, true_labels, to_find = [], [], [], [], [], []
    for category, areas in sorted(by_category.items()):
        areas = sorted(areas, key=lambda entry: ranges.index(list(entry["aRng"])))
        scores.append(np.asarray(areas[ALL]["dtScores"], dtype=np.float64))
        labels.append(np.full(len(scores[-1]), category, dtype=np.int64))
        hits, seen = [], []
        for entry in areas:
            passed = np.asarray(entry["dtIgnore"], dtype=np.bool_).reshape(THRESHOLDS, -1)
            hit = np.asarray(entry["dtMatches"]).reshape(THRESHOLDS, -1) > 0
            hits.append(_BITS @ (hit & ~passed))
            seen.append(_BITS @ ~passed)
        found.append(np.stack(hits, axis=1))
        counted.append(np.stack(seen, axis=1))
        wanted = _wanted(areas)
        to_find.append(wanted)
        true_labels.append(np.full(len(wanted), category, dtype=np.int64))
    one = _joined(scores, np.float64)
    true = _joined(true_labels, np.int64)
    return MaskMatches(
        np.zeros(len(one), dtype=np.int64),
        one,
        _joined(labels, np.int64),
        _joined(found, np.uint16).reshape(-1, len(AREAS)),
        _joined(counted, np.uint16).reshape(-1, len(AREAS)),
        np.zeros(len(true), dtype=np.int64),
        true,
        _joined(to_find, np.uint8),
    )


def _wanted(areas: list[dict[str, Any]]) -> NDArray[np.uint8]:
    """For every object of a category, in which ranges of areas it is to be found; the evaluator sorts them in each."""
    flags: dict[int, int] = {}
    for place, entry in enumerate(areas):
        for number, passed in zip(entry["gtIds"], entry["gtIgnore"], strict=True):
            flags[number] = flags.get(number, 0) | (0 if passed else 1 << place)
    return np.array([flags[number] for number in sorted(flags)], dtype=np.uint8)


def _joined(parts: list[NDArray[Any]], kind: type[np.generic]) -> NDArray[Any]:
    return np.concatenate(parts).astype(kind) if parts else np.zeros(0, dtype=kind)


def mask_average_precision(matches: MaskMatches, categories: Sequence[int], many: int) -> ApResult:
    """COCO's figures of ``many`` images together."""
    once = np.ones((1, many), dtype=np.int64)

    def score(area: int = ALL, at: slice = slice(None)) -> float:
        return float(matches.among(categories, many, area, at).average_precision(once)[0])

    each = matches.among(categories, many).by_category(once, len(categories))[0]
    return ApResult(
        float(mean_of_known(each)),
        score(at=slice(AT_50, AT_50 + 1)),
        score(at=slice(AT_75, AT_75 + 1)),
        score(SMALL),
        score(MEDIUM),
        score(LARGE),
        dict(zip(sorted(categories), each.tolist(), strict=True)),
    )


def mask_ap_score(matches: MaskMatches, categories: Sequence[int], many: int) -> Score:
    """The AP of one method over ``many`` images."""
    return matches.among(categories, many).average_precision


def mask_ap_delta(baseline: MaskMatches, method: MaskMatches, categories: Sequence[int], many: int) -> Delta:
    """The gain in AP for :func:`gramloop.metrics.bootstrap.image_bootstrap` over ``many`` images."""
    ordinary, changed = (mask_ap_score(each, categories, many) for each in (baseline, method))
    return lambda weights: changed(weights) - ordinary(weights)


def _evaluation(
    truth: ObjectMasks,
    masks: Sequence[RunLengths],
    scores: NDArray[np.float64],
    labels: NDArray[Any],
    categories: Sequence[int],
    package: Evaluator,
) -> Any:
    objects = [
        {"category_id": int(label), "area": float(area), "iscrowd": int(crowd)}
        for label, area, crowd in zip(truth.categories, truth.areas, truth.crowd, strict=True)
    ]
    guesses = [
        {"category_id": int(label), "area": mask_area(mask), "iscrowd": 0, "score": float(score)}
        for mask, label, score in zip(masks, labels, scores, strict=True)
    ]
    annotated = _content(objects, truth.masks, truth.size, categories)
    found = _content(guesses, masks, truth.size, categories)
    if package == "hotcoco":
        from hotcoco import COCO, COCOeval

        return COCOeval(COCO(annotated), COCO(found), "segm")
    from pycocotools.cocoeval import COCOeval as PythonEvaluation  # type: ignore[import-untyped]

    return PythonEvaluation(pycocotools_set(annotated), pycocotools_set(found), "segm")


def _content(
    entries: Sequence[dict[str, Any]],
    shapes: Sequence[RunLengths],
    size: tuple[int, int],
    categories: Sequence[int],
) -> dict[str, Any]:
    """What a COCO file would hold of the one image."""
    box = [0, 0, size[1], size[0]]  # masks alone are looked at
    return {
        "images": [{"id": 1, "height": size[0], "width": size[1]}],
        "categories": [{"id": int(number), "name": str(number)} for number in categories],
        "annotations": [
            {"id": number, "image_id": 1, "bbox": box, "segmentation": dict(shape), **entry}
            for number, (entry, shape) in enumerate(zip(entries, shapes, strict=True), start=1)
        ],
    }
