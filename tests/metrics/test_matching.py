"""Which prediction finds which object, against pycocotools and hotcoco; boxes' overlaps; and AP of masks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pycocotools import mask as mask_api

from coco_reference import box_entries, coco_figures, evaluation
from gramloop.data.truth import Instances, ObjectMasks, encode_mask
from gramloop.errors import GramLoopError
from gramloop.metrics.ap import mask_average_precision, rank_matches
from gramloop.metrics.bootstrap import image_bootstrap, paired_delta
from gramloop.metrics.matching import (
    AREAS,
    BITS,
    MAX_PER_CATEGORY,
    THRESHOLDS,
    Matches,
    box_iou,
    match_boxes,
    match_masks,
)
from random_boxes import FoundBoxes, TrueBoxes, joined, match_set, random_set

PACKAGES = ("hotcoco", "pycocotools")
CATEGORIES = [2, 5, 90]
SIZE = (120, 150)
SAME = 1e-9  # of a percentage; the order of a few hundred additions
Found = tuple[list[Any], np.ndarray, np.ndarray]
SETS: list[dict[str, Any]] = [
    {},
    {"crowd": 0.4},
    {"images": 3, "per_image": 400},  # more than 100 of one image and category
    {"scores": 4},  # many equal scores
    {"whole_pixels": True, "crowd": 0.3, "scores": 3},  # equal overlaps, too
    {"images": 40, "per_image": 1},
]
Ranked = tuple[list[float], NDArray[np.bool_], NDArray[np.bool_], int]


def by_package(done: Any) -> dict[tuple[int, int, int], Ranked]:
    """By category, image and range of areas: scores best first, hits and what counts, and the number of objects."""
    ranges, found = [list(each) for each in AREAS.values()], {}
    for entry in done.evalImgs:
        if entry is not None:
            area = ranges.index([float(edge) for edge in entry["aRng"]])
            counted = ~np.asarray(entry["dtIgnore"], dtype=bool).reshape(len(THRESHOLDS), -1)
            hit = np.asarray(entry["dtMatches"]).reshape(len(THRESHOLDS), -1) > 0
            objects = int(np.sum(~np.asarray(entry["gtIgnore"], dtype=bool)))
            key = int(entry["category_id"]), int(entry["image_id"]), area
            found[key] = list(entry["dtScores"]), hit & counted, counted, objects
    return found


def by_us(matches: Matches, images: list[int]) -> dict[tuple[int, int, int], Ranked]:
    ids, true_ids = np.asarray(images)[matches.images], np.asarray(images)[matches.true_images]
    pairs = {*zip(matches.labels.tolist(), ids.tolist(), strict=True)}
    pairs |= {*zip(matches.true_labels.tolist(), true_ids.tolist(), strict=True)}
    found = {}
    for category, image in pairs:
        own = np.flatnonzero((matches.labels == category) & (ids == image))
        own = own[np.argsort(-matches.scores[own], kind="stable")]
        own, beyond = own[:MAX_PER_CATEGORY], own[MAX_PER_CATEGORY:]
        assert not matches.counted[beyond].any()
        true = (matches.true_labels == category) & (true_ids == image)
        for area in range(len(AREAS)):
            hit, counted = (bits[own, area] & BITS[:, None] > 0 for bits in (matches.found, matches.counted))
            objects = int((matches.to_find[true] & 1 << area > 0).sum())
            found[category, image, area] = matches.scores[own].tolist(), hit, counted, objects
    return found


def assert_same_matches(ours: dict[Any, Ranked], theirs: dict[Any, Ranked]) -> None:
    assert ours.keys() == theirs.keys()
    for key, (scores, hit, counted, objects) in theirs.items():
        assert ours[key][0] == pytest.approx(scores, abs=0)
        np.testing.assert_array_equal(ours[key][1], hit)
        np.testing.assert_array_equal(ours[key][2], counted)
        assert ours[key][3] == objects


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("options", SETS, ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_every_match_of_boxes_is_that_of_the_evaluators(
    options: dict[str, Any], seed: int, package: str
) -> None:
    truth, predictions = random_set(seed, **options)
    done = evaluation(*box_entries(truth, predictions), "bbox", package)
    np.testing.assert_array_equal(done.params.iouThrs, THRESHOLDS)
    assert_same_matches(by_us(match_set(truth, predictions), list(truth.images)), by_package(done))


def test_a_set_without_objects_or_without_predictions() -> None:
    truth, predictions = random_set(1)
    nothing = FoundBoxes(np.zeros(0, int), np.zeros((0, 4)), np.zeros(0), np.zeros(0, int))
    assert match_set(truth, nothing).found.shape == (0, len(AREAS))
    none = np.zeros(0, int), np.zeros((0, 4)), np.zeros(0, int), np.zeros(0), np.zeros(0, bool)
    ours = match_set(TrueBoxes(truth.images, truth.categories, *none), predictions)
    assert not ours.found.any()
    assert (ours.counted[:, 0] == BITS.sum()).all()


def test_box_iou_is_that_of_pycocotools() -> None:
    rng = np.random.default_rng(0)
    first, second = (
        np.concatenate([corner, corner + rng.uniform(1, 50, corner.shape)], axis=1)
        for corner in (rng.uniform(0, 60, (20, 2)), rng.uniform(0, 60, (30, 2)))
    )
    sides = [np.concatenate([each[:, :2], each[:, 2:] - each[:, :2]], axis=1) for each in (first, second)]
    expected = mask_api.iou(*sides, [0] * 30)
    np.testing.assert_allclose(box_iou(first, second), expected, rtol=0, atol=1e-12)
    assert box_iou(np.zeros((2, 4)), np.zeros((1, 4))).tolist() == [[0], [0]]


def ellipse(centre: np.ndarray, radii: np.ndarray) -> np.ndarray:
    rows, columns = np.mgrid[: SIZE[0], : SIZE[1]]
    return ((rows - centre[0]) / radii[0]) ** 2 + ((columns - centre[1]) / radii[1]) ** 2 <= 1


def random_image(rng: np.random.Generator) -> tuple[ObjectMasks, Found]:
    """Round objects of all sizes, some crowds, and masks that hit, nearly hit, repeat, mistake and invent them."""
    objects = [
        (rng.uniform(10, 110, 2), np.exp(rng.uniform(1, 4, 2))) for _ in range(int(rng.integers(0, 6)))
    ]
    masks = [ellipse(*each) for each in objects]
    labels = rng.choice(CATEGORIES, len(objects))
    guesses = []
    for place in rng.integers(0, max(len(objects), 1), int(rng.integers(0, 14)) if objects else 0):
        centre, radii = objects[place]
        near = rng.choice([0.0, 0.5, 4.0])
        guesses.append(ellipse(centre + near * rng.normal(size=2), radii * rng.normal(1, 0.02 * near, 2)))
    truth = ObjectMasks(
        tuple(map(encode_mask, masks)),
        labels.astype(np.int64),
        np.array([mask.sum() * rng.uniform(0.8, 1) for mask in masks], dtype=np.float64),
        rng.random(len(objects)) < 0.2,
        SIZE,
    )
    found = list(map(encode_mask, guesses))
    names = rng.choice([*CATEGORIES, 7], len(found)) if len(found) else np.zeros(0, np.int64)
    close = rng.random(len(found)) < 0.8
    names[close] = rng.choice(labels, int(close.sum())) if len(labels) else names[close]
    return truth, (found, rng.random(len(found)).astype(np.float32), names)


def together(images: list[tuple[ObjectMasks, Found]]) -> Matches:
    each = [match_masks(truth, *found, CATEGORIES) for truth, found in images]
    return joined(
        [
            replace(one, images=one.images + place, true_images=one.true_images + place)
            for place, one in enumerate(each)
        ]
    )


def mask_entries(images: list[tuple[ObjectMasks, Found]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A COCO file, and results as COCO has them."""
    annotations: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for number, (truth, (masks, scores, labels)) in enumerate(images, start=1):
        rows = zip(truth.masks, truth.categories, truth.areas, truth.crowd, strict=True)
        annotations += [
            {
                "id": len(annotations) + place,
                "image_id": number,
                "category_id": int(label),
                "area": float(area),
                "iscrowd": int(crowd),
                "segmentation": mask,
                "bbox": [0, 0, 1, 1],
            }
            for place, (mask, label, area, crowd) in enumerate(rows, start=1)
        ]
        results += [
            {"image_id": number, "category_id": int(label), "segmentation": mask, "score": float(score)}
            for mask, score, label in zip(masks, scores, labels, strict=True)
            if int(label) in CATEGORIES
        ]
    content = {
        "info": {},
        "images": [{"id": n, "height": SIZE[0], "width": SIZE[1]} for n in range(1, len(images) + 1)],
        "categories": [{"id": number, "name": str(number)} for number in CATEGORIES],
        "annotations": annotations,
    }
    return content, results


