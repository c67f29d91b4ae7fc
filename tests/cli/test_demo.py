"""The demonstration ends in a table, a picture and a page, and starts again from what is stored."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gramloop.cli import main
from gramloop.data.scenes import scene
from gramloop.evaluate.plan import read_plan
from gramloop.mitigations import calibrate
from gramloop.mitigations.calibration import CalibrationStats
from gramloop.mitigations.feature_hooks import feature_source
from gramloop.mitigations.stack import replay_of
from gramloop.models.tiny import SOURCE, WEIGHTS
from gramloop.replay.config import read_replay
from gramloop.report.answers import answers_of
from gramloop.report.load import load_runs
from gramloop.report.stats import compare_methods
from gramloop.tasks import load_predictor
from gramloop.util.table import markdown_text

SMALL = ["demo", "--quick", "--scenes", "2", "--workers", "1"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo") / "made"
    assert main([*SMALL, "--out", str(out)]) == 0
    return out


def test_it_ends_in_answers_a_picture_and_a_page(made: Path) -> None:
    """Two scenes show little: whatever does not help by the rule is not recommended."""
    text = (made / "report" / "report.md").read_text()
    suites = [f"scenes-c {task}" for task in ("semantic", "detection", "depth")]
    assert re.findall(r"^## (.*)", text, re.M)[:3] == suites
    page = (made / "report" / "index.html").read_text()
    assert all(suite in page for suite in suites)
    runs = load_runs([made / "results"]).runs
    evidence = compare_methods(runs, ("images",))
    answers = answers_of(runs, evidence)
    assert len(answers) == 3
    for answer, found in zip(answers, (each for each in evidence if each.run.shifted), strict=True):
        assert markdown_text(answer.sentence) in text
        assert bool(answer.method) == any(found.helps(method) for method in found.run.compared)
        assert all(one.time is not None and one.time > 0.5 for one in answer.gains)
        if answer.method:
            assert found.gains[answer.method][0].joint.low > 0


def test_numbers_of_the_answers_are_those_stored(made: Path) -> None:
    [place] = (made / "results").glob("scenes-c-semantic-*")
    lines = [line.split(",") for line in (place / "results.csv").read_text().splitlines()]
    means = {line[1]: line for line in lines if line[0] == "mean"}
    text = (made / "report" / "report.md").read_text()
    for method in ("replay", "filters", "both"):
        assert re.search(rf"\| {method}( ←)? \| {re.escape(f'{float(means[method][5]):+.2f}')} \|", text)


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
        assert methods["replay"].replay == replay
        free, both = (methods[name].stack for name in ("filters", "both"))
        assert replay_of(both) == replay
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
    table = (made / "report" / "report.md").read_bytes()
    assert main([*SMALL, "--out", str(made)]) == 0
    assert {path: path.stat().st_mtime_ns for path in (made / "results").rglob("*.parquet")} == stored
    assert (made / "report" / "report.md").read_bytes() == table
    printed = capsys.readouterr().out
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
