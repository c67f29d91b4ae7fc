"""Uploads: bad files are refused by name, and nothing is decoded beyond the limits."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gramloop.app.trial import Limits, Picture, read_upload
from gramloop.errors import GramLoopError

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (30, 40, 3), dtype=np.uint8)


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="png")
    return buffer.getvalue()


def claiming(width: int, height: int) -> bytes:
    """A PNG of a few bytes whose header claims any size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def test_pixels_come_through_and_name_themselves(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(png(PIXELS))
    first, second = (read_upload(tmp_path / name, Limits()) for name in ("a.png", "b.png"))
    assert np.array_equal(first.pixels, PIXELS)
    assert first.digest == second.digest
    assert first.note == ""
    changed = PIXELS.copy()
    changed[0, 0, 0] ^= 1
    assert Picture.of(changed).digest != first.digest
    assert Picture.of(PIXELS.reshape(40, 30, 3)).digest != first.digest  # the same bytes in another shape


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"hello", "odd.png cannot be read as an image"),
        (b"", "odd.png cannot be read as an image"),
        (png(PIXELS)[:200], "odd.png cannot be read as an image"),
        (claiming(100_000, 100_000), "odd.png is refused"),
        (claiming(8_000, 7_000), "odd.png is refused: it has 8000 x 7000 pixels"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "odd.png cannot be read as an image"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "odd.png cannot be read as an image"),
        (png(PIXELS[:1, :1]), "odd.png is refused"),
    ],
    ids=["text", "empty", "truncated", "bomb", "large", "eps", "svg", "dot"],
)
def test_a_bad_file_is_refused_by_name(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "odd.png").write_bytes(content)
    with pytest.raises(GramLoopError) as caught:
        read_upload(tmp_path / "odd.png", Limits())
    assert message in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


def test_the_limits_are_those_given(tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    path.write_bytes(png(PIXELS))
    read_upload(path, Limits(upload_pixels=1200))
    with pytest.raises(GramLoopError, match="40 x 30 pixels"):
        read_upload(path, Limits(upload_pixels=1199))
    with pytest.raises(GramLoopError, match=r"gone\.png cannot be read"):
        read_upload(tmp_path / "gone.png", Limits())


def test_a_large_image_is_shrunk_with_a_note(tmp_path: Path) -> None:
    flat = np.full((300, 600, 3), (10, 200, 90), np.uint8)
    (tmp_path / "wide.png").write_bytes(png(flat))
    found = read_upload(tmp_path / "wide.png", Limits(longest_side=200))
    assert found.pixels.shape == (100, 200, 3)
    assert (found.pixels == (10, 200, 90)).all()  # a mean of equal pixels is that pixel
    assert found.note == "Shrunk from 600 x 300 to 200 x 100 pixels."


def test_a_turned_photograph_is_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[274] = 6  # turn by 90 degrees to the right
    Image.fromarray(PIXELS).save(tmp_path / "turned.png", exif=exif)
    assert np.array_equal(read_upload(tmp_path / "turned.png", Limits()).pixels, np.rot90(PIXELS, -1))
