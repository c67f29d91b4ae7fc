"""Writing a generated suite to disk: over all cores, resumable after a kill, with checksums.

Every condition becomes ``<condition>/<severity>/`` in the layout of the released -P sets (``coco/…`` and
``ade/ADEChallengeData2016/…`` for the public sets, the plain layouts for custom ones). A file is whole or absent, and a
condition is finished when its checksums are there, which are written last. A folder that was damaged afterwards is to be
deleted and written again.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from gramloop.data.checks import (
    CHECKSUMS,
    checksum_lines,
    frost_fingerprint,
    package_versions,
    with_contents,
)
from gramloop.data.coco import maps_folder, read_coco
from gramloop.data.folders import ADE20K_CLASS_FILE, ADE20K_FOLDER, CLASS_FILE, FORMAT_FILE
from gramloop.data.opening import MANIFEST, OpenSuite, read_manifest
from gramloop.data.records import (
    ChangedFileError,
    Record,
    Shift,
    decode_image,
    encode,
    refuse_change,
    shift_record,
)
from gramloop.data.suites import Condition
from gramloop.data.truth import Annotation, segments_info, segments_png
from gramloop.errors import GramLoopError
from gramloop.shifts.common import RECIPE_VERSION
from gramloop.util.checksums import read_digest, sha256
from gramloop.util.files import UnwritableError, atomic_write, is_taken, locked, remove_leftovers
from gramloop.util.json_files import first_difference
from gramloop.util.processes import process_context, process_pool, run_unordered, worker_count

CONTENTS = "checksum of the clean set"
CHUNK = 8  # images per call of a worker
_PREFIXES = {
    "coco": "coco/",
    "ade20k": f"ade/{ADE20K_FOLDER}/",
}  # where a public set lies in a condition's folder

Chunk = tuple[Condition, int, int]


@dataclass
class WriteOutcome:
    """What a run did."""

    made: int = 0  # images generated now
    found: int = 0  # images of unfinished conditions that an earlier run had written
    skipped: list[Condition] = field(default_factory=list)  # finished before
    finished: list[Condition] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@dataclass
class Written:
    """What became of some images of a condition."""

    checksums: dict[str, str] = field(default_factory=dict)  # sha256 by path in the condition's folder
    annotations: list[Annotation] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    made: int = 0
    found: int = 0

    def store(self, path: Path, name: str, make: Callable[[], bytes], keep: bool) -> bool:
        """Make and write the file of a name, unless it is there and kept; whether it was made."""
        if kept := keep and path.is_file():
            self.checksums[name] = read_digest(path)
        else:
            data = make()
            self.checksums[name] = sha256(data)
            atomic_write(path, data)
        return not kept


class SuiteWriter:
    """Knows where each file of a suite goes and what is in it; sent once to every worker."""

    def __init__(self, opened: OpenSuite, target: Path) -> None:
        if opened.clean is None:
            raise GramLoopError(
                f"{opened.root} holds shifted sets already; a clean set is needed to make them from"
            )
        source, place = opened.root.resolve(), target.resolve()
        if place == source or source in place.parents:
            raise GramLoopError(
                f"the target {target} lies in the source {opened.root}; choose a folder outside it"
            )
        self.opened, self.target = opened, target
        self.clean, self.contents = with_contents(opened.clean, len(opened.clean))
        self.keep = True  # files that are there
        self.prefix = _PREFIXES.get(opened.suite.base, "")
        self.split = "validation" if opened.suite.base == "ade20k" else opened.options.split
        self.coco_name = ""  # of the annotation file without suffix, in a condition's folder
        self.images_folder = f"{self.prefix}images/{self.split}/"
        first, file = self.clean[0], self.clean.annotation_file
        self.has_segments = first.label_path is not None and first.annotations is not None
        if file is not None:
            kind, _, split = file.stem.partition("_")
            split = split if split and kind in ("instances", "panoptic") else "images"
            kind = "panoptic" if self.has_segments else "instances"
            self.coco_name = f"{self.prefix}annotations/{kind}_{split}"
            self.images_folder = f"{self.prefix}{split}/"
        self._refuse_clashes()

    def _refuse_clashes(self) -> None:
        taken: dict[str, str] = {}
        for record in self.clean:
            name = self.file_name(record)
            if name in taken:
                raise GramLoopError(
                    f"cannot use {self.opened.root}: {taken[name]} and {record.name} would both become {name}"
                )
            taken[name] = record.name

    def manifest(self) -> dict[str, Any]:
        """Everything that decides the bytes of the suite."""
        return {
            "suite": self.opened.suite.name,
            "recipe version": RECIPE_VERSION,
            "image format": self.opened.encoding,
            "frost textures": frost_fingerprint(self.opened.frost_textures),
            "packages, which decide the pixels": package_versions(),
            CONTENTS: self.contents,
        }

    def file_name(self, record: Record) -> str:
        """The image's name in the folder of images, with the suffix of the chosen format."""
        return PurePosixPath(record.name).with_suffix(f".{self.opened.encoding}").as_posix()

    def write_images(self, condition: Condition, start: int, stop: int) -> Written:
        """Write the images (and label files) of one part of a condition; what is there is kept."""
        shift, written = self.opened.shift(condition), Written()
        for record in self.clean[start:stop]:
            try:
                refuse_change(record)
                self._write_record(shift_record(record, shift), shift, written)
            except (UnwritableError, ChangedFileError):  # no other image would fare better
                raise
            except GramLoopError as error:
                written.failures.append(str(error))
        return written

    def _write_record(self, record: Record, shift: Shift, written: Written) -> None:
        folder = self.target / shift.condition.key
        if shift.moves and self.coco_name:
            written.annotations += self._moved_entries(record, shift)
        if record.label_path is not None:
            name, make = self._label_file(record, record.label_path, shift.moves)
            written.store(folder / name, name, make, self.keep)

        def image() -> bytes:
            pixels = decode_image(record.path, upright=record.upright)
            return encode(shift.pixels(pixels, record), shift.encoding)

        name = f"{self.images_folder}{self.file_name(record)}"
        made = written.store(folder / name, name, image, self.keep)
        written.made, written.found = written.made + made, written.found + (not made)

    def _moved_entries(self, record: Record, shift: Shift) -> list[Annotation]:
        """What the annotation file lists of an image whose pixels moved."""
        if self.has_segments:
            entry = {"image_id": record.image_id, "file_name": self._map_name(record)}
            return [{**entry, "segments_info": segments_info(record.segments())}]
        exact = self.clean.task == "instance"  # where outlines lie within a pixel
        return list(shift.annotations(record.annotations or (), record, run_lengths=exact))

    def _label_file(self, record: Record, path: Path, moved: bool) -> tuple[str, Callable[[], bytes]]:
        """Name and content of the file of segments, depth or labels: the same file, or its content moved."""
        if self.has_segments:
            name = f"{self.coco_name}/{self._map_name(record)}"
            return name, (lambda: segments_png(record.segments().ids)) if moved else path.read_bytes
        depth, classes = record.depth_format, record.classes
        if depth is not None:
            name = f"depth/{self.split}/{PurePosixPath(record.name).with_suffix('')}"
        else:
            name = f"{self.prefix}annotations/{self.split}/{record.image_id}"
        if moved and depth is not None:
            return f"{name}.npy", lambda: _array_file(record.depth().metres * np.float32(depth.scale))
        if moved and classes is not None:
            return f"{name}.png", lambda: encode(classes.to_values(record.labels()))
        return name + path.suffix, path.read_bytes

    def _map_name(self, record: Record) -> str:
        assert record.label_path is not None
        assert self.clean.annotation_file is not None
        return record.label_path.relative_to(maps_folder(self.clean.annotation_file)).as_posix()

    def finish(self, condition: Condition, written: Written) -> None:
        """Write what belongs to the whole condition, its checksums last."""
        folder = self.target / condition.key
        described = self._set_file(self.opened.shift(condition).moves, written.annotations)
        if described is not None:
            name, data = described
            atomic_write(folder / name, data)
            written.checksums[name] = sha256(data)
        atomic_write(folder / CHECKSUMS, checksum_lines(written.checksums))

    def _set_file(self, moved: bool, annotations: list[Annotation]) -> tuple[str, bytes] | None:
        """The one file that describes all images: annotations, depth format or class list; photographs have none."""
        first = self.clean[0]
        if self.coco_name:
            return f"{self.coco_name}.json", self._annotation_file(annotations if moved else None)
        if first.depth_format is not None:
            # it was cropped before it moved
            stored = replace(first.depth_format, crop="none") if moved else first.depth_format
            return FORMAT_FILE, (json.dumps(asdict(stored)) + "\n").encode()
        published = self.clean.root / ADE20K_CLASS_FILE
        if self.opened.suite.base == "ade20k" and published.is_file():
            return f"{self.prefix}{ADE20K_CLASS_FILE}", published.read_bytes()
        if first.classes is None:
            return None
        pairs = zip(first.classes.values, first.classes.names, strict=True)
        return f"{self.prefix}{CLASS_FILE}", "".join(f"{value} {name}\n" for value, name in pairs).encode()

    def _annotation_file(self, moved: list[Annotation] | None) -> bytes:
        assert self.clean.annotation_file is not None
        content: dict[str, Any] = read_coco(self.clean.annotation_file)
        names = {record.image_id: self.file_name(record) for record in self.clean}
        content["images"] = [{**entry, "file_name": names[entry["id"]]} for entry in content["images"]]
        if moved is not None:
            content["annotations"] = moved
        elif not self.has_segments:
            content["annotations"] = [entry for record in self.clean for entry in record.annotations or ()]
        return json.dumps(content, separators=(",", ":")).encode()


