"""Checks at the opening of a data set: everything that is wrong is told at once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from PIL import Image, UnidentifiedImageError

from gramloop.errors import GramLoopError
from gramloop.util.progress import tracked

Check = Literal["headers", "decode"]
CHECKS = ("headers", "decode")
SHOWN = 10
EIGHT_BIT = ("1", "L", "P", "RGB", "RGBA", "LA", "CMYK", "YCbCr")
EXIF_ORIENTATION = 0x0112


@dataclass
class Problems:
    """Collects what is wrong with a data set, then raises it as one error."""

    where: Path
    found: list[str] = field(default_factory=list)

    def add(self, problem: str) -> None:
        """Remember one problem."""
        self.found.append(problem)

    def raise_if_any(self) -> None:
        """Raise one error that counts all problems and lists the first of them."""
        if not self.found:
            return
        if len(self.found) == 1:
            raise GramLoopError(f"cannot use {self.where}: {self.found[0]}")
        lines = [f"cannot use {self.where}: {len(self.found)} things are wrong"]
        lines += [f"  - {problem}" for problem in self.found[:SHOWN]]
        if len(self.found) > SHOWN:
            lines.append(f"  … and {len(self.found) - SHOWN} more")
        raise GramLoopError("\n".join(lines))


@dataclass(frozen=True)
class Header:
    """What the first bytes of an image file say, or why they cannot be used."""

    height: int = 0
    width: int = 0
    mode: str = ""
    problem: str = ""


def read_headers(paths: Sequence[Path], check: Check, what: str) -> list[Header]:
    """Look into every file, in threads; ``decode`` reads all pixels and so finds truncated files."""
    if check not in CHECKS:
        raise GramLoopError(f"check must be one of {', '.join(CHECKS)}, not {check!r}")
    with ThreadPoolExecutor(min(32, os.cpu_count() or 1)) as pool:
        found = pool.map(lambda path: _look_into(path, check), paths)
        return list(tracked(found, f"checking {what}", len(paths)))


def _look_into(path: Path, check: Check) -> Header:
    try:
        with Image.open(path) as picture:
            header = Header(picture.height, picture.width, picture.mode)
            if check == "decode":
                picture.load()
            return header
    except FileNotFoundError:
        return Header(problem=f"{path} is missing")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        reason = "it is not a picture" if isinstance(error, UnidentifiedImageError) else str(error)
        return Header(problem=f"{path} cannot be read: {reason}")


def image_problem(path: Path, header: Header, declared: tuple[int, int] | None = None) -> str:
    """Why this image cannot be used, or an empty string; ``declared`` is (height, width)."""
    if header.problem:
        return header.problem
    if header.mode not in EIGHT_BIT:
        return f"{path} has pixels of type {header.mode}; images need 8 bits per channel"
    if declared is None or declared == (header.height, header.width):
        return ""
    sentence = (
        f"{path} is {header.width} x {header.height}, but its annotation says {declared[1]} x {declared[0]}"
    )
    if declared == (header.width, header.height) and orientation(path) > 4:
        sentence += " (an EXIF tag turns it: write the turned pixels instead)"
    return sentence


def name_problem(name: str) -> str:
    """Why a file_name cannot be used, or an empty string."""
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
    """How EXIF says that an image is to be turned, 1 to 8; 1 means not, and from 5 on its sides change places."""
    try:
        with Image.open(path) as picture:
            # other formats would decode the whole image to look for the tag
            told = "exif" in picture.info or picture.format in ("TIFF", "MPO")
            found = picture.getexif().get(EXIF_ORIENTATION, 1) if told else 1
            return found if found in range(1, 9) else 1
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return 1  # what cannot be read is told elsewhere
