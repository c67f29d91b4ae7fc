"""Reading, resizing and normalising images: a path, a PIL image or an array of any common kind becomes RGB.

Rotation by EXIF is applied, 16 bits are scaled to 8, and transparency is laid on white.
"""

from __future__ import annotations

import glob
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from gramloop.data.records import on_white
from gramloop.errors import GramLoopError
from gramloop.util.files import files_below

RGB = NDArray[np.uint8]  # (H, W, 3)
ImageLike = str | Path | Image.Image | NDArray[np.generic]

MOST_PIXELS = 1 << 27  # pixels after resizing; a strip a few pixels wide would grow beyond any memory


@dataclass(frozen=True)
class Normalisation:
    """Mean and standard deviation per channel, on a scale of 0 to 1."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def __post_init__(self) -> None:
        if not (all(map(math.isfinite, self.mean)) and all(0 < value < math.inf for value in self.std)):
            raise GramLoopError(
                f"images are normalised by finite means and deviations above 0, not by {self}"
            )


WEB = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # models trained on LVD-1689M
SATELLITE = Normalisation((0.430, 0.411, 0.296), (0.213, 0.156, 0.143))  # models trained on SAT-493M


def normalisation_of(weights: str | Path) -> Normalisation:
    """The normalisation that a backbone was trained with; files of satellite models have ``sat493m`` in their name."""
    return SATELLITE if "sat493m" in str(Path(weights).absolute()) else WEB


def read_image(source: ImageLike) -> RGB:
    """The image as RGB bytes (H, W, 3)."""
    name = str(source) if isinstance(source, str | Path) else "the image"
    if isinstance(source, np.ndarray):
        pixels = _from_array(source)
    elif isinstance(source, Image.Image):
        pixels = _from_pil(source, name)
    elif isinstance(source, str | Path):
        pixels = _from_file(Path(source))
    else:
        raise GramLoopError(f"an image is a path, a PIL image or an array, not {type(source).__name__}")
    if min(pixels.shape[:2]) < 2:
        wide, high = pixels.shape[1], pixels.shape[0]
        raise GramLoopError(f"{name} has {wide} x {high} pixels; at least two in each direction are needed")
    return pixels


def resize_short_side(
    pixels: RGB, short: int, *, multiple: int = 1, rounded: Callable[[float], int] | None = None
) -> RGB:
    """PIL's bilinear resize to a short side of ``short``, keeping the shape of the image.

    The long side is rounded to the nearest integer, or to the nearest multiple of ``multiple``, or as ``rounded`` does.
    """
    height, width = pixels.shape[:2]
    size = short_side_size(height, width, short, multiple, rounded)
    if size[0] * size[1] > MOST_PIXELS:
        raise GramLoopError(
            f"an image of {width} x {height} is too narrow: a short side of {short} makes the other {max(size)}"
        )
    return resize(pixels, size)


def short_side_size(
    height: int, width: int, short: int, multiple: int = 1, rounded: Callable[[float], int] | None = None
) -> tuple[int, int]:
    """The height and width that `resize_short_side` gives an image."""
    wanted = short * (max(height, width) / min(height, width))
    nearest = max(short, int(wanted / multiple + 0.5) * multiple)
    long = nearest if rounded is None else rounded(wanted)
    return (short, long) if height <= width else (long, short)


def resize(pixels: RGB, size: tuple[int, int]) -> RGB:
    """PIL's bilinear resize to ``size`` (height, width)."""
    if pixels.shape[:2] == size:
        return pixels
    image = Image.fromarray(pixels).resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return np.asarray(image)


def to_tensor(pixels: RGB, normalisation: Normalisation = WEB) -> torch.Tensor:
    """Normalised float32 (1, 3, H, W)."""
    mean = 255 * torch.tensor(normalisation.mean)[:, None, None]
    std = 255 * torch.tensor(normalisation.std)[:, None, None]
    channels = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))).float()
    return ((channels - mean) / std)[None]


def _from_file(path: Path) -> RGB:
    if not path.is_file():
        raise GramLoopError(f"{path} is not a file; an image is expected")
    try:
        with Image.open(path) as image:
            image.load()
            return _from_pil(image, str(path))
    except GramLoopError:
        raise
    except UnidentifiedImageError as error:
        raise GramLoopError(f"{path} is not an image of a known format") from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise GramLoopError(f"{path} cannot be read as an image ({error})") from error