def write_suite(
    opened: OpenSuite,
    target: Path,
    *,
    workers: int | None = None,
    on_chunk: Callable[[Condition, int], None] = lambda condition, images: None,
    on_finished: Callable[[Condition], None] = lambda condition: None,
) -> WriteOutcome:
    """Write all opened conditions to a folder; what an earlier run wrote is kept.

    Args:
        opened: a suite over a clean set.
        target: the folder.
        workers: processes; one per core by default.
        on_chunk: called with a condition and a number of images whenever these are done.
        on_finished: called with a condition when it is finished.
    """
    workers = worker_count(workers)
    writer = SuiteWriter(opened, target)
    try:
        _refuse_other_suite(writer)  # what is refused stays untouched
        with locked(target):
            atomic_write(target / MANIFEST, (json.dumps(writer.manifest(), indent=1) + "\n").encode())
            remove_leftovers(target, alone=True)
            return _write(writer, workers, on_chunk, on_finished)
    except OSError as error:
        raise GramLoopError(f"cannot continue writing to {target}: {error}") from error


def _refuse_other_suite(writer: SuiteWriter) -> None:
    """Refuse a folder that holds anything but a part of this suite."""
    if (writer.target / MANIFEST).is_file():
        found, wanted = read_manifest(writer.target), writer.manifest()
        # while no condition is finished, images of the clean set may be repaired; all are then made again
        started = not any(writer.target.glob(f"*/*/{CHECKSUMS}"))
        if words := first_difference(found, wanted, skip=(CONTENTS,) if started else ()):
            raise GramLoopError(f"{writer.target} was made with the {words}; choose another folder")
        writer.keep = found.get(CONTENTS) == wanted[CONTENTS]
    elif is_taken(writer.target):
        raise GramLoopError(f"{writer.target} is not empty and has no {MANIFEST}; choose a new folder")


