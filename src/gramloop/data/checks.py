"""Checks of a data set: at its opening, where all problems are reported at once, and of its content while it is used.

Names and sizes do not distinguish an image from its mirror. So files are read once, when a run is planned; each record
then carries the checksums of its files, and is compared with them when it is read.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from gramloop.data.records import DataSet, Record
from gramloop.data.truth import UNREADABLE
from gramloop.errors import GramLoopError, GramLoopWarning
from gramloop.util.checksums import file_digest, file_digests, read_digest
from gramloop.util.progress import tracked

Check = Literal["headers", "decode"]
CHECKS = ("headers", "decode")
MOST_LISTED = 10  # problems in one message
EIGHT_BIT = ("1", "L", "P", "RGB", "RGBA", "LA", "CMYK", "YCbCr")
NUMBERS = ("L", "I", "I;16", "I;16B", "I;16L")  # of one channel
_EXIF_ORIENTATION = 0x0112


class ChangedFileError(GramLoopError):
    """A file that changed since the run was planned; code that skips unusable images must not skip this."""


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


class Header(NamedTuple):
    """What the first bytes of a picture or an array say, or why they cannot be used."""

    size: tuple[int, ...] = (0, 0)  # height and width
    mode: str = ""  # Pillow's name for the type of its pixels
    problem: str = ""


def check_records(records: Sequence[Record], check: Check, problems: Problems) -> tuple[Record, ...]:
    """Open every image and label file, in threads, and collect what is wrong with them.

    Args:
        records: with the height and width that an annotation file declares, or 0.
        check: ``headers`` reads sizes and types; ``decode`` reads all pixels and so finds truncated files.
        problems: collects them.

    Returns:
        The records with the sizes of their images.
    """
    if check not in CHECKS:
        raise GramLoopError(f"check must be one of {', '.join(CHECKS)}, not {check!r}")
    headers = _read_headers([record.path for record in records], check, "images")
    paths = [record.label_path for record in records if record.label_path is not None]
    labels = dict(zip(paths, _read_headers(paths, check, "labels"), strict=True))
    checked = []
    for record, header in zip(records, headers, strict=True):
        problems.add(_image_problem(record, header))
        if record.label_path is not None:
            problems.add(_label_problem(record, labels[record.label_path], header.size))
        turned = record.upright and orientation(record.path) > 4
        height, width = header.size[::-1] if turned else header.size
        checked.append(replace(record, height=height, width=width))
    if check == "decode" and not problems.found:
        for record in tracked(checked, "checking annotations", len(checked)):
            try:
                _decode_annotations(record)
            except GramLoopError as error:
                problems.add(str(error))
    return tuple(checked)


def _read_headers(paths: Sequence[Path], check: Check, what: str) -> list[Header]:
    with ThreadPoolExecutor(min(32, os.cpu_count() or 1)) as pool:
        found = pool.map(lambda path: _read_header(path, check), paths)
        return list(tracked(found, f"checking {what}", len(paths)))


def _read_header(path: Path, check: Check) -> Header:
    try:
        if path.suffix == ".npy":
            values = np.load(path, mmap_mode="r", allow_pickle=False)
            if values.ndim == 2 and values.dtype.kind in "uif":
                return Header(values.shape, "I")
            problem = f"holds {values.dtype} of shape {values.shape}; depth is one number per pixel, (H, W)"
            return Header(problem=f"{path} {problem}")
        with Image.open(path) as picture:
            if check == "decode":
                picture.load()
            return Header((picture.height, picture.width), picture.mode)
    except FileNotFoundError:
        return Header(problem=f"{path} is missing")
    except UNREADABLE as error:
        reason = "it is not a picture" if isinstance(error, UnidentifiedImageError) else str(error)
        return Header(problem=f"{path} cannot be read: {reason}")


def _image_problem(record: Record, header: Header) -> str:
    """Why an image cannot be used, or an empty text."""
    path, declared = record.path, (record.height, record.width)
    if header.problem:
        return header.problem
    if header.mode not in EIGHT_BIT:
        return f"{path} has pixels of type {header.mode}; images need 8 bits per channel"
    if 0 in declared or declared == header.size:
        return ""
    message = f"{path} is {header.size[1]} x {header.size[0]}, but its annotation says {declared[1]} x {declared[0]}"
    if declared == header.size[::-1] and orientation(path) > 4:
        message += " (an EXIF tag rotates it: store the rotated pixels instead)"
    return message


def _label_problem(record: Record, header: Header, image: tuple[int, ...]) -> str:
    """Why a file of labels, depth or segments cannot be used, or an empty text."""
    path, size = record.label_path, header.size
    modes: tuple[str, ...]
    if record.classes is not None:
        modes, needed = (*NUMBERS, "P"), "labels need one channel of class numbers"
    elif record.depth_format is not None:
        modes, needed = NUMBERS, "depth has one channel of 16 bits, or is a .npy file"
    else:
        modes, needed = ("RGB", "RGBA"), "segments are colours, RGB"
    if header.problem:
        return header.problem
    if header.mode not in modes:
        return f"{path} is a {header.mode} picture; {needed}"
    if size == image or image == (0, 0):
        return ""
    return f"{path} is {size[1]} x {size[0]}, but its image is {image[1]} x {image[0]}"


def _decode_annotations(record: Record) -> None:
    if record.classes is not None:
        record.labels()
    elif record.depth_format is not None:
        record.depth()
    elif record.label_path is not None:
        record.segments()


def name_problem(name: str) -> str:
    """Why a file_name cannot be used, or an empty text."""
    try:
        parts, longest = PurePosixPath(name).parts, max(map(len, name.encode().split(b"/")))
    except UnicodeEncodeError:
        return f"file_name {name!r} holds half a character"
    if "\0" in name or longest > 255:
        return f"file_name {name[:60]!r} cannot be the name of a file"
    if ".." in parts or PurePosixPath(name).is_absolute():
        return f"file_name {name!r} leads out of the folder it belongs in"
    return ""


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


def refuse_change(record: Record) -> None:
    """Refuse a record whose files changed since its checksums were taken; without checksums do nothing."""
    for path, expected in zip(record.files, record.content, strict=False):
        try:
            found = read_digest(path)
        except FileNotFoundError:
            raise ChangedFileError(f"{path} is gone; it was there when the run was planned") from None
        except OSError as error:
            raise GramLoopError(f"cannot read {path}: {error.strerror}") from error
        if found != expected:
            raise ChangedFileError(
                f"{path} changed since the run was planned: its sha256 is {found[:12]}…, not {expected[:12]}…; restore "
                "it, or choose another folder for the results"
            )