def _from_pil(image: Image.Image, name: str) -> RGB:
    if not image.width or not image.height:
        raise GramLoopError(f"{name} has no pixels")
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I") or image.mode == "F":
        pixels = np.asarray(image)
        # Pillow opens some 16-bit files with 32 bits; an array of such integers would be ambiguous
        wide = image.mode == "I" and 255 < pixels.max() <= 65535 and pixels.min() >= 0
        return _from_array(pixels.astype(np.uint16) if wide else pixels)
    return np.asarray(on_white(image))


def _from_array(array: NDArray[Any]) -> RGB:
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4):
        raise GramLoopError(
            f"an image array is (H, W), (H, W, 1), (H, W, 3) or (H, W, 4), not {tuple(array.shape)}"
        )
    if not array.size:
        raise GramLoopError("the image has no pixels")
    scaled = _to_bytes(array)
    if scaled.shape[2] == 4:
        return _from_pil(Image.fromarray(scaled, "RGBA"), "the image")
    return np.ascontiguousarray(np.broadcast_to(scaled, (*scaled.shape[:2], 3)))


def _to_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Bytes from bytes, truth values, uint16, other integers up to 255, or floating point between 0 and 1."""
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    if not np.issubdtype(array.dtype, np.number) or np.issubdtype(array.dtype, np.complexfloating):
        raise GramLoopError(f"an image array holds numbers, not {array.dtype}")
    top = 65535.0 if array.dtype == np.uint16 else 1.0 if array.dtype.kind == "f" else 255.0
    values = array.astype(np.float64)
    if not np.isfinite(values).all() or values.min() < 0 or values.max() > top:
        raise GramLoopError(
            f"an image array of {array.dtype} ranges from 0 to {top:g}, "
            f"not from {values.min():g} to {values.max():g}"
            + ("; 16-bit images are uint16" if top == 255 and values.max() > 255 else "")
        )
    return np.rint(values * (255 / top)).astype(np.uint8)


_LABELS = ("annotations", "labels", "masks", "depth")  # folders next to images
SUFFIXES = frozenset(
    [".bmp", ".gif", ".jp2", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"]
)
VERSIONS = ("baseline", "mitigated", "picture", "diagnosis")  # in the names of results


@dataclass(frozen=True)
class ImageFile:
    """One image and where its results belong: ``target`` has the image's name without an ending."""

    path: Path
    target: Path

    def result(self, version: str, ending: str) -> Path:
        """The file of one version, such as ``cat.mitigated.png``."""
        return self.target.with_name(f"{self.target.name}.{version}{ending}")


def find_images(sources: Iterable[str], out: Path) -> list[ImageFile]:
    """The images that files, folders and globs name, each once, in order.

    A folder means all images below it, and its inner folders appear again below ``out``. Results of an
    earlier run are skipped. A source that does not exist is listed, too, so that it alone fails.
    """
    files: dict[Path, ImageFile] = {}
    for source in sources:
        for image, relative in _expand(source):
            files.setdefault(image.absolute(), ImageFile(image, out / relative.with_suffix("")))
    owners: dict[str, ImageFile] = {}
    for file in files.values():
        other = owners.setdefault(str(file.target).lower(), file)  # some file systems ignore case
        if other is not file:
            raise GramLoopError(
                f"{other.path} and {file.path} would both be written as {file.target}.*; "
                "give them different output folders"
            )
    return list(files.values())


def _expand(source: str) -> list[tuple[Path, Path]]:
    """Images with their place below the output folder."""
    path = Path(source)
    if path.is_dir():
        found = [(each, each.relative_to(path)) for each in files_below(path) if _is_image(each)]
        wrong = f"the folder {path} holds no images"
    elif not path.exists() and glob.has_magic(source):
        matches = sorted(Path(each) for each in glob.glob(source, recursive=True))
        found = [(each, Path(each.name)) for each in matches if _is_image(each)]
        wrong = f"no image matches {source}"
    else:
        return [(path, Path(path.name))]
    if not found:
        raise GramLoopError(wrong)
    return found


def _is_image(path: Path) -> bool:
    earlier_result = any(path.name.endswith(f".{version}.png") for version in VERSIONS)
    hidden = path.name.startswith(".")
    return path.suffix.lower() in SUFFIXES and not hidden and not earlier_result and path.is_file()


def has_photographs_alone(folder: Path) -> bool:
    """Whether a folder holds images and nothing that could be labels or a list of them."""
    endings = {path.suffix.lower() for path in folder.glob("*") if path.is_file()}
    labelled = endings & {".txt", ".json", ".csv"} or any((folder / name).is_dir() for name in _LABELS)
    return bool(endings & SUFFIXES) and not labelled