def _write(
    writer: SuiteWriter,
    workers: int,
    on_chunk: Callable[[Condition, int], None],
    on_finished: Callable[[Condition], None],
) -> WriteOutcome:
    outcome, images = WriteOutcome(), len(writer.clean)
    todo = []
    for condition in writer.opened.conditions:
        if (writer.target / condition.key / CHECKSUMS).is_file():
            outcome.skipped.append(condition)
            on_chunk(condition, images)
        else:
            todo.append(condition)
    chunks = ((each, start, min(start + CHUNK, images)) for each in todo for start in range(0, images, CHUNK))
    parts: dict[Condition, dict[int, Written]] = {condition: {} for condition in todo}
    for (condition, start, _), written in _results(writer, chunks, workers):
        parts[condition][start] = written
        outcome.made, outcome.found = outcome.made + written.made, outcome.found + written.found
        outcome.failures += [f"{condition}: {failure}" for failure in written.failures]
        on_chunk(condition, written.made + written.found + len(written.failures))
        if len(parts[condition]) == -(-images // CHUNK):
            done = [part for _, part in sorted(parts.pop(condition).items())]
            if not any(part.failures for part in done):
                writer.finish(condition, _joined(done))
                outcome.finished.append(condition)
                on_finished(condition)
    return outcome


def _joined(parts: list[Written]) -> Written:
    checksums = {name: digest for part in parts for name, digest in part.checksums.items()}
    return Written(checksums, [entry for part in parts for entry in part.annotations])


def _results(writer: SuiteWriter, chunks: Iterator[Chunk], workers: int) -> Iterator[tuple[Chunk, Written]]:
    if workers == 1:
        for chunk in chunks:
            yield chunk, writer.write_images(*chunk)
        return
    with process_pool(workers, process_context(), _start_worker, writer) as pool:
        yield from run_unordered(pool, _run_chunk, chunks)


_writer: SuiteWriter | None = None


def _start_worker(writer: SuiteWriter) -> None:
    global _writer
    _writer = writer


def _run_chunk(condition: Condition, start: int, stop: int) -> Written:
    assert _writer is not None
    return _writer.write_images(condition, start, stop)


def _array_file(values: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()
