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
from gramloop.core.settings import read_replay
from gramloop.data.scenes.drawing import scene
from gramloop.evaluate.plan import read_plan
from gramloop.models.tiny import WEIGHTS

SMALL = ["demo", "--quick", "--scenes", "3", "--workers", "1"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo") / "made"
    assert main([*SMALL, "--out", str(out)]) == 0
    return out


def test_it_ends_in_a_table_a_picture_and_a_page(made: Path) -> None:
    table = (made / "demo.md").read_text()
    assert re.search(r"Segmentation under shift: (helps|hurts|inconclusive)\. mIoU over 2 shifted", table)
    replay = read_replay(WEIGHTS / "replay.json")
    blocks = cost(12, replay.window, replay.replays, strength=replay.strength).blocks
    assert "3 unseen scenes; block 6 once, gram gate, strength 0.15; 12 blocks" in table
    assert f"12 blocks become {blocks}, both predictions included" in table
    rows = [line for line in table.splitlines() if re.match(r"\| \w", line)]
    assert [row.split("|")[1].strip() for row in rows] == [
        "condition", "clean", "gaussian noise 3", "impulse noise 3", "mean of shifts",
    ]  # fmt: skip
    with Image.open(made / "demo.png") as picture:
        assert picture.width > 1000
    page = (made / "report" / "index.html").read_text()
    assert "Gram-gated replay on the embedded model" in page
    assert page.count("<h2") >= 6


def test_table_and_page_say_the_same(made: Path) -> None:
    markdown = (made / "report" / "report.md").read_text()
    verdicts = dict(re.findall(r"\*\*scenes-c (\w+), gramloop: ([a-z ]+)\.\*\*", markdown))
    table = (made / "demo.md").read_text()
    for task in ("segmentation", "detection", "depth"):
        [(words, sentence)] = re.findall(rf"{task.capitalize()} under shift: (\w+)\. (.*)", table)
        assert words == verdicts[task]
        assert f"**scenes-c {task}, gramloop: {words}.** {sentence}" in markdown


def test_numbers_of_the_table_are_those_stored(made: Path) -> None:
    [place] = (made / "results").glob("scenes-c-semantic-*")
    lines = (place / "results.csv").read_text().splitlines()
    mean = next(line.split(",") for line in lines if line.startswith("mean,gramloop,"))
    row = next(line for line in (made / "demo.md").read_text().splitlines() if "mean of shifts" in line)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[2] == f"{float(mean[4]):.2f}"
    assert cells[3].startswith(f"{float(mean[5]):+.2f} [")


def test_the_scenes_are_of_a_split_of_their_own(made: Path) -> None:
    settings = json.loads((made / "scenes-3" / "scenes.json").read_text())
    assert (settings["split"], settings["count"]) == ("demo", 3)
    with Image.open(made / "scenes-3" / "images" / "validation" / "00000002.png") as stored:
        assert np.array_equal(np.asarray(stored), scene(2, 192, "demo").image)
        assert not np.array_equal(np.asarray(stored), scene(2, 192, "val").image)


def test_the_replay_is_the_one_stored_beside_the_weights(made: Path) -> None:
    for place in (made / "results").iterdir():
        methods = {method.name: method.replay for method in read_plan(place / "plan.json").methods}
        assert methods["gramloop"] == read_replay(WEIGHTS / "replay.json")


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