@pytest.mark.parametrize("seed", range(3))
def test_mask_ap_is_that_of_pycocotools_on_the_whole_set(seed: int) -> None:
    rng = np.random.default_rng(seed)
    images = [random_image(rng) for _ in range(8)]
    found = mask_average_precision(together(images), CATEGORIES, len(images))
    assert 5 < found["AP"] < 95
    expected = coco_figures(*mask_entries(images), "segm")
    np.testing.assert_allclose(list(found.values()), expected, rtol=0, atol=SAME)


@given(st.integers(0, 2**32 - 1), st.sampled_from(PACKAGES))
@settings(max_examples=40)
def test_every_match_of_masks_is_that_of_the_evaluators(seed: int, package: str) -> None:
    image = random_image(np.random.default_rng(seed))
    content, results = mask_entries([image])
    if results:
        done = evaluation(content, results, "segm", package)
        assert_same_matches(by_us(together([image]), [1]), by_package(done))


def test_a_weight_is_a_repeated_image() -> None:
    rng = np.random.default_rng(5)
    images = [random_image(rng) for _ in range(7)]
    worse = [(truth, (masks, rng.random(len(masks)), labels)) for truth, (masks, _, labels) in images]
    picks = rng.integers(0, 7, (6, 7))
    weights = np.stack([np.bincount(row, minlength=7) for row in picks])
    gain = paired_delta(
        *(rank_matches(together(each), CATEGORIES, 7).average_precision for each in (images, worse))
    )
    first, second = (
        [coco_figures(*mask_entries([each[place] for place in row]), "segm")[0] for row in picks]
        for each in (images, worse)
    )
    np.testing.assert_allclose(gain(weights), np.subtract(second, first), rtol=0, atol=SAME)
    interval = image_bootstrap(gain, 7, replicates=50)
    assert interval.low <= interval.estimate <= interval.high


