"""Depth on the command line with the embedded model: evaluate, predict, diagnose; and that its head has learned it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gramloop.cli import main
from gramloop.data.scenes import scene
from gramloop.data.truth import DepthMap
from gramloop.metrics.scores import depth_scores
from gramloop.models.tiny import DEPTH_HEAD, WEIGHTS
from gramloop.tasks.depth import Depth
from gramloop.tasks.loading import load_predictor


def test_the_embedded_head_knows_unseen_scenes() -> None:
    predictor = load_predictor("depth", {"folder": WEIGHTS})
    found = []
    for index in range(12):
        one = scene(index, split="test")
        predicted = predictor.predict(one.image)
        assert isinstance(predicted, Depth)
        found.append(depth_scores(predicted.values, DepthMap(one.depth)))
    delta1, _, _, abs_rel, *_ = np.mean(found, axis=0)
    assert delta1 >= 90
    assert abs_rel < 0.12


def test_embedded_files_stay_small() -> None:
    assert (WEIGHTS / DEPTH_HEAD).stat().st_size <= 1_000_000
    assert sum(path.stat().st_size for path in WEIGHTS.rglob("*") if path.is_file()) <= 16_000_000


def test_evaluate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--suite", "scenes-c", "--task", "depth", "--condition", "fog", "--severity", "3"]
    assert main(["evaluate", *given, "--images", "2", "--workers", "1", "--out", str(tmp_path)]) == 0
    with (tmp_path / "results.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [row["method"] for row in rows] == ["baseline", "gramloop", "baseline", "gramloop"]
    assert 0 < float(rows[0]["delta1"]) <= 100
    assert "delta1 in percent" in capsys.readouterr().out
    assert main(["evaluate", "--out", str(tmp_path), "--align", "median"]) == 2
    assert "--align belongs to a new evaluation" in capsys.readouterr().err


def test_an_alignment_belongs_to_depth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--suite", "scenes", "--align", "median", "--images", "2", "--out", str(tmp_path)]
    assert main(["evaluate", *given]) == 2
    assert "an alignment belongs to depth" in capsys.readouterr().err


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "street.png"
    Image.fromarray(scene(3, 128).image[:100]).save(path)
    return path


def test_predict(photo: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert (
        main(["predict", str(photo), "--task", "depth", "--method", "replay:window=5-5", "--out", str(out)])
        == 0
    )
    ordinary, replayed = (np.load(out / f"street.{version}.npy") for version in ("baseline", "mitigated"))
    assert ordinary.shape == replayed.shape == (100, 128)
    assert ordinary.dtype == np.float32
    assert (ordinary > 0).all()
    assert (ordinary != replayed).any()
    with Image.open(out / "street.picture.png") as picture:
        assert picture.width > 1000


def test_diagnose(photo: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["diagnose", str(photo), "--task", "depth", "--out", str(out)]) == 0
    said = json.loads((out / "street.diagnosis.json").read_text())
    assert said["conditions"][0]["replays"][0]["drift"]["mean"] > 0
