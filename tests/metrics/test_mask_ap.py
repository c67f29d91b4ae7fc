from __future__ import annotations

import contextlib
import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from gramloop.data.masks import encode_mask
from gramloop.data.truth import ObjectMasks
from gramloop.errors import GramLoopError
from gramloop.metrics.bootstrap import image_bootstrap
from gramloop.metrics.mask_ap import MaskMatches, mask_ap_delta, mask_average_precision, match_masks

CATEGORIES = [2, 5, 90]
SIZE = (120, 150)
SAME = 1e-9  # of a percentage; the order of a few hundred additions
FIGURES = ("ap", "ap50", "ap75", "small", "medium", "large")
Found = tuple[list[Any], np.ndarray, np.ndarray]


def ellipse(rng: np.random.Generator, centre: np.ndarray, radii: np.ndarray) -> np.ndarray:
    rows, columns = np.mgrid[: SIZE[0], : SIZE[1]]
    return ((rows - centre[0]) / radii[0]) ** 2 + ((columns - centre[1]) / radii[1]) ** 2 <= 1


def random_image(rng: np.random.Generator) -> tuple[ObjectMasks, Found]:
    """Round objects of all sizes, some crowds, and masks that hit, nearly hit, repeat, mistake and invent them."""
    objects = [
        (rng.uniform(10, 110, 2), np.exp(rng.uniform(1, 4, 2))) for _ in range(int(rng.integers(0, 6)))
    ]
    masks = [ellipse(rng, *each) for each in objects]
    labels = rng.choice(CATEGORIES, len(objects))
    guesses = []
    for place in rng.integers(0, max(len(objects), 1), int(rng.integers(0, 14)) if objects else 0):
        centre, radii = objects[place]
        near = rng.choice([0.0, 0.5, 4.0])
        guesses.append(
            ellipse(rng, centre + near * rng.normal(size=2), radii * rng.normal(1, 0.02 * near, 2))
        )
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


def together(images: list[tuple[ObjectMasks, Found]], **options: Any) -> MaskMatches:
    each = [match_masks(truth, *found, CATEGORIES, **options) for truth, found in images]
    return joined(each)


def joined(each: list[MaskMatches]) -> MaskMatches:
    numbered = [
        replace(one, images=one.images + place, true_images=one.true_images + place)
        for place, one in enumerate(each)
    ]
    names = MaskMatches.__dataclass_fields__
    return MaskMatches(*(np.concatenate([getattr(one, name) for one in numbered]) for name in names))


def reference(images: list[tuple[ObjectMasks, Found]]) -> list[float]:
    """The six figures of pycocotools' own summary of the whole set, used as its documentation says."""
    annotations, results = [], []
    for number, (truth, (masks, scores, labels)) in enumerate(images, start=1):
        for mask, label, area, crowd in zip(
            truth.masks, truth.categories, truth.areas, truth.crowd, strict=True
        ):
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": int(label),
                    "area": float(area),
                    "iscrowd": int(crowd),
                    "segmentation": mask,
                    "bbox": [0, 0, 1, 1],
                }
            )
        for mask, score, label in zip(masks, scores, labels, strict=True):
            if int(label) in CATEGORIES:
                entry = {"image_id": number, "category_id": int(label), "segmentation": mask}
                results.append({**entry, "score": float(score)})
    with contextlib.redirect_stdout(io.StringIO()):
        annotated = COCO()
        annotated.dataset = {
            "info": {},
            "images": [{"id": n, "height": SIZE[0], "width": SIZE[1]} for n in range(1, len(images) + 1)],
            "categories": [{"id": number, "name": str(number)} for number in CATEGORIES],
            "annotations": annotations,
        }
        annotated.createIndex()
        evaluation = COCOeval(annotated, annotated.loadRes(results), "segm")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return [100 * figure if figure > -1 else float("nan") for figure in evaluation.stats[:6].tolist()]


@pytest.mark.parametrize("evaluator", ["hotcoco", "pycocotools"])
@pytest.mark.parametrize("seed", range(3))
def test_equals_pycocotools_on_the_whole_set(seed: int, evaluator: Any) -> None:
    rng = np.random.default_rng(seed)
    images = [random_image(rng) for _ in range(8)]
    found = mask_average_precision(together(images, evaluator=evaluator), CATEGORIES, len(images))
    assert 5 < found.ap < 95
    np.testing.assert_allclose(
        [getattr(found, name) for name in FIGURES], reference(images), rtol=0, atol=SAME
    )
    assert list(found.by_category) == CATEGORIES


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_both_evaluators_match_alike(seed: int) -> None:
    truth, found = random_image(np.random.default_rng(seed))
    one, two = (match_masks(truth, *found, CATEGORIES, evaluator=name) for name in ("hotcoco", "pycocotools"))
    for name in MaskMatches.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))


def test_a_weight_is_a_repeated_image() -> None:
    rng = np.random.default_rng(5)
    images = [random_image(rng) for _ in range(7)]
    worse = [(truth, (masks, rng.random(len(masks)), labels)) for truth, (masks, _, labels) in images]
    picks = rng.integers(0, 7, (6, 7))
    weights = np.stack([np.bincount(row, minlength=7) for row in picks])
    gains = mask_ap_delta(together(images), together(worse), CATEGORIES, 7)(weights)
    expected = [
        reference([worse[place] for place in row])[0] - reference([images[place] for place in row])[0]
        for row in picks
    ]
    np.testing.assert_allclose(gains, expected, rtol=0, atol=SAME)
    interval = image_bootstrap(
        mask_ap_delta(together(images), together(worse), CATEGORIES, 7), 7, replicates=50
    )
    assert interval.low <= interval.estimate <= interval.high


def test_an_image_without_objects_or_masks() -> None:
    empty = ObjectMasks((), np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.bool_), SIZE)
    none = match_masks(empty, [], np.zeros(0), np.zeros(0, np.int64), CATEGORIES)
    assert len(none.scores) == len(none.to_find) == 0
    assert np.isnan(mask_average_precision(none, CATEGORIES, 1).ap)
    mask = encode_mask(np.ones(SIZE, np.bool_))
    extra = match_masks(empty, [mask], np.ones(1), np.array([5]), CATEGORIES)
    assert extra.found.tolist() == [[0, 0, 0, 0]]
    assert extra.counted[0, 0] == 1023  # a false alarm at every threshold


def test_a_mask_of_another_size_is_told() -> None:
    empty = ObjectMasks((), np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.bool_), SIZE)
    mask = encode_mask(np.ones((3, 4), np.bool_))
    with pytest.raises(GramLoopError, match="a predicted mask is 4 x 3, but its image is 150 x 120"):
        match_masks(empty, [mask], np.ones(1), np.array([5]), CATEGORIES)
