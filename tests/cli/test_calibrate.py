"""``gramloop calibrate`` as it is typed."""

from pathlib import Path

import pytest
from PIL import Image

from gramloop.cli import main
from gramloop.data.scenes.drawing import scene
from gramloop.mitigations import CalibrationStats


def test_a_folder_of_images_becomes_statistics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for index in range(8):
        Image.fromarray(scene(index, 64, "calibrate").image).save(tmp_path / f"{index}.png")
    out = tmp_path / "stats.safetensors"
    assert main(["calibrate", str(tmp_path), "--out", str(out), "--short-side", "64"]) == 0
    assert capsys.readouterr().out.startswith("8 images, features after blocks 2, 5, 8, 11, noise below ")
    assert CalibrationStats.read(out).images == 8
    assert main(["calibrate", str(tmp_path / "0.png"), "--out", str(out)]) == 2
    assert "at least 8 in-distribution images" in capsys.readouterr().err
