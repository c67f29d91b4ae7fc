"""The manifest of a written suite: what made it, from what, its checksums, and the comparison of its files with them.

The comparison is quick, by sizes and a sample of the files, or full, file by file.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import random
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from gramloop.data.records import DataSet
from gramloop.errors import GramLoopError
from gramloop.util.checksums import read_digest, sha256
from gramloop.util.files import atomic_write
from gramloop.util.json_files import checked, first_difference, read_json, refuse_unknown
from gramloop.util.progress import tracked

MANIFEST = "manifest.json"
CHECKSUMS = (
    "checksums.sha256"  # per condition, in the format of the sha256sum command; it grows as files come
)
MANIFEST_LAYOUT = 2
SAMPLE = 16  # files of a condition that a quick comparison reads; a new sample each time
_WORDS = {
    "layout": "layout version",
    "suite": "suite",
    "recipe_version": "recipe version",
    "encoding": "image format",
    "frost": "frost textures",
    "packages": "packages, which decide the pixels",
}  # what must agree before files are added


@dataclass(frozen=True)
class Manifest:
    """Everything that decides the bytes of a written set, and the checksum of each finished condition."""

    suite: str
    recipe_version: int
    encoding: str
    images: int
    frost: str  # "synthesised", or a checksum of the user's textures
    packages: Mapping[str, str]
    contents: str  # checksum over every byte of the clean set
    conditions: Mapping[str, str] = field(default_factory=dict)  # "fog/3": checksum of its checksum file
    sizes: Mapping[str, int] = field(default_factory=dict)  # "fog/3": bytes of its files
    layout: int = MANIFEST_LAYOUT

    def with_condition(self, key: str, checksum: str, size: int) -> Manifest:
        """The manifest after one more condition is finished."""
        conditions, sizes = {**self.conditions, key: checksum}, {**self.sizes, key: size}
        return replace(self, conditions=dict(sorted(conditions.items())), sizes=dict(sorted(sizes.items())))

    def write(self, folder: Path) -> None:
        """Store as JSON."""
        atomic_write(folder / MANIFEST, (json.dumps(asdict(self), indent=1) + "\n").encode())


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a written set, or None where there is none."""
    path = folder / MANIFEST
    if not path.is_file():
        return None
    what = "a manifest written by gramloop corrupt"
    content = read_json(path, what)
    refuse_unknown(content, Manifest.__dataclass_fields__, str(path), what)
    return checked(content, Manifest, str(path), what)


def refuse_difference(found: Manifest, wanted: Manifest, folder: Path) -> None:
    """Raise unless new files would fit the ones that are there."""
    before, now = ({words: getattr(one, name) for name, words in _WORDS.items()} for one in (found, wanted))
    if words := first_difference(before, now):
        raise GramLoopError(f"{folder} was made with the {words}; choose another folder")
    if found.conditions and found.contents != wanted.contents:
        raise GramLoopError(
            f"{folder} was made from other images or annotations; restore the clean set, or choose another folder"
        )


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
    return sha256(checksum_lines((path.name, read_digest(path)) for path in files))


def checksum_lines(checksums: Iterable[tuple[str, str]]) -> bytes:
    """(path, digest) pairs as the lines that ``sha256sum --check`` reads, sorted by path."""
    return "".join(f"{digest}  {path}\n" for path, digest in sorted(checksums)).encode()


def listed_checksums(folder: Path) -> dict[Path, str]:
    """The files of a condition that `gramloop corrupt` wrote, with their checksums; incomplete lines are skipped."""
    try:
        text = (folder / CHECKSUMS).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    lines = re.findall(r"^([0-9a-f]{64})  (.+)\n", text, re.MULTILINE)
    return {folder / name: digest for digest, name in lines}


def damaged_files(folder: Path, size: int | None, full: bool) -> list[Path]:
    """The files of a condition that are missing or differ from its checksums.

    Args:
        folder: of the condition.
        size: bytes of all its files together, where that is known.
        full: read every file; otherwise a sample, and every one where a file is missing or the size is another.
    """
    listed = listed_checksums(folder)
    sizes = {path: path.stat().st_size for path in listed if path.is_file()}
    missing = [path for path in listed if path not in sizes]
    doubtful = bool(missing) or (size is not None and sum(sizes.values()) != size)
    everything = full or doubtful or len(sizes) <= SAMPLE
    chosen = list(sizes) if everything else random.sample(list(sizes), SAMPLE)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        digests = tracked(pool.map(present_digest, chosen), f"comparing {folder.parent.name}", len(chosen))
        differ = [path for path, found in zip(chosen, digests, strict=True) if found != listed[path]]
    return missing + differ


def present_digest(path: Path) -> str:
    """The sha256 of a file as it is now; empty for a file that does not exist."""
    try:
        return read_digest(path)
    except OSError:
        return ""


def condition_problems(root: Path, key: str, manifest: Manifest | None, verify: str) -> list[str]:
    """What is wrong with a condition that was written with checksums; ``verify`` is none, quick or full."""
    folder, listing = root / key, root / key / CHECKSUMS
    recorded = None if manifest is None else manifest.conditions[key]
    again = "run the same gramloop corrupt again, which repairs it"
    if recorded is not None and not listing.is_file():
        return [f"{listing} is missing, so that damage would go unnoticed; {again}"]
    if recorded is not None and present_digest(listing) != recorded:
        return [f"{listing} is not the one that was written; {again}"]
    if verify == "none" or not listing.is_file():
        return []
    size = None if manifest is None else manifest.sizes.get(key)
    return [
        f"{path} is {'not what was written' if path.is_file() else 'missing'}, by its checksum; {again}"
        for path in damaged_files(folder, size, verify == "full")
    ]
