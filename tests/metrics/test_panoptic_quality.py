from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hotcoco.panoptic import pq_compute
from hypothesis import given, settings
from hypothesis import strategies as st

from gramloop.data.truth import SegmentMap, segments_png
from gramloop.errors import GramLoopError
from gramloop.metrics.bootstrap import image_bootstrap, paired_delta
from gramloop.metrics.segmentation import class_quality, mean_quality, panoptic_statistics, pq_score
from random_segments import CATEGORIES, THINGS, of_maps, segment_pairs

PAIR = tuple[SegmentMap, SegmentMap]
NUMBERS = list(CATEGORIES)
IS_THING = np.array([number in THINGS for number in NUMBERS])
SAME = 1e-9  # of a percentage; a few dozen additions in another order


def statistics(pairs: list[PAIR]) -> np.ndarray:
    return np.stack([panoptic_statistics(*pair, NUMBERS) for pair in pairs])


def written(folder: Path, name: str, maps: list[SegmentMap]) -> Path:
    """COCO's files, as panopticapi reads them."""
    (folder / name).mkdir()
    annotations: list[dict[str, Any]] = []
    for index, one in enumerate(maps, start=1):
        (folder / name / f"{index}.png").write_bytes(segments_png(one.ids))
        infos = [
            {
                "id": int(number),
                "category_id": int(category),
                "iscrowd": int(crowd),
                "area": int((one.ids == number).sum()),
                "bbox": [0, 0, 1, 1],
            }
            for number, category, crowd in zip(one.numbers, one.categories, one.crowd, strict=True)
        ]
        annotations.append({"image_id": index, "file_name": f"{index}.png", "segments_info": infos})
    high, wide = maps[0].ids.shape
    content = {
        "images": [
            {"id": index, "file_name": f"{index}.jpg", "height": high, "width": wide}
            for index in range(1, len(maps) + 1)
        ],
        "annotations": annotations,
        "categories": [
            {"id": number, "name": name, "isthing": int(number in THINGS)}
            for number, name in CATEGORIES.items()
        ],
    }
    path = folder / f"{name}.json"
    path.write_text(json.dumps(content))
    return path


def hotcoco_quality(pairs: list[PAIR]) -> dict[str, Any]:
    with TemporaryDirectory() as place, contextlib.redirect_stdout(io.StringIO()):
        found, truth = (
            written(Path(place), name, [pair[index] for pair in pairs])
            for index, name in enumerate(("found", "truth"))
        )
        result: dict[str, Any] = pq_compute(truth, found)
        return result


@given(st.lists(segment_pairs(), min_size=1, max_size=3))
@settings(max_examples=150, deadline=None)
def test_equals_the_evaluator_of_hotcoco(pairs: list[PAIR]) -> None:
    expected = hotcoco_quality(pairs)
    total = statistics(pairs).sum(axis=0)
    groups = {"All": slice(None), "Things": IS_THING, "Stuff": ~IS_THING}
    for name, chosen in groups.items():
        theirs = [100 * expected[name][key] for key in ("pq", "sq", "rq")]
        ours = np.nan_to_num(mean_quality(total, chosen), nan=-100)  # where nothing was seen, it says -1
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=SAME)
    for place, number in enumerate(NUMBERS):
        ours = np.nan_to_num(class_quality(total)[:, place], nan=-100)
        theirs = [100 * expected["per_class"][number][key] for key in ("pq", "sq", "rq")]
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=SAME)


def by_definition(found: SegmentMap, truth: SegmentMap, category: int) -> list[float]:
    """Sets of pixels, segment by segment: overlap, found, wrong, missed of one category."""
    scored = {tuple(place) for place in np.argwhere(truth.ids != 0)}

    def pixels(one: SegmentMap, number: int) -> set[tuple[int, ...]]:
        return {tuple(place) for place in np.argwhere(one.ids == number)}

    def of_category(one: SegmentMap, crowd: bool) -> list[set[tuple[int, ...]]]:
        each = zip(one.numbers, one.categories, one.crowd, strict=True)
        return [pixels(one, number) for number, kind, flag in each if kind == category and flag == crowd]

    objects, guesses = of_category(truth, False), of_category(found, False)
    crowds: set[tuple[int, ...]] = set().union(*of_category(truth, True))
    shares = [[len(guess & thing) / len((guess & scored) | thing) for guess in guesses] for thing in objects]
    hits = [
        (row, column)
        for row in range(len(objects))
        for column in range(len(guesses))
        if shares[row][column] > 0.5
    ]
    unmatched = [guess for column, guess in enumerate(guesses) if column not in {hit[1] for hit in hits}]
    wrong = [guess for guess in unmatched if len((guess - scored) | (guess & crowds)) <= 0.5 * len(guess)]
    return [sum(shares[r][c] for r, c in hits), len(hits), len(wrong), len(objects) - len(hits)]


