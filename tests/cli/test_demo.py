from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

from gramloop.cli import main


def test_the_demonstration_ends_in_a_table_and_a_picture(tmp_path: Path, capsys) -> None:
    assert main(["demo", "--quick", "--scenes", "3", "--workers", "1", "--out", str(tmp_path / "made")]) == 0
    printed = capsys.readouterr().out
    assert "gramloop.attach(model)" in printed
    assert re.search(r"Segmentation under shift: .*replay", printed)
    table = (tmp_path / "made" / "demo.md").read_text()
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    assert [row.split("|")[1].strip() for row in rows] == [
        "condition", "clean", "gaussian noise 3", "impulse noise 3", "mean of shifts",
    ]  # fmt: skip
    with Image.open(tmp_path / "made" / "demo.png") as picture:
        assert picture.width > 1000


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
