"""The contact sheet has a thumbnail for every severity of every condition."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
from PIL import Image

MAIN = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "contact_sheet.py"))["main"]


def test_every_condition_is_drawn(tmp_path: Path) -> None:
    pixels = np.kron(np.random.default_rng(1).integers(30, 220, (6, 8, 3)), np.ones((12, 12, 1)))
    Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "mine.png")
    MAIN([str(tmp_path / "sheet.png"), "--image", str(tmp_path / "mine.png"), "--thumb", "48"])
    sheet = np.asarray(Image.open(tmp_path / "sheet.png"))
    assert sheet.shape[1] == 2 * (168 + 5 * 52)
    cells = {
        sheet[24 + row * 40 :][:36, left + 168 + column * 52 :][:, :48].tobytes()
        for left, rows in ((0, 19), (168 + 5 * 52, 17))
        for row in range(rows)
        for column in range(5)
    }
    assert len(cells) >= 36 * 5 - 35, "only shifts that both suites share are equal"


def test_a_group_alone(tmp_path: Path) -> None:
    MAIN([str(tmp_path / "sheet.png"), "--condition", "geometry", "--severity", "5", "--thumb", "32"])
    assert Image.open(tmp_path / "sheet.png").size == (168 + 36, 24 + 3 * 36)
