from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from gramloop.errors import GramLoopError
from gramloop.tasks.images import SATELLITE, WEB, read_image, resize_short_side, to_tensor


@pytest.fixture
def picture():
    """A smooth picture, so that lossy formats keep it, and no two corners alike."""
    y, x = np.mgrid[0:40, 0:60]
    return np.stack([x * 4, y * 6, 255 - x * 4], axis=-1).astype(np.uint8)


def close(one, two, tolerance):
    return np.abs(one.astype(int) - two.astype(int)).max() <= tolerance


def test_a_path_a_pil_image_and_an_array_are_the_same(picture, tmp_path):
    Image.fromarray(picture).save(tmp_path / "a.png")
    for source in (tmp_path / "a.png", str(tmp_path / "a.png"), Image.fromarray(picture), picture):
        assert np.array_equal(read_image(source), picture)


@given(arrays.arrays(np.uint8, st.tuples(st.integers(2, 9), st.integers(2, 9), st.just(3))))
@settings(max_examples=30, deadline=None)
def test_bytes_come_back_as_they_are(array):
    assert np.array_equal(read_image(array), array)


def test_grey(picture, tmp_path):
    grey = picture[:, :, 0]
    Image.fromarray(grey).save(tmp_path / "a.png")
    for source in (tmp_path / "a.png", grey, grey[:, :, None]):
        assert np.array_equal(read_image(source), np.repeat(grey[:, :, None], 3, axis=2))


def test_sixteen_bits(picture, tmp_path):
    grey = picture[:, :, 0]
    deep = grey.astype(np.uint16) * 257
    Image.fromarray(deep).save(tmp_path / "a.png")
    Image.fromarray(deep).save(tmp_path / "a.tif")
    wide = Image.fromarray(deep.astype(np.int32))
    for source in (tmp_path / "a.png", tmp_path / "a.tif", deep, wide):
        assert np.array_equal(read_image(source)[:, :, 1], grey)


def test_floating_point_and_truth(picture):
    assert np.array_equal(read_image(picture / 255), picture)
    assert np.array_equal(read_image((picture / 255).astype(np.float32)), picture)
    assert set(np.unique(read_image(picture[:, :, 0] > 100))) == {0, 255}


def test_alpha_is_laid_on_white(picture, tmp_path):
    alpha = np.zeros(picture.shape[:2], np.uint8)
    alpha[:, 30:] = 255
    layered = np.dstack([picture, alpha])
    Image.fromarray(layered).save(tmp_path / "a.png")
    for source in (tmp_path / "a.png", layered):
        found = read_image(source)
        assert (found[:, :30] == 255).all()
        assert np.array_equal(found[:, 30:], picture[:, 30:])


def test_a_palette_with_and_without_transparency(picture, tmp_path):
    image = Image.fromarray(picture).quantize(16)
    image.save(tmp_path / "a.png")
    assert np.array_equal(read_image(tmp_path / "a.png"), np.asarray(image.convert("RGB")))
    index = np.asarray(image)[0, 0]
    image.save(tmp_path / "b.png", transparency=int(index))
    found = read_image(tmp_path / "b.png")
    assert (found[np.asarray(image) == index] == 255).all()
    kept = np.asarray(image) != index
    assert np.array_equal(found[kept], np.asarray(image.convert("RGB"))[kept])


