from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gramloop.metrics.ap_bootstrap import Matched

from gramloop.metrics import ap_bootstrap, ap_draws
from gramloop.metrics.ap import RECALLS
from random_boxes import random_set

SAME = 1e-11  # of a percentage: the same terms, added in another order


@pytest.fixture(autouse=True)
def little_is_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small sets go the way of large ones."""
    monkeypatch.setattr(ap_bootstrap, "MUCH", 0)


def drawn(images: int, draws: int = 300) -> np.ndarray:
    return np.random.default_rng(7).multinomial(images, np.full(images, 1 / images), size=draws)


def compiled(found: Matched, weights: np.ndarray, many: int) -> np.ndarray:
    assert found._is_much(weights)
    return found.by_category(weights, many)


def straight(found: Matched, weights: np.ndarray, many: int) -> np.ndarray:
    """The same a few draws at a time, which are computed as the definition says."""
    few = ap_bootstrap.MANY - 1
    return np.concatenate(
        [found.by_category(weights[start : start + few], many) for start in range(0, len(weights), few)]
    )


@pytest.mark.parametrize(
    "options",
    [
        {"images": 40},
        {"images": 30, "crowd": 0.4},  # what counts differs by threshold
        {"images": 4, "per_image": 300},  # some draws hold no object of a category
        {"images": 25, "scores": 5, "whole_pixels": True, "crowd": 0.2},
        {"images": 200, "per_image": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", range(3))
def test_many_draws_together_equal_the_definition(options: dict[str, Any], seed: int) -> None:
    truth, detections = random_set(seed, **options)
    found, weights = Matched.of(truth, detections), drawn(len(truth.images))
    together = compiled(found, weights, len(truth.categories))
    expected = straight(found, weights, len(truth.categories))
    assert np.nanstd(expected) > 0
    np.testing.assert_allclose(together, expected, rtol=0, atol=SAME)


def test_a_category_that_is_never_found_scores_zero_where_it_was_drawn() -> None:
    truth, detections = random_set(3, images=6)
    far = type(detections)(
        detections.image_ids, detections.boxes + 5000, detections.scores, detections.labels
    )
    found, weights = Matched.of(truth, far), drawn(6)
    together = compiled(found, weights, len(truth.categories))
    np.testing.assert_array_equal(together, straight(found, weights, len(truth.categories)))
    assert set(np.unique(together[~np.isnan(together)])) == {0.0}


@pytest.mark.parametrize("only", [slice(1), slice(5, 6)])
def test_one_threshold_alone(only: slice) -> None:
    truth, detections = random_set(8, images=30, crowd=0.3)
    whole, weights = Matched.of(truth, detections), drawn(30, 150)
    parts = [
        ap_bootstrap.MatchedCategory(one.owners, one.found[only], one.counted[only], one.objects)
        for one in whole.categories
    ]
    found = Matched(whole.order, tuple(parts), whole.numbers)
    np.testing.assert_allclose(compiled(found, weights, 3), straight(found, weights, 3), rtol=0, atol=SAME)


def test_a_score_depends_on_its_own_draw_alone() -> None:
    truth, detections = random_set(4, images=20, crowd=0.2)
    found, weights = Matched.of(truth, detections), drawn(20, 300)
    whole = compiled(found, weights, 3)
    order = np.random.default_rng(1).permutation(300)
    np.testing.assert_array_equal(compiled(found, weights[order], 3), whole[order])
    parts = [compiled(found, part, 3) for part in np.split(weights, [70, 200])]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize(("name", "limit"), [("EXACT", 50), ("HEAVIEST", 2)])
def test_counts_beyond_what_is_exact_are_computed_straight(
    name: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth, detections = random_set(5, images=20)
    found, weights = Matched.of(truth, detections), drawn(20, 100)
    monkeypatch.setattr(ap_bootstrap, name, limit)
    assert not found._is_much(weights)
    np.testing.assert_array_equal(found.by_category(weights, 3), straight(found, weights, 3))


@pytest.mark.parametrize("heavy", [255, 256, 70_000])
def test_an_image_that_was_drawn_very_often(heavy: int) -> None:
    truth, detections = random_set(6, images=20)
    found, weights = Matched.of(truth, detections), drawn(20, 100)
    weights[:, 3] *= heavy
    weights = np.minimum(weights, heavy)
    assert found._is_much(weights) == (heavy < 256)
    np.testing.assert_allclose(found.by_category(weights, 3), straight(found, weights, 3), rtol=0, atol=SAME)


def test_without_numba_all_is_computed_straight(monkeypatch: pytest.MonkeyPatch) -> None:
    truth, detections = random_set(5, images=20)
    found, weights = Matched.of(truth, detections), drawn(20, 100)
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.setattr(ap_bootstrap, "can_compile", ap_draws.can_compile.__wrapped__)
    assert not found._is_much(weights)
    np.testing.assert_array_equal(found.by_category(weights, 3), straight(found, weights, 3))


def test_recalls_are_reached_as_floating_point_numbers_have_it() -> None:
    from gramloop.metrics.ap_kernel import recalls_reached

    for objects in (1, 2, 3, 7, 20, 25, 50, 99, 100, 101, 400, 1999, 10_000, 2**31 - 100):
        finds = np.unique(np.linspace(0, objects, 20_001).astype(np.int64))
        reached = [recalls_reached(float(each), float(objects), 1 / objects) for each in finds.tolist()]
        np.testing.assert_array_equal(reached, np.searchsorted(RECALLS, finds / objects, side="right"))


BOOTSTRAP = """
import sys
import numpy as np
from gramloop.metrics import ap_bootstrap
from random_boxes import random_set

ap_bootstrap.MUCH = int(sys.argv[1])
truth, detections = random_set(2, images=20)
weights = np.random.default_rng(7).multinomial(20, np.full(20, 1 / 20), size=100)
print(ap_bootstrap.ap_score(truth, detections)(weights).tolist(), "numba" in sys.modules)
"""


def bootstrap_elsewhere(much: int, kept: Path) -> str:
    """What another process says, which keeps compiled code in a folder."""
    paths = os.pathsep.join([str(Path(__file__).parents[1] / "support"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "NUMBA_CACHE_DIR": str(kept)}
    done = subprocess.run(
        [sys.executable, "-c", BOOTSTRAP, str(much)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert not done.stderr
    return done.stdout


def test_a_little_does_not_load_numba(tmp_path: Path) -> None:
    assert bootstrap_elsewhere(10**9, tmp_path).endswith("False\n")


def test_damaged_and_missing_folders_of_compiled_code_change_nothing(tmp_path: Path) -> None:
    first = bootstrap_elsewhere(0, tmp_path / "kept")
    assert first.endswith("True\n")
    files = [each for each in (tmp_path / "kept").rglob("*") if each.is_file()]
    assert {each.suffix for each in files} == {".nbi", ".nbc"}
    assert bootstrap_elsewhere(0, tmp_path / "kept") == first
    for each in files:
        each.write_bytes(each.read_bytes()[:100])
    assert bootstrap_elsewhere(0, tmp_path / "kept") == first
    (tmp_path / "file").touch()
    assert bootstrap_elsewhere(0, tmp_path / "file" / "none") == first
