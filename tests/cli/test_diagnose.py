"""``gramloop diagnose`` on the embedded model and through heads."""

import json

import pytest
import torch
from PIL import Image

from golden import load_golden
from gramloop.cli import main
from gramloop.data.scenes import scene
from gramloop.models.detector import DETECTOR_BACKBONE
from gramloop.models.tiny import SUGGESTED as SUGGESTED_FILE
from gramloop.models.tiny import load_tiny
from gramloop.replay.config import read_replay
from gramloop.tasks.diagnosis import diagnose
from gramloop.tasks.images import to_tensor


@pytest.fixture(scope="module")
def photo(tmp_path_factory):
    path = tmp_path_factory.mktemp("photos") / "boat.png"
    Image.fromarray(scene(3, 96).image).save(path)
    return path


SUGGESTED = "replay:window=6-6,replays=1,strength=0.15"


def run(*words):
    return main(["diagnose", *map(str, words)])


def test_figure_and_numbers_of_an_image(photo, tmp_path, capsys):
    assert run(photo, "--out", tmp_path, "--short-side", 96, "--method", SUGGESTED) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"boat.diagnosis.{kind}" for kind in ("json", "pdf", "png")
    ]
    said = json.loads((tmp_path / "boat.diagnosis.json").read_text())
    pixels = to_tensor(scene(3, 96).image)
    expected = diagnose(load_tiny(), pixels, read_replay(SUGGESTED_FILE))
    (entry,) = said["conditions"]
    assert {name: entry[name] for name in expected.as_json()} == expected.as_json()
    assert said["replay"]["window"] == list(read_replay(SUGGESTED_FILE).window)
    assert "blocks" in capsys.readouterr().out
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert run(photo, "--out", tmp_path, "--short-side", 96, "--method", SUGGESTED) == 0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_clean_stands_beside_every_severity(photo, tmp_path):
    shifted = ["--shift", "impulse_noise", "--severity", 3, 10]
    options = ["--short-side", 96, "--method", "replay:window=8-9,replays=1"]
    assert run(photo, "--out", tmp_path, *shifted, *options) == 0
    said = json.loads((tmp_path / "boat.diagnosis.json").read_text())
    assert [(each["shift"], each["severity"]) for each in said["conditions"]] == [
        (None, 0),
        ("impulse_noise", 3),
        ("impulse_noise", 10),
    ]
    assert said["replay"]["window"] == [8, 9]
    drifts = [each["replays"][0]["drift"]["mean"] for each in said["conditions"]]
    assert len(set(drifts)) == 3
    assert (
        Image.open(tmp_path / "boat.diagnosis.png").width > 1400
    )  # full width: a row of four panels for each


def test_names_of_both_kinds_can_be_told_apart(photo, tmp_path):
    found = {}
    for name in ("contrast", "contrast-p", "contrast-c"):
        out = tmp_path / name
        assert run(photo, "--out", out, "--shift", name, "--severity", 5, "--short-side", 96) == 0
        found[name] = json.loads((out / "boat.diagnosis.json").read_text())["conditions"][1]["post_drift"]
    assert found["contrast"] == found["contrast-c"] != found["contrast-p"]


def test_results_are_not_taken_for_images(photo, tmp_path):
    Image.open(photo).save(tmp_path / "boat.png")
    for _ in range(2):
        assert run(tmp_path, "--out", tmp_path, "--short-side", 96) == 0
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize("task", ["semantic", "detection"])
def test_a_head_looks_through_its_own_windows(photo, tmp_path, task):
    name = {"semantic": "segmentor", "detection": "detector"}[task]
    weights = load_golden(name).weights
    files = ["--head", tmp_path / "head.pth"]
    files += ["--crop", 96, "--stride", 96] if task == "semantic" else []
    if task == "detection":
        inner = {key: value for key, value in weights.items() if key.startswith(DETECTOR_BACKBONE)}
        torch.save(
            {key.removeprefix(DETECTOR_BACKBONE): each for key, each in inner.items()}, tmp_path / "b.pth"
        )
        weights = {"model": {key: value for key, value in weights.items() if key not in inner}}
        files += ["--backbone", tmp_path / "b.pth"]
    torch.save(weights, tmp_path / "head.pth")
    options = ["--task", task, "--short-side", 96, "--method", "replay:window=3-4"]
    assert run(photo, "--out", tmp_path / "out", *files, *options) == 0
    (entry,) = json.loads((tmp_path / "out" / "boat.diagnosis.json").read_text())["conditions"]
    assert entry["grid"] == [6, 6]
    assert 0 < entry["replays"][0]["mean_gate"] <= 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--shift", "rain"], "has no condition 'rain'"),
        (["--severity", "3"], "--severity belongs to --shift"),
        (["--method", "replay:window=9-12"], "reaches past the last block"),
        (["--short-side", "90"], "multiple of the patches' side, 8"),
        (["--backbone", "none.pth"], "--head FILE is missing"),
        (["--method", "replay:strength=half"], "strength is 'half'; it is "),
        (["--method", "replay:replays=0"], "no replay alone of 1 or more passes"),
        (["--method", "replay:adaptive=step:1"], "adaptive is 'step:1'; it is "),
        (["--method", "levels"], "only that has drift and gate"),
        (["--device", "nowhere"], "is not on this machine"),
        (["--shift", "fog", "--severity", "9"], "severity 9 of fog"),
    ],
)
def test_misuse_is_one_sentence(photo, tmp_path, capsys, options, words):
    assert run(photo, "--out", tmp_path / "out", *options) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "Traceback" not in said


def test_one_bad_image_costs_one_sentence(photo, tmp_path, capsys):
    (tmp_path / "bad.png").write_bytes(b"no image")
    assert run(tmp_path / "bad.png", photo, "--out", tmp_path / "out", "--short-side", 96) == 1
    assert "bad.png" in capsys.readouterr().err
    assert (tmp_path / "out" / "boat.diagnosis.png").is_file()
