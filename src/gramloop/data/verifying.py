"""A written suite compared with its checksums: quickly, by sizes and a sample of the files, or file by file."""

from __future__ import annotations

import hashlib
import os
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gramloop.data.contents import listed_checksums
from gramloop.data.manifest import CHECKSUMS, Manifest, checksum_lines, sha256
from gramloop.util.files import TEMPORARY, files_below
from gramloop.util.progress import tracked

SAMPLE = 16  # files of a condition whose bytes a quick look reads; others by each start, all where there are no more
PARTIAL = "checksums.partial"  # of a condition that is being written, as its files come


def damaged_files(folder: Path, size: int | None, full: bool) -> list[Path]:
    """The files of a condition that are missing or not as its checksums say.

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
        digests = tracked(pool.map(read_digest, chosen), f"comparing {folder.parent.name}", len(chosen))
        return [
            *missing,
            *(path for path, found in zip(chosen, digests, strict=True) if found != listed[path]),
        ]


def read_digest(path: Path) -> str:
    """The sha256 of the bytes that a file holds now; nothing for a file that is not there."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError:
        return ""


def size_of(folder: Path, names: Iterable[str]) -> int:
    """The bytes of some files below a folder."""
    return sum((folder / name).stat().st_size for name in names)


def is_listed(folder: Path, recorded: str | None) -> bool:
    """Whether a condition's checksum file is the one that the manifest recorded."""
    path = folder / CHECKSUMS
    return path.is_file() and recorded == sha256(path.read_bytes())


def relisted(folder: Path, recorded: str | None) -> dict[str, str]:
    """The checksums of a condition that lost its checksum file: of the files as they are, if the manifest knows them so.

    Empty where something is damaged, missing or new: then every file is made again and compared.
    """
    if recorded is None or (folder / CHECKSUMS).is_file():
        return {}
    found = {path.relative_to(folder).as_posix(): read_digest(path) for path in _files(folder)}
    return found if sha256(checksum_lines(found.items())) == recorded else {}


def _files(folder: Path) -> Iterator[Path]:
    for path in files_below(folder):
        if path.name != PARTIAL and not path.name.startswith(TEMPORARY):
            yield path


def note_written(folder: Path, checksums: Iterable[tuple[str, str]]) -> None:
    """Add files to the list of an unfinished condition, so that a later start can tell what is as it was written."""
    with (folder / PARTIAL).open("ab") as stream:
        stream.write(checksum_lines(checksums))


def noted(folder: Path) -> dict[str, str]:
    """The files that an unfinished condition lists; a line that a kill tore is passed over."""
    try:
        text = (folder / PARTIAL).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    return {name: digest for digest, name in re.findall(r"^([0-9a-f]{64})  (.+)\n", text, re.MULTILINE)}


def condition_problems(root: Path, key: str, manifest: Manifest | None, look: str) -> list[str]:
    """What is wrong with a condition that was written with checksums, in sentences; ``look``: none, quick or full."""
    folder = root / key
    recorded: Mapping[str, str] = {} if manifest is None else manifest.conditions
    again = "run the same gramloop corrupt again, which puts it right"
    if key in recorded and not (folder / CHECKSUMS).is_file():
        return [f"{folder / CHECKSUMS} is missing, so that damage would not be seen; {again}"]
    if key in recorded and not is_listed(folder, recorded[key]):
        return [f"{folder / CHECKSUMS} is not the one that was written; {again}"]
    if look == "none" or not (folder / CHECKSUMS).is_file():
        return []
    size = None if manifest is None else manifest.sizes.get(key)
    found = damaged_files(folder, size, look == "full")
    return [
        f"{path} is {'not what was written' if path.is_file() else 'missing'}, by its checksum; {again}"
        for path in found
    ]
