import cv2
import numpy as np
import pytest

from gramloop.errors import GramLoopError
from gramloop.shifts import frost
from gramloop.shifts.corruptions import corrupt
from gramloop.shifts.seeds import generator

TEXTURES = range(6)


@pytest.mark.parametrize("index", TEXTURES)
def test_a_texture_has_the_range_of_photographed_frost(index):
    """Photographs of frost in published use have means from 95 to 206 and fine structure of 10 to 29 levels."""
    grey = cv2.cvtColor(frost.synthesise(index), cv2.COLOR_RGB2GRAY).astype(float)
    fine = (grey - cv2.GaussianBlur(grey, (0, 0), 8)).std()
    assert 95 < grey.mean() < 210
    assert 10 < fine < 30


@pytest.mark.parametrize("index", TEXTURES)
def test_ice_is_blue_rather_than_red(index):
    red, _, blue = frost.synthesise(index).reshape(-1, 3).mean(axis=0)
    assert blue > red


def test_a_texture_is_painted_alike_again():
    assert np.array_equal(frost.synthesise.__wrapped__(3), frost.synthesise(3))


def test_a_piece_is_the_one_of_the_enlarged_whole(tmp_path, photo):
    texture = photo(0, 60, 90)
    cv2.imwrite(str(tmp_path / "ice.png"), texture[..., ::-1])
    piece = frost.frost_layer((130, 150), np.random.default_rng(5), tmp_path)
    rng = np.random.default_rng(5)
    rng.integers(1)
    rows, columns = int(np.ceil(60 * 130 / 60 * 1.1)), int(np.ceil(90 * 130 / 60 * 1.1))
    top, left = rng.integers(rows - 130), rng.integers(columns - 150)
    whole = cv2.resize(texture, (columns, rows), interpolation=cv2.INTER_CUBIC)
    difference = np.abs(piece.astype(int) - whole[top : top + 130, left : left + 150])
    assert (difference <= 2).mean() > 0.99  # OpenCV warps on a grid of 1/32 pixel


def test_the_users_textures_are_used_in_the_order_of_their_names(tmp_path):
    for name, level in (("b.png", 200), ("a.jpg", 100), ("c.PNG", 50)):
        cv2.imwrite(str(tmp_path / name), np.full((50, 50, 3), level, np.uint8))
    (tmp_path / "readme.txt").write_text("no texture")
    assert [file.name for file in frost.texture_files(tmp_path)] == ["a.jpg", "b.png", "c.PNG"]
    black = np.zeros((40, 40, 3), np.uint8)
    levels = {
        int(corrupt(black, "frost", 2, generator("t", "frost", 2, i), frost_textures=tmp_path)[0, 0, 0])
        for i in range(40)
    }
    assert levels == {60, 120, 30}


def test_a_folder_that_cannot_serve_is_named(tmp_path):
    image, rng = np.zeros((40, 40), np.uint8), np.random.default_rng(0)
    with pytest.raises(GramLoopError, match="nowhere: no such folder"):
        corrupt(image, "frost", 1, rng, frost_textures=tmp_path / "nowhere")
    with pytest.raises(GramLoopError, match="holds no frost texture"):
        corrupt(image, "frost", 1, rng, frost_textures=tmp_path)
    (tmp_path / "ice.png").write_bytes(b"not an image")
    with pytest.raises(GramLoopError, match=r"ice\.png: is no image"):
        corrupt(image, "frost", 1, rng, frost_textures=tmp_path)