@given(segment_pairs())
@settings(max_examples=200, deadline=None)
def test_equals_the_definition_over_sets_of_pixels(pair: PAIR) -> None:
    found = panoptic_statistics(*pair, NUMBERS)
    expected = np.array([by_definition(*pair, category) for category in NUMBERS]).T
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)  # sums of at most five quotients
    np.testing.assert_array_equal(found[1:], expected[1:])


@given(st.lists(segment_pairs(), min_size=2, max_size=4), st.data())
@settings(max_examples=50, deadline=None)
def test_a_weight_is_a_repeated_image(pairs: list[PAIR], data: st.DataObject) -> None:
    picks = data.draw(st.lists(st.integers(0, len(pairs) - 1), min_size=1, max_size=6))
    weights = np.bincount(picks, minlength=len(pairs))[None]
    each, swapped = statistics(pairs), statistics([(truth, found) for found, truth in pairs])
    gain = paired_delta(pq_score(each), pq_score(swapped))(weights)[0]
    repeated = [mean_quality(one[picks].sum(axis=0))[0] for one in (each, swapped)]
    np.testing.assert_allclose(gain, repeated[1] - repeated[0], rtol=0, atol=SAME)


def test_a_worked_example() -> None:
    truth = of_maps(np.array([[1, 1, 1, 1, 2, 2], [0, 0, 3, 3, 2, 2]]), [0, 3, 20, 3], [False] * 3 + [True])
    found = of_maps(np.array([[4, 4, 4, 0, 5, 5], [4, 4, 6, 6, 6, 5]]), [0, 0, 0, 0, 3, 20, 3], [False] * 7)
    # 4 finds 1: 3 shared, 4 + 5 - 3 less its 2 pixels of void; 5 finds 2: 3 of 4; 6 lies in a crowd of its kind by 2 of 3
    overlap, hits, wrong, missed = panoptic_statistics(found, truth, NUMBERS)
    assert overlap.tolist() == [3 / 4, 0, 3 / 4, 0]
    assert hits.tolist() == [1, 0, 1, 0]
    assert wrong.tolist() == missed.tolist() == [0, 0, 0, 0]
    np.testing.assert_allclose(mean_quality(np.stack([overlap, hits, wrong, missed])), [75, 75, 100])


def test_nothing_found_is_no_quality_and_no_object_is_none() -> None:
    truth = of_maps(np.array([[1, 1]]), [0, 3], [False] * 2)
    nothing = of_maps(np.zeros((1, 2), np.int32), [0], [False])
    assert mean_quality(panoptic_statistics(nothing, truth, NUMBERS)).tolist() == [0, 0, 0]
    assert np.isnan(mean_quality(panoptic_statistics(nothing, nothing, NUMBERS))).all()
    assert mean_quality(panoptic_statistics(truth, truth, NUMBERS)).tolist() == [100, 100, 100]


def test_segments_of_other_categories_count_for_nothing() -> None:
    truth = of_maps(np.array([[1, 1, 2, 2]]), [0, 3, 7], [False] * 3)
    found = of_maps(np.array([[1, 1, 2, 2]]), [0, 3, 99], [False] * 3)
    assert panoptic_statistics(found, truth, [3]).tolist() == [[1], [1], [0], [0]]


def test_the_interval_over_images_holds_the_difference() -> None:
    rng = np.random.default_rng(0)
    pairs = []
    for _ in range(12):
        ids = rng.integers(0, 4, (4, 4)).repeat(3, 0).repeat(3, 1)
        noisy = np.where(rng.random(ids.shape) < 0.2, rng.integers(0, 4, ids.shape), ids)
        pairs.append((of_maps(noisy, [0, 3, 7, 20], [False] * 4), of_maps(ids, [0, 3, 7, 20], [False] * 4)))
    worse, better = statistics(pairs), statistics([(truth, truth) for _, truth in pairs])
    interval = image_bootstrap(paired_delta(pq_score(worse), pq_score(better)), len(pairs), replicates=200)
    assert 0 < interval.low < interval.estimate < interval.high
    expected = mean_quality(better.sum(0))[0] - mean_quality(worse.sum(0))[0]
    assert interval.estimate == pytest.approx(expected, abs=SAME)


def test_a_prediction_of_another_size_is_told() -> None:
    one, two = (of_maps(np.zeros(shape, np.int32), [0], [False]) for shape in ((2, 3), (3, 2)))
    with pytest.raises(GramLoopError, match=r"the shape \(3, 2\), but that of their truth is \(2, 3\)"):
        panoptic_statistics(two, one, NUMBERS)
    with pytest.raises(GramLoopError, match="segment 4, which is not listed"):
        panoptic_statistics(one, SegmentMap(np.full((2, 3), 4, np.int32), *_none()), NUMBERS)


def _none() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.bool_)
