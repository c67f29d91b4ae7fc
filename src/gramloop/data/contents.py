"""A set known by its content: the checksum of every file that a record reads, and one over the whole.

Names and sizes do not tell an image from its mirror. Files are read once, when a run is planned, and a later start asks
the file system whether they were touched (`gramloop.util.checksums`); a suite that `gramloop corrupt` wrote brings its
checksums along. Each record then carries what its files held, and is compared when it is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from gramloop.data.manifest import CHECKSUMS
from gramloop.data.records import DataSet, Record
from gramloop.errors import GramLoopError
from gramloop.util.checksums import file_digest, file_digests


class ChangedFileError(GramLoopError):
    """A file that is not what it was when the run began: whoever passes over bad images must not pass over this."""


def files_of(record: Record) -> tuple[Path, ...]:
    """The files that a record reads: its image, and its labels where they have a file of their own."""
    return (record.path,) if record.label_path is None else (record.path, record.label_path)


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
    paths = [path for record in used for path in files_of(record) if path not in known]
    digests = {**known, **dict(zip(paths, file_digests(paths, "images"), strict=True))}
    marked = tuple(replace(one, content=tuple(digests[path] for path in files_of(one))) for one in used)
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
    """Read the files of a record and refuse them if they do not hold what they held; without checksums do nothing."""
    for path, expected in zip(files_of(record), record.content, strict=False):
        try:
            found = hashlib.sha256(path.read_bytes()).hexdigest()
        except FileNotFoundError:
            raise ChangedFileError(f"{path} is gone; it was there when the run was planned") from None
        except OSError as error:
            raise GramLoopError(f"cannot read {path}: {error.strerror}") from error
        if found != expected:
            raise ChangedFileError(
                f"{path} changed since the run was planned: its sha256 is {found[:12]}…, not {expected[:12]}…; put it "
                "back, or choose another folder for the results"
            )


def listed_checksums(folder: Path) -> dict[Path, str]:
    """The files of a condition that `gramloop corrupt` wrote, with their checksums; empty where it lists none."""
    path = folder / CHECKSUMS
    if not path.is_file():
        return {}
    try:
        pairs = [line.split("  ", 1) for line in path.read_text(encoding="utf-8").splitlines()]
        return {folder / name: _digest(found) for found, name in pairs}
    except (OSError, ValueError) as error:
        raise GramLoopError(f"{path} is not a list of checksums as sha256sum writes it: {error}") from error


def _digest(text: str) -> str:
    if len(text) != 64 or int(text, 16) < 0:
        raise ValueError(f"{text!r} is no sha256")
    return text
