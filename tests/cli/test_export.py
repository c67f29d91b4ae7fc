"""``gramloop export``: a file, what it says, and misuse in a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from exported import read_about, read_export
from gramloop.cli import main
from gramloop.mitigations import CalibrationStats, apply
from gramloop.models.tiny import SOURCE, WEIGHTS
from gramloop.tasks.loading import open_model


def test_a_recentred_depth_model_and_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "depth.pt2"
    options = ["--task", "depth", "--method", "recentre:c=2", "--calibration", str(SOURCE)]
    assert (
        main(
            [
                "export",
                "--model",
                "tiny",
                *options,
                "--height",
                "64",
                "--width",
                "80",
                "--out",
                str(out),
                "--json",
            ]
        )
        == 0
    )
    document = json.loads(capsys.readouterr().out)
    assert document["difference"] <= 1e-4
    assert document["about"]["mitigations"] == "recentre:c=2"
    assert [each.name for each in tmp_path.iterdir()] == ["depth.pt2"]
    about = read_about(out)
    assert about.input == {"image": "uint8 RGB (1, 64, 80, 3), in this size only, normalised inside"}
    assert about.mitigations == "recentre:c=2"
    assert str(tmp_path) not in about.to_json()
    assert about.settings["calibration"] == {
        "images": 40,
        "backbone": "d45ec5eb8c66428c",
        "taps": [2, 5, 8, 11],
    }
    image = np.random.default_rng(0).integers(0, 255, (64, 80, 3), dtype=np.uint8)  # far from ordinary images
    library = open_model("tiny", "depth", {"short_side": 64})
    found = read_export(out)(image[None])["depth"][0]
    np.testing.assert_allclose(
        found, apply("recentre:c=2", library, CalibrationStats.read(SOURCE)).predict(image).values, rtol=1e-5
    )
    assert np.abs(found / library.predict(image).values - 1).max() > 0.01, "recentring does something here"


@pytest.mark.slow
def test_a_replayed_backbone_as_onnx(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "features.onnx"
    options = [
        "--task",
        "features",
        "--method",
        "replay:window=10-10,replays=1",
        "--height",
        "64",
        "--width",
        "64",
    ]
    assert main(["export", "--model", str(WEIGHTS / "backbone"), *options, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "replay:window=10-10,replays=1" in shown
    assert "difference to torch" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "tiny", "--task", "semantic", "--out", "x.bin"], "the format is pt2 (.pt2), onnx (.onnx), openvino (.xml)"),
        (["--model", "tiny", "--task", "semantic", "--calibration", "s", "--out", "x.pt2"], "--calibration belongs to --method"),
        (["--model", "tiny", "--task", "semantic", "--method", "flip", "--out", "x.pt2"], "norms and filters on pixels can be exported"),
        (["--model", "absent", "--task", "features", "--out", "x.pt2"], "absent"),
        (["--model", "tiny", "--task", "panoptic", "--out", "x.pt2"], "no model for the task panoptic"),
    ],
    ids=lambda each: each if isinstance(each, str) else " ".join(each) or "nothing",
)  # fmt: skip
def test_misuse_is_a_sentence_and_writes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.startswith("gramloop export: ")
    assert len(error.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())
