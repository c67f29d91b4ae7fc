"""The contact sheet: every condition is on it, and misuse is one sentence."""

import numpy as np
import pytest
from PIL import Image

from gramloop.cli import main
from gramloop.data.contact_sheet import SheetStyle, contact_sheet
from gramloop.data.suites import find_suite


def test_every_cell_of_the_sheet_is_filled_and_no_two_rows_are_alike():
    rng = np.random.default_rng(1)
    image = np.kron(rng.integers(30, 220, (6, 8, 3)), np.ones((12, 12, 1))).astype(np.uint8)  # (72, 96, 3)
    style = SheetStyle(thumb=48)
    sheet = np.asarray(contact_sheet(image, [find_suite("mine-c"), find_suite("mine-p")], style))
    pitch_y, pitch_x = 36 + style.gap, 48 + style.gap
    top = style.margin + style.header + pitch_y + style.strip
    panel = style.label + 5 * pitch_x - style.gap
    seen = set()
    for left, rows in ((style.margin, 19), (2 * style.margin + panel, 17)):
        for row in range(rows):
            for column in range(5):
                y, x = top + row * pitch_y, left + style.label + column * pitch_x
                cell = sheet[y : y + 36, x : x + 48]
                assert cell.min() < 250  # not left white
                seen.add(cell.tobytes())
    # JPEG and pixelate of the same strength are deterministic and equal in both suites
    assert len(seen) >= 36 * 5 - 25


def test_the_command_writes_a_picture(tmp_path, capsys):
    Image.new("RGB", (64, 48), (200, 120, 40)).save(tmp_path / "mine.png")
    file = tmp_path / "new" / "sheet.png"
    call = ["sheet", str(file), "--image", str(tmp_path / "mine.png"), "--thumb", "32", "--suite", "mine-p"]
    assert main(call) == 0
    with Image.open(file) as picture:
        assert f"{picture.width} x {picture.height}" in capsys.readouterr().out
    assert [path.name for path in file.parent.iterdir()] == ["sheet.png"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["sheet.gif"], "needs a name that ends with .png"),
        (["sheet.png", "--thumb", "3"], "16 to 1024 px wide, not 3"),
        (["sheet.png", "--suite", "coco"], "not made from clean images"),
        (["sheet.png", "--image", "nowhere.png"], "cannot decode the image nowhere.png"),
        (["sheet.png", "--scene", "-1"], "index"),
    ],
)
def test_misuse_is_one_sentence(tmp_path, monkeypatch, capsys, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    assert main(["sheet", *arguments]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert not (tmp_path / "sheet.png").exists()
