"""The demonstration ends in a table, a picture and a page, and starts again from what is stored."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gramloop import cost
from gramloop.cli import main
from gramloop.data.scenes.drawing import scene
from gramloop.demo.advice import choice
from gramloop.demo.methods import ways
from gramloop.evaluate.plan import read_plan
from gramloop.mitigations import calibrate
from gramloop.mitigations.calibration import CalibrationStats
from gramloop.mitigations.feature_hooks import feature_source
from gramloop.mitigations.stack import replay_of
from gramloop.models.tiny import SOURCE, WEIGHTS
from gramloop.replay.config import read_replay
from gramloop.report.load import load_runs
from gramloop.report.stats import compare_methods
from gramloop.tasks import load_predictor

SMALL = ["demo", "--quick", "--scenes", "2", "--workers", "1"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo") / "made"
    assert main([*SMALL, "--out", str(out)]) == 0
    return out


def rows_of(text: str) -> list[list[str]]:
    """The cells of the first table."""
    lines = [line for line in text.split("## Shift by shift")[0].splitlines() if re.match(r"\| \w", line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_it_ends_in_a_table_a_picture_and_a_page(made: Path) -> None:
    text = (made / "demo.md").read_text()
    replay = read_replay(WEIGHTS / "replay.json")
    blocks = cost(12, replay.window, replay.replays, strength=replay.strength).blocks
    assert f"Blocks executed: ordinary 12, replay {blocks}, free 12, both {blocks}." in text
    assert "Replay: block 6 once, gram gate, strength 0.15." in text
    rows = rows_of(text)
    assert rows[0] == ["task", "scenes", "ordinary", "Δ replay", "Δ free", "Δ both"]
    tasks = ["segmentation, mIoU", "detection, AP", "depth, delta1"]
    assert [row[:2] for row in rows[1:]] == [
        [task, on] for task in tasks for on in ("clean", "mean of shifts")
    ]
    below = text.split("## Shift by shift")[1]
    assert re.findall(r"^\| ([a-z]+ noise \d) ", below, re.M) == ["gaussian noise 3", "impulse noise 3"]
    with Image.open(made / "demo.png") as picture:
        assert picture.width > 1000
    page = (made / "report" / "index.html").read_text()
    assert "Replay and its rivals on the embedded model" in page
    assert page.count("<h2") >= 6


def test_its_first_sentence_says_what_to_take_as_far_as_the_numbers_do(made: Path) -> None:
    """Two scenes show little: whatever is not shown jointly to help is not recommended."""
    first = (made / "demo.md").read_text().splitlines()[2]
    runs = load_runs([made / "results"]).runs
    found = [each for each in compare_methods(runs, ("images",), replicates=2000) if each.run.shifted]
    assert len(found) == 3
    for evidence in found:
        task = evidence.run.plan.task
        taken = choice(evidence)
        assert bool(taken) == any(evidence.helps(method) for method in evidence.run.compared)
        if taken:
            assert evidence.gains[ways(task)[taken]][0].joint.low > 0
    if not any(choice(each) for each in found):
        assert first.startswith("For segmentation, detection and depth nothing is shown to help. ")
    assert "Replay alone is " in first
    assert "Intervals are over 2 scenes and hold for all 3 ways of a task together" in first


def test_numbers_of_the_table_are_those_stored(made: Path) -> None:
    [place] = (made / "results").glob("scenes-c-semantic-*")
    lines = [line.split(",") for line in (place / "results.csv").read_text().splitlines()]
    means = {line[1]: line for line in lines if line[0] == "mean"}
    row = rows_of((made / "demo.md").read_text())[2]
    assert row[2] == f"{float(means['baseline'][4]):.2f}"
    for cell, way in zip(row[3:], ("replay", "free", "both"), strict=True):
        assert cell.startswith(f"{float(means[ways('semantic')[way]][5]):+.2f} [")


def test_the_scenes_are_of_a_split_of_their_own(made: Path) -> None:
    settings = json.loads((made / "scenes-2" / "scenes.json").read_text())
    assert (settings["split"], settings["count"]) == ("demo", 2)
    with Image.open(made / "scenes-2" / "images" / "validation" / "00000001.png") as stored:
        assert np.array_equal(np.asarray(stored), scene(1, 192, "demo").image)
        assert not np.array_equal(np.asarray(stored), scene(1, 192, "val").image)


def test_the_replay_is_the_one_stored_beside_the_weights(made: Path) -> None:
    for place in (made / "results").iterdir():
        plan = read_plan(place / "plan.json")
        methods = {method.name: method for method in plan.methods}
        replay = read_replay(WEIGHTS / "replay.json")
        assert methods["gramloop"].replay == replay
        both = methods[ways(plan.task)["both"]].mitigations
        assert replay_of(both) == replay
        free = methods[ways(plan.task)["free"]].mitigations
        assert set(free) == {part for part in both if part.name != "replay"}


def test_the_source_beside_the_weights_is_of_the_embedded_model() -> None:
    """And of scenes that the demonstration does not show: a few of them give about the same means."""
    predictor = load_predictor("semantic", {"folder": str(WEIGHTS)})
    source = CalibrationStats.read(SOURCE)
    source.check(feature_source(predictor, "recentre"))
    assert source.images == 40
    some = calibrate(predictor, [scene(index, 192, "source").image for index in range(8)])
    for tap, mean in source.means.items():
        # the mean of 8 of the 40 scenes lies within 5 standard errors of the mean of all, in every channel
        limit = 5 * source.spreads[tap] / 8**0.5 + 1e-6
        assert ((some.means[tap] - mean).abs() < limit).all()


def test_a_second_start_predicts_nothing_again_and_says_the_same(made: Path, capsys) -> None:
    stored = {path: path.stat().st_mtime_ns for path in (made / "results").rglob("*.parquet")}
    table = (made / "demo.md").read_bytes()
    assert main([*SMALL, "--out", str(made)]) == 0
    assert {path: path.stat().st_mtime_ns for path in (made / "results").rglob("*.parquet")} == stored
    assert (made / "demo.md").read_bytes() == table
    printed = capsys.readouterr().out
    assert "gramloop.attach(model)" in printed
    assert str(made / "report" / "index.html") in printed


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--scenes", "1"], "--scenes is 1; an interval needs at least 2"),
        (["--workers", "0"], "--workers is 0"),
    ],
)
def test_misuse(arguments: list[str], sentence: str, tmp_path: Path, capsys) -> None:
    assert main(["demo", "--out", str(tmp_path), *arguments]) == 2
    assert sentence in capsys.readouterr().err
