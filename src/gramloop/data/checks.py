"""Checks of a data set: when it is opened, with all problems in one error, and of its content while it is used.

Names and sizes do not distinguish an image from its mirror. So files are read once, when a run is planned; each record
then carries the checksums of its files, and is compared with them when it is read. Files of a written suite bring
their checksums along.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from gramloop.data.records import DataSet, Record
from gramloop.data.truth import UNREADABLE
from gramloop.errors import GramLoopError
from gramloop.util.files import file_digest, file_digests, read_digest, sha256
from gramloop.util.progress import tracked

CHECKSUMS = "checksums.sha256"  # of a written condition, as the sha256sum command has them; written last
MOST_LISTED = 10  # problems in one message
EIGHT_BIT = ("1", "L", "P", "RGB", "RGBA", "LA", "CMYK", "YCbCr")
NUMBERS = ("L", "I", "I;16", "I;16B", "I;16L")  # of one channel
_EXIF_ORIENTATION = 0x0112


def raise_problems(where: Path, problems: Sequence[str]) -> None:
    """Raise one error that counts the problems of a data set and lists the first of them; without any do nothing."""
    if len(problems) == 1:
        raise GramLoopError(f"cannot use {where}: {problems[0]}")
    if problems:
        lines = [f"cannot use {where}: {len(problems)} things are wrong"]
        lines += [f"  - {problem}" for problem in problems[:MOST_LISTED]]
        if len(problems) > MOST_LISTED:
            lines.append(f"  … and {len(problems) - MOST_LISTED} more")
        raise GramLoopError("\n".join(lines))


def check_headers(data: DataSet, problems: list[str]) -> DataSet:
    """Open every image and label file, in threads, and collect what their headers show to be wrong.

    Args:
        data: its records have the height and width that an annotation file declares, or 0.
        problems: collects them.

    Returns:
        The set with the sizes of its images, and a note about those that an EXIF tag rotates.
    """
    with ThreadPoolExecutor(min(32, os.cpu_count() or 1)) as pool:
        opened = pool.map(_check_record, data.records)
        checked = list(tracked(opened, "checking images", len(data)))
    problems += [problem for _, _, found in checked for problem in found]
    notes, rotated = (
        data.notes,
        [record.path for record, tag, _ in checked if tag != 1 and not record.upright],
    )
    if rotated:
        notes += (
            f"{len(rotated)} of {len(data)} images in {data.root} carry an EXIF tag that rotates them, such as "
            f"{rotated[0].name}; they are evaluated as their pixels are stored, which is how labels fit them, but "
            "gramloop predict rotates them",
        )
    return replace(data, records=tuple(record for record, _, _ in checked), notes=notes)


def _check_record(record: Record) -> tuple[Record, int, list[str]]:
    """The record with the size of its image, the image's EXIF orientation, and what is wrong with its files."""
    problems: list[str] = []
    size, tag = (0, 0), 1
    try:
        size, mode, tag = _read_header(record.path)
        problems += _image_problems(record, size, mode, tag)
    except GramLoopError as error:
        problems.append(str(error))
    try:
        if record.label_path is not None:
            problems += _label_problems(record, size, *_read_header(record.label_path)[:2])
    except GramLoopError as error:
        problems.append(str(error))
    height, width = size[::-1] if record.upright and tag > 4 else size
    return replace(record, height=height, width=width), tag, problems


def _read_header(path: Path) -> tuple[tuple[int, int], str, int]:
    """Height and width of a picture or an array, Pillow's name for the type of its pixels, and its EXIF orientation."""
    try:
        if path.suffix == ".npy":
            values = np.load(path, mmap_mode="r", allow_pickle=False)
            if values.ndim == 2 and values.dtype.kind in "uif":
                return values.shape, "I", 1
            raise GramLoopError(
                f"{path} holds {values.dtype} of shape {values.shape}; depth is one number per pixel, (H, W)"
            )
        with Image.open(path) as picture:
            return (picture.height, picture.width), picture.mode, orientation(picture)
    except FileNotFoundError:
        raise GramLoopError(f"{path} is missing") from None
    except UNREADABLE as error:
        if isinstance(error, GramLoopError):
            raise
        reason = "it is not a picture" if isinstance(error, UnidentifiedImageError) else str(error)
        raise GramLoopError(f"{path} cannot be read: {reason}") from error


def _image_problems(record: Record, size: tuple[int, int], mode: str, tag: int) -> list[str]:
    path, declared = record.path, (record.height, record.width)
    if mode not in EIGHT_BIT:
        return [f"{path} has pixels of type {mode}; images need 8 bits per channel"]
    if 0 in declared or declared == size:
        return []
    message = f"{path} is {size[1]} x {size[0]}, but its annotation says {declared[1]} x {declared[0]}"
    if declared == size[::-1] and tag > 4:
        message += " (an EXIF tag rotates it: store the rotated pixels instead)"
    return [message]


def _label_problems(record: Record, image: tuple[int, int], size: tuple[int, int], mode: str) -> list[str]:
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


def orientation(picture: Image.Image) -> int:
    """The EXIF orientation of a picture, 1 to 8; 1 means upright, and from 5 on height and width are swapped."""
    # other formats would decode the whole image to search for the tag
    found = 1
    if "exif" in picture.info or picture.format in ("TIFF", "MPO"):
        with suppress(*UNREADABLE):
            found = picture.getexif().get(_EXIF_ORIENTATION, 1)
    return found if found in range(1, 9) else 1


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


def with_contents(data: DataSet, images: int) -> tuple[DataSet, str]:
    """The set with the checksums of its first images in their records, and a checksum over all that decides them."""
    used = data[:images]
    paths = [path for record in used if not record.content for path in record.files]
    digests, marked, whole = iter(file_digests(paths, "images")), [], hashlib.sha256()
    for record in used:
        content = record.content or tuple(islice(digests, len(record.files)))
        marked.append(replace(record, content=content))
        whole.update(f"{record.image_id}\t{record.name}\t{' '.join(content)}\n".encode())
    first = data[0]
    if first.classes is not None:
        whole.update(f"classes {list(zip(first.classes.values, first.classes.names, strict=True))}".encode())
    if first.depth_format is not None:
        whole.update(f"depth {sorted(asdict(first.depth_format).items())}".encode())
    if data.annotation_file is not None:
        whole.update(file_digest(data.annotation_file).encode())
    return replace(data, records=(*marked, *data[images:])), whole.hexdigest()


def with_listed_checksums(data: DataSet, folder: Path) -> DataSet:
    """The set with the checksums that its condition's folder lists, if `gramloop corrupt` wrote it."""
    try:
        text = (folder / CHECKSUMS).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return data
    lines = re.findall(r"^([0-9a-f]{64})  (.+)\n", text, re.MULTILINE)
    listed = {folder / name: digest for digest, name in lines}
    marked = (
        replace(one, content=tuple(listed[path] for path in one.files))
        if all(path in listed for path in one.files)
        else one
        for one in data
    )
    return replace(data, records=tuple(marked))


def checksum_lines(checksums: Mapping[str, str]) -> bytes:
    """Checksums by path as the lines that ``sha256sum --check`` reads, sorted by path."""
    return "".join(f"{digest}  {path}\n" for path, digest in sorted(checksums.items())).encode()


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


def frost_fingerprint(textures: Path | None) -> str:
    """A checksum over a folder of frost pictures."""
    if textures is None:
        return "synthesised"
    files = sorted(path for path in textures.iterdir() if path.is_file())
    return sha256(checksum_lines({path.name: read_digest(path) for path in files}))
