"""Checks of a data set: at its opening, where all problems are reported at once, and of its content while it is used.

Names and sizes do not distinguish an image from its mirror. So files are read once, when a run is planned; each record
then carries the checksums of its files, and is compared with them when it is read.
"""

from __future__ import annotations

import hashlib
import os
import platform
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from gramloop.data.records import DataSet, Record
from gramloop.data.truth import UNREADABLE
from gramloop.errors import GramLoopError, GramLoopWarning
from gramloop.util.checksums import file_digest, file_digests, read_digest, sha256
from gramloop.util.progress import tracked

MOST_LISTED = 10  # problems in one message
EIGHT_BIT = ("1", "L", "P", "RGB", "RGBA", "LA", "CMYK", "YCbCr")
NUMBERS = ("L", "I", "I;16", "I;16B", "I;16L")  # of one channel
_EXIF_ORIENTATION = 0x0112


@dataclass
class Problems:
    """Collects what is wrong with a data set, then raises it as one error."""

    where: Path
    found: list[str] = field(default_factory=list)

    def add(self, problem: str) -> None:
        """Collect one problem; an empty text is none."""
        if problem:
            self.found.append(problem)

    def raise_if_any(self) -> None:
        """Raise one error that counts all problems and lists the first of them."""
        if not self.found:
            return
        if len(self.found) == 1:
            raise GramLoopError(f"cannot use {self.where}: {self.found[0]}")
        lines = [f"cannot use {self.where}: {len(self.found)} things are wrong"]
        lines += [f"  - {problem}" for problem in self.found[:MOST_LISTED]]
        if len(self.found) > MOST_LISTED:
            lines.append(f"  … and {len(self.found) - MOST_LISTED} more")
        raise GramLoopError("\n".join(lines))


def check_records(records: Sequence[Record], problems: Problems) -> tuple[Record, ...]:
    """Open every image and label file, in threads, and collect what their headers show to be wrong.

    Args:
        records: with the height and width that an annotation file declares, or 0.
        problems: collects them.

    Returns:
        The records with the sizes of their images.
    """
    with ThreadPoolExecutor(min(32, os.cpu_count() or 1)) as pool:
        checked = list(tracked(pool.map(_check_record, records), "checking images", len(records)))
    problems.found += [problem for _, found in checked for problem in found]
    return tuple(record for record, _ in checked)


def _check_record(record: Record) -> tuple[Record, list[str]]:
    """The record with the size of its image, and what is wrong with its files."""
    problems: list[str] = []
    size: tuple[int, ...] = (0, 0)
    try:
        size, mode = _read_header(record.path)
        problems += _image_problems(record, size, mode)
    except GramLoopError as error:
        problems.append(str(error))
    try:
        if record.label_path is not None:
            problems += _label_problems(record, size, *_read_header(record.label_path))
    except GramLoopError as error:
        problems.append(str(error))
    height, width = size[::-1] if record.upright and orientation(record.path) > 4 else size
    return replace(record, height=height, width=width), problems


def _read_header(path: Path) -> tuple[tuple[int, ...], str]:
    """Height and width of a picture or an array, and Pillow's name for the type of its pixels."""
    try:
        if path.suffix == ".npy":
            values = np.load(path, mmap_mode="r", allow_pickle=False)
            if values.ndim == 2 and values.dtype.kind in "uif":
                return values.shape, "I"
            raise GramLoopError(
                f"{path} holds {values.dtype} of shape {values.shape}; depth is one number per pixel, (H, W)"
            )
        with Image.open(path) as picture:
            return (picture.height, picture.width), picture.mode
    except FileNotFoundError:
        raise GramLoopError(f"{path} is missing") from None
    except UNREADABLE as error:
        if isinstance(error, GramLoopError):
            raise
        reason = "it is not a picture" if isinstance(error, UnidentifiedImageError) else str(error)
        raise GramLoopError(f"{path} cannot be read: {reason}") from error


def _image_problems(record: Record, size: tuple[int, ...], mode: str) -> list[str]:
    path, declared = record.path, (record.height, record.width)
    if mode not in EIGHT_BIT:
        return [f"{path} has pixels of type {mode}; images need 8 bits per channel"]
    if 0 in declared or declared == size:
        return []
    message = f"{path} is {size[1]} x {size[0]}, but its annotation says {declared[1]} x {declared[0]}"
    if declared == size[::-1] and orientation(path) > 4:
        message += " (an EXIF tag rotates it: store the rotated pixels instead)"
    return [message]