def test_an_image_without_objects_or_masks() -> None:
    empty = ObjectMasks((), np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.bool_), SIZE)
    none = match_masks(empty, [], np.zeros(0), np.zeros(0, np.int64), CATEGORIES)
    assert len(none.scores) == len(none.to_find) == 0
    assert np.isnan(mask_average_precision(none, CATEGORIES, 1)["AP"])
    mask = encode_mask(np.ones(SIZE, np.bool_))
    extra = match_masks(empty, [mask], np.ones(1), np.array([5]), CATEGORIES)
    assert extra.found.tolist() == [[0, 0, 0, 0]]
    assert extra.counted[0, 0] == 1023  # wrong at every threshold


def test_a_mask_of_another_size_is_refused() -> None:
    empty = ObjectMasks((), np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.bool_), SIZE)
    mask = encode_mask(np.ones((3, 4), np.bool_))
    with pytest.raises(GramLoopError, match="a predicted mask is 4 x 3, but its image is 150 x 120"):
        match_masks(empty, [mask], np.ones(1), np.array([5]), CATEGORIES)


@pytest.mark.parametrize(
    "wrong", [{"scores": np.array([np.nan])}, {"boxes": np.array([[0.0, 0, np.inf, 1]])}]
)
def test_a_number_that_is_not_finite_is_refused(wrong: dict[str, Any]) -> None:
    none = Instances.from_annotations([])
    given = {"boxes": np.ones((1, 4)), "scores": np.ones(1), **wrong}
    with pytest.raises(GramLoopError, match="not finite"):
        match_boxes(none, **given, labels=np.array([2]), categories=CATEGORIES)