def test_cmyk(picture, tmp_path):
    Image.fromarray(picture).convert("CMYK").save(tmp_path / "a.jpg", quality=98)
    assert close(read_image(tmp_path / "a.jpg"), picture, 12)  # JPEG is lossy


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_is_applied(picture, tmp_path, orientation):
    # the picture as a camera held in that way would have stored it
    stored = {
        1: picture,
        2: picture[:, ::-1],
        3: picture[::-1, ::-1],
        4: picture[::-1],
        5: picture.transpose(1, 0, 2),
        6: np.rot90(picture, 1),
        7: picture[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(picture, -1),
    }
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(np.ascontiguousarray(stored[orientation])).save(tmp_path / "a.png", exif=exif)
    assert np.array_equal(read_image(tmp_path / "a.png"), picture)


@pytest.mark.parametrize("content", [b"", b"no image", b"\x89PNG\r\n\x1a\n" + bytes(40)])
def test_an_unreadable_file(tmp_path, content):
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(GramLoopError, match=r"a\.png (is not an image|cannot be read)"):
        read_image(tmp_path / "a.png")


def test_a_truncated_file(picture, tmp_path):
    Image.fromarray(np.tile(picture, (8, 8, 1))).save(tmp_path / "a.jpg")
    content = (tmp_path / "a.jpg").read_bytes()
    (tmp_path / "a.jpg").write_bytes(content[: len(content) // 2])
    with pytest.raises(GramLoopError, match=r"a\.jpg cannot be read as an image"):
        read_image(tmp_path / "a.jpg")


def test_no_file_and_a_folder(tmp_path):
    for path in (tmp_path / "nothing.png", tmp_path):
        with pytest.raises(GramLoopError, match="is not a file"):
            read_image(path)


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (9, 1)])
def test_one_pixel_is_too_little(tmp_path, size):
    pixels = np.zeros((*size, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    for source in (pixels, Image.fromarray(pixels), tmp_path / "a.png"):
        with pytest.raises(GramLoopError, match="at least two in each direction"):
            read_image(source)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (np.zeros((0, 5, 3), np.uint8), "no pixels"),
        (Image.new("RGB", (0, 5)), "no pixels"),
        (np.zeros((5, 5, 2), np.uint8), r"not \(5, 5, 2\)"),
        (np.zeros(5, np.uint8), r"not \(5,\)"),
        (np.full((5, 5), 300.0), "ranges from 0 to 1, not from 300 to 300"),
        (np.full((5, 5), np.nan), "ranges from 0 to 1"),
        (np.full((5, 5), -1), "ranges from 0 to 255, not from -1"),
        (
            np.array([[200, 256], [0, 9]], np.int32),
            "from 0 to 255, not from 0 to 256; 16-bit images are uint16",
        ),
        (np.full((5, 5), "x"), "holds numbers"),
        (None, "not NoneType"),
    ],
)
def test_what_is_no_image(source, words):
    with pytest.raises(GramLoopError, match=words):
        read_image(source)


@given(st.integers(2, 60), st.integers(2, 60), st.sampled_from([16, 48]))
@settings(max_examples=40, deadline=None)
def test_the_short_side_is_met_and_the_shape_kept(height, width, short):
    pixels = np.zeros((height, width, 3), np.uint8)
    found = resize_short_side(pixels, short).shape[:2]
    assert min(found) == short
    assert max(found) == int(short * max(height, width) / min(height, width) + 0.5)
    rounded = resize_short_side(pixels, short, multiple=16).shape[:2]
    assert min(rounded) == short
    assert max(rounded) % 16 == 0
    assert abs(max(rounded) - max(found)) <= 8.5


def test_resizing_is_that_of_pil(picture):
    expected = np.asarray(Image.fromarray(picture).resize((132, 88), Image.Resampling.BILINEAR))
    assert np.array_equal(resize_short_side(picture, 88), expected)


def test_a_strip_is_refused_before_it_fills_the_memory():
    with pytest.raises(GramLoopError, match="too narrow: a short side of 896 makes the other 448000"):
        resize_short_side(np.zeros((2, 1000, 3), np.uint8), 896)


@pytest.mark.parametrize("normalisation", [WEB, SATELLITE])
def test_normalisation(picture, normalisation):
    tensor = to_tensor(picture, normalisation)
    expected = (picture / 255 - np.array(normalisation.mean)) / np.array(normalisation.std)
    assert tensor.shape == (1, 3, 40, 60)
    assert np.abs(tensor[0].permute(1, 2, 0).numpy() - expected).max() < 1e-5