def _label_problems(record: Record, image: tuple[int, ...], size: tuple[int, ...], mode: str) -> list[str]:
    modes: tuple[str, ...]
    if record.classes is not None:
        modes, needed = (*NUMBERS, "P"), "labels need one channel of class numbers"
    elif record.depth_format is not None:
        modes, needed = NUMBERS, "depth has one channel of 16 bits, or is a .npy file"
    else:
        modes, needed = ("RGB", "RGBA"), "segments are colours, RGB"
    path = record.label_path
    if mode not in modes:
        return [f"{path} is a {mode} picture; {needed}"]
    if size == image or image == (0, 0):
        return []
    return [f"{path} is {size[1]} x {size[0]}, but its image is {image[1]} x {image[0]}"]


def orientation(path: Path) -> int:
    """The EXIF orientation of an image, 1 to 8; 1 means upright, and from 5 on height and width are swapped."""
    try:
        with Image.open(path) as picture:
            # other formats would decode the whole image to search for the tag
            tagged = "exif" in picture.info or picture.format in ("TIFF", "MPO")
            found = picture.getexif().get(_EXIF_ORIENTATION, 1) if tagged else 1
            return found if found in range(1, 9) else 1
    except UNREADABLE:
        return 1  # reported where the image is read


def refuse_unscorable(data: DataSet, images: int) -> None:
    """Refuse a set in whose first images there is nothing to score; reads until it finds something."""
    for record in islice(data, images):
        with suppress(GramLoopError):  # reported where the image is evaluated
            if record.has_content():
                return
    raise GramLoopError(
        f"{data.root} cannot be evaluated: none of its {images} images has anything to score (labels that are not "
        "ignored, known depth, or objects other than crowds)"
    )


def warn_of_rotated(data: DataSet, images: int) -> None:
    """Warn of EXIF tags that rotate images: labels fit the pixels as stored, while predict rotates them."""
    rotated = [
        record.path for record in islice(data, images) if not record.upright and orientation(record.path) != 1
    ]
    if rotated:
        warnings.warn(
            f"{len(rotated)} of {images} images in {data.root} carry an EXIF tag that rotates them, such as "
            f"{rotated[0].name}; they are evaluated as their pixels are stored, which is how labels fit them, but "
            "gramloop predict rotates them",
            GramLoopWarning,
            stacklevel=3,
        )


def with_contents(
    data: DataSet, images: int, listed: Mapping[Path, str] | None = None
) -> tuple[DataSet, str]:
    """The set with the checksums of its first images in their records, and a checksum over all that decides them.

    Args:
        data: an opened set.
        images: how many of it are used.
        listed: checksums that need not be computed, by file; `listed_checksums` reads them.
    """
    known = listed or {}
    used = data[:images]
    paths = [path for record in used for path in record.files if path not in known]
    digests = {**known, **dict(zip(paths, file_digests(paths, "images"), strict=True))}
    marked = tuple(replace(one, content=tuple(digests[path] for path in one.files)) for one in used)
    whole = hashlib.sha256()
    for record in marked:
        whole.update(f"{record.image_id}\t{record.name}\t{' '.join(record.content)}\n".encode())
    first = data[0]
    if first.classes is not None:
        whole.update(f"classes {list(zip(first.classes.values, first.classes.names, strict=True))}".encode())
    if first.depth_format is not None:
        whole.update(f"depth {sorted(asdict(first.depth_format).items())}".encode())
    if data.annotation_file is not None:
        whole.update(file_digest(data.annotation_file).encode())
    return replace(data, records=(*marked, *data[images:])), whole.hexdigest()


def package_versions() -> dict[str, str]:
    """The versions of everything that takes part in making pixels."""
    import cv2
    import numpy
    import PIL.features
    import scipy

    named = {"numpy": numpy, "scipy": scipy, "opencv": cv2, "pillow": PIL}
    versions = {name: str(package.__version__) for name, package in named.items()}
    libjpeg = str(PIL.features.version("libjpeg_turbo"))
    return {**versions, "libjpeg in pillow": libjpeg, "machine": platform.machine()}


def fingerprint(data: DataSet) -> str:
    """A checksum over names, sizes in bytes and annotations of a clean set, without reading its pixels."""
    digest = hashlib.sha256()
    for record in data:
        sizes = [os.stat(file).st_size for file in record.files]
        digest.update(f"{record.image_id}\t{record.name}\t{sizes}\n".encode())
    if data.annotation_file is not None:
        digest.update(data.annotation_file.read_bytes())
    return digest.hexdigest()


def frost_fingerprint(textures: Path | None) -> str:
    """A checksum over a folder of frost pictures."""
    if textures is None:
        return "synthesised"
    files = sorted(path for path in textures.iterdir() if path.is_file())
    return sha256(checksum_lines({path.name: read_digest(path) for path in files}))


def checksum_lines(checksums: Mapping[str, str]) -> bytes:
    """Checksums by path as the lines that ``sha256sum --check`` reads, sorted by path."""
    return "".join(f"{digest}  {path}\n" for path, digest in sorted(checksums.items())).encode()
