"""Uploaded images: checked before they are decoded, and shrunk to a size that is quick to predict."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from gramloop.app.settings import Limits
from gramloop.errors import GramLoopError
from gramloop.tasks.images import RGB, read_image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")  # none that starts a program, as EPS does
_LONGEST_NAME = 60


@dataclass(frozen=True)
class Picture:
    """Pixels (H, W, 3) and the digest of their content."""

    pixels: RGB
    digest: str
    note: str = ""  # what was changed when it was read

    @classmethod
    def of(cls, pixels: RGB, note: str = "") -> Picture:
        """The picture of an array (H, W, 3)."""
        digest = hashlib.sha256(f"{pixels.shape}".encode() + np.ascontiguousarray(pixels).tobytes())
        return cls(pixels, digest.hexdigest(), note)


def read_upload(path: str | Path, limits: Limits) -> Picture:
    """Read an uploaded image.

    Args:
        path: The uploaded file; error messages give its name without its folder.
        limits: What is accepted.
    """
    path = Path(path)
    name = path.name if len(path.name) <= _LONGEST_NAME else f"{path.name[:_LONGEST_NAME]}…"
    million = f"{limits.upload_pixels / 1e6:.1f} million"
    try:
        size = path.stat().st_size
        if size > limits.upload_bytes:
            limit = f"{limits.upload_bytes / 1e6:.1f} MB"
            raise GramLoopError(f"{name} has {size / 1e6:.1f} MB; the limit is {limit}")
        with Image.open(path, formats=FORMATS) as image:
            width, height = image.size
            if width * height > limits.upload_pixels:  # known before a pixel is decoded
                count = f"{width} x {height} pixels, {width * height / 1e6:.1f} million"
                raise GramLoopError(f"{name} has {count}; the limit is {million}")
            image.load()
            return _shrunk(read_image(image), limits.longest_side)
    except GramLoopError as error:
        raise GramLoopError(str(error).replace("the image has", f"{name} has")) from error
    except FileNotFoundError as error:
        raise GramLoopError(f"{name} is no longer here; upload it again") from error
    except UnidentifiedImageError as error:
        raise GramLoopError(f"{name} is not an image of a known format: {', '.join(FORMATS)}") from error
    except Image.DecompressionBombError as error:  # PIL raises it before the size can be checked here
        raise GramLoopError(f"{name} has far more pixels than the limit, {million}") from error
    except (OSError, SyntaxError, ValueError) as error:
        raise GramLoopError(f"{name} cannot be read as an image; it is truncated or damaged") from error


def _shrunk(pixels: RGB, longest: int) -> Picture:
    height, width = pixels.shape[:2]
    if max(height, width) <= longest:
        return Picture.of(pixels)
    scale = longest / max(height, width)
    size = max(2, round(width * scale)), max(2, round(height * scale))
    small = np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BOX, reducing_gap=3.0))
    return Picture.of(small, f"Shrunk from {width} x {height} to {size[0]} x {size[1]} pixels.")
