"""``gramloop scan`` as it is typed."""

import json
from pathlib import Path

import pytest
from PIL import Image

from gramloop.cli import main
from gramloop.data.scenes.drawing import scene
from gramloop.models.tiny import WEIGHTS
from gramloop.tune.scan.files import read_scan

SMALL = ["--short-side", "64", "--max-length", "1", "--replays", "2"]


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.png"
    Image.fromarray(scene(0, 64, "scan").image).save(path)
    return path


def test_a_transformers_folder_on_a_picture(
    photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ["scan", WEIGHTS / "backbone", photo, "--shift", "fog:2", "--top", "3", "--out", out, *SMALL]
    assert main([str(word) for word in arguments]) == 0
    found = read_scan(out / "scan.json")
    assert found.images == ("photo.png",)
    assert found.conditions == ("clean", "fog/2")
    assert len(found.windows) == 12
    assert Image.open(out / "scan.png").width > 1000
    assert sorted(path.name for path in out.iterdir()) == ["scan.json", "scan.png"]
    printed = capsys.readouterr().out
    best = json.loads((out / "scan.json").read_text())["ranking"][0]["window"]
    assert str(best)[:-1] in printed
    # ordinary pass and two sweeps, against an own ordinary pass and suffix per window
    triangle = 12 * 13 // 2
    assert f"{12 + 2 * triangle} blocks" in printed
    assert f"takes {12 * 12 + triangle - 12 + 2 * triangle} " in printed


def test_the_embedded_model_needs_no_picture(tmp_path: Path) -> None:
    arguments = ["scan", "tiny", "--limit", "1", "--shift", "none", "--out", str(tmp_path), *SMALL]
    assert main(arguments) == 0
    assert read_scan(tmp_path / "scan.json").conditions == ("clean",)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--shift", "mist"], "--shift mist: a corruption is one of gaussian_noise"),
        (["--shift", "fog:strong"], "a whole number, as in fog:3"),
        (["--shift", "fog:9"], "severity 9 of fog"),
        (["--score", "best"], "there is no score 'best'"),
        (["--score", "steady_step", "--shift", "none"], "needs a --shift"),
        (["--top", "0"], "--top is 0"),
        (["--short-side", "65"], "a multiple of the patch, 8"),
        (["--max-length", "0"], "max_length is 0"),
        (["--replays", "1"], "replays is 1"),
        (["nowhere.png"], "nowhere.png is not a file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_cost_one_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["scan", "tiny", *arguments, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
    assert not list((tmp_path / "out").glob("*"))


def test_another_model_needs_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scan", str(WEIGHTS / "backbone"), "--out", str(tmp_path / "out")]) == 2
    assert "no image is given" in capsys.readouterr().err
