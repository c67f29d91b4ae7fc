"""Images that visitors bring: looked at before they are decoded, and made small enough to answer at once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from gramloop.app.settings import Limits
from gramloop.errors import GramLoopError
from gramloop.tasks.images import RGB, read_image

# what cameras and programs write; others, such as EPS, would start programs to be read
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
_NAMED = "PNG, JPEG, WebP, GIF, BMP, TIFF and PPM"
_LONGEST_NAME = 60


@dataclass(frozen=True)
class Picture:
    """Pixels with a name that only the same pixels have."""

    pixels: RGB
    digest: str
    note: str = ""  # what was done to it on the way in

    @classmethod
    def of(cls, pixels: RGB, note: str = "") -> Picture:
        """The picture of an array (H, W, 3)."""
        digest = hashlib.sha256(f"{pixels.shape}".encode() + np.ascontiguousarray(pixels).tobytes())
        return cls(pixels, digest.hexdigest(), note)


def read_upload(path: str | Path, limits: Limits) -> Picture:
    """The image of an uploaded file, or a sentence that names it as its owner does."""
    path = Path(path)
    name = path.name if len(path.name) <= _LONGEST_NAME else f"{path.name[:_LONGEST_NAME]}…"
    try:
        size = path.stat().st_size
    except OSError as error:
        raise GramLoopError(f"{name} is no longer here; drop it again") from error
    if size > limits.upload_bytes:
        raise GramLoopError(
            f"{name} has {size / 1e6:.1f} MB; images of up to {limits.upload_bytes / 1e6:.1f} MB are taken"
        )
    try:
        with Image.open(path, formats=FORMATS) as image:
            width, height = image.size
            if width * height > limits.upload_pixels:  # known before a pixel is decoded
                raise GramLoopError(
                    f"{name} has {width} x {height} pixels, {width * height / 1e6:.1f} million; images of up to "
                    f"{limits.upload_pixels / 1e6:.1f} million are taken"
                )
            image.load()
            pixels = read_image(image)
    except GramLoopError as error:
        raise GramLoopError(str(error).replace("the image has", f"{name} has")) from error
    except UnidentifiedImageError as error:
        raise GramLoopError(f"{name} is not an image of a known format; {_NAMED} are") from error
    except Image.DecompressionBombError as error:  # told by PIL before we can ask for the size
        most = f"{limits.upload_pixels / 1e6:.1f} million"
        raise GramLoopError(
            f"{name} has far more pixels than {most}, which is the most that is taken"
        ) from error
    except (OSError, SyntaxError, ValueError) as error:
        raise GramLoopError(f"{name} cannot be read as an image; it is torn or damaged") from error
    return _shrunk(pixels, limits.longest_side)


def _shrunk(pixels: RGB, longest: int) -> Picture:
    height, width = pixels.shape[:2]
    if max(height, width) <= longest:
        return Picture.of(pixels)
    scale = longest / max(height, width)
    size = max(2, round(width * scale)), max(2, round(height * scale))
    small = np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BOX, reducing_gap=3.0))
    return Picture.of(small, f"Made smaller: {width} x {height} pixels became {size[0]} x {size[1]}.")
