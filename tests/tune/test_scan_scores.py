"""Scores order windows, files keep a scan, and the map is a picture."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from gramloop.errors import GramLoopError
from gramloop.tune.scan import scores as scan_scores
from gramloop.tune.scan.files import read_scan, to_json
from gramloop.tune.scan.map import draw_map
from gramloop.tune.scan.scanning import Scan
from gramloop.tune.scan.scores import DEFAULT, SCORES, all_scores, rank_correlation, ranked
from gramloop.tune.scan.sweep import all_windows

NAMES = ("drift_mean", "drift_median", "step", "amplification", "growth_2", "cosine", "step_ratio")


def made(depth: int = 5, longest: int = 2, conditions: tuple[str, ...] = ("clean", "fog/3")) -> Scan:
    """A scan in which a later window is gentler in every statistic."""
    windows = all_windows(depth, longest)
    rng = np.random.default_rng(depth)
    fall = np.linspace(1.0, 0.1, len(windows))
    shape = (len(conditions), 3, len(windows))
    values = {name: fall * rng.uniform(0.99, 1.01, shape) for name in NAMES}
    return Scan("ViT", depth, 2, windows, conditions, ("a", "b", "c"), values, 10, 20)


@pytest.mark.parametrize(
    "name", ["small_drift", "small_step", "small_drift_per_step", "contraction", "turning_back"]
)
def test_gentle_windows_come_first(name: str) -> None:
    scan = made()
    assert [entry.window for entry in ranked(scan, name)] == list(reversed(scan.windows))


def test_a_score_of_ones_own() -> None:
    scan = made()
    first = ranked(scan, lambda scan: np.array([float(start == 2) for start, _ in scan.windows]))
    assert [entry.window for entry in first[:2]] == [(2, 2), (2, 3)]


def test_windows_that_could_not_be_measured_come_last() -> None:
    scan = made()
    scan.values["step"][..., 3] = np.nan
    last = ranked(scan, "small_step")[-1]
    assert last.window == scan.windows[3]
    assert np.isnan(last.score)


@given(st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_rank_correlation_sees_order_alone(seed: int) -> None:
    scan = made()
    rng = np.random.default_rng(seed)
    score = scan_scores.small_drift(scan)
    gains = dict(zip(scan.windows, rng.permutation(len(scan.windows)).astype(float), strict=True))
    found = rank_correlation(scan, gains)
    # the closed form for ranks without ties
    ranks = np.argsort(np.argsort(score))
    true = np.array([gains[window] for window in scan.windows])
    n = len(true)
    expected = 1 - 6 * ((ranks - true) ** 2).sum() / (n * (n * n - 1))
    assert found["small_drift"].rho == pytest.approx(expected, abs=1e-12)
    bent = {window: gain**3 - 5 for window, gain in gains.items()}
    assert rank_correlation(scan, bent) == found
    assert [one.rho for one in found.values()] == sorted((one.rho for one in found.values()), reverse=True)


def test_a_rank_correlation_needs_windows_and_passes_over_scores_without_clean_images() -> None:
    scan = made(conditions=("given",))
    assert "shifted_step" not in all_scores(scan)
    gains = {window: float(place) for place, window in enumerate(scan.windows)}
    found = rank_correlation(scan, gains)
    assert list(found)[-4:] == ["shifted_step", "steady_step", "shifted_drift", "steady_drift"]
    assert np.isnan(found["shifted_step"].rho)
    assert found["small_drift"].rho == pytest.approx(1)
    with pytest.raises(GramLoopError, match="needs 3"):
        rank_correlation(scan, {(0, 0): 1.0, (1, 1): 2.0, (90, 99): 3.0})


def test_an_unknown_score() -> None:
    with pytest.raises(GramLoopError, match=f"no score 'best'; there are .*{DEFAULT}"):
        ranked(made(), "best")


@pytest.mark.parametrize("conditions", [("clean", "fog/3"), ("given",)], ids=["paired", "given"])
def test_a_scan_comes_back_from_its_file(tmp_path: Path, conditions: tuple[str, ...]) -> None:
    scan = made(conditions=conditions)
    scan.values["step"][0, 1, 2] = np.nan
    path = tmp_path / "scan.json"
    path.write_bytes(to_json(scan))
    again = read_scan(path)
    for name, values in scan.values.items():
        np.testing.assert_array_equal(again.values[name], values)
    assert (again.windows, again.images, again.conditions) == (scan.windows, scan.images, scan.conditions)
    assert to_json(again) == to_json(scan)
    ranking = json.loads(path.read_text())["ranking"]
    assert [tuple(row["window"]) for row in ranking] == [entry.window for entry in ranked(scan)]
    assert set(ranking[0]["scores"]) == set(all_scores(scan))
    assert len(SCORES) - len(ranking[0]["scores"]) == (0 if scan.paired else 4)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"format": 1, "windows": 3}'])
def test_a_file_that_is_no_scan(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(GramLoopError, match=r"other\.json is not a scan"):
        read_scan(path)
    with pytest.raises(GramLoopError, match=r"cannot read .*missing\.json"):
        read_scan(tmp_path / "missing.json")
    path.write_text('{"format": 2}')
    with pytest.raises(GramLoopError, match="has format 2"):
        read_scan(path)


@pytest.mark.parametrize(
    ("depth", "conditions"), [(1, ("clean", "fog/3")), (40, ("clean", "fog/3")), (12, ("given",))]
)
def test_the_map_is_drawn_at_any_depth(depth: int, conditions: tuple[str, ...]) -> None:
    scan = made(depth, 4, conditions)
    scan.values["drift_median"][..., 0] = 0.0  # nothing moved: no logarithm
    picture = Image.open(io.BytesIO(draw_map(scan)))
    colours = np.unique(np.asarray(picture.convert("RGB")).reshape(-1, 3), axis=0)
    assert picture.width > 1000
    assert len(colours) > 200
