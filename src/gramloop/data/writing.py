"""Writing a generated suite to disk: over all cores, resumable after a kill, with checksums.

Every condition becomes ``<condition>/<severity>/`` in the layout of the released -P sets (``coco/…`` and
``ade/ADEChallengeData2016/…`` for the public sets, the plain layouts for custom ones). A file is whole or
absent; a condition is finished when its checksum file is there and the manifest names it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from gramloop.data.checks import ChangedFileError, Problems, refuse_change, with_contents
from gramloop.data.manifest import (
    CHECKSUMS,
    MANIFEST,
    Manifest,
    checksum_lines,
    damaged_files,
    frost_fingerprint,
    listed_checksums,
    package_versions,
    present_digest,
    read_manifest,
    refuse_difference,
)
from gramloop.data.opening import OpenSuite
from gramloop.data.readers.coco import read_coco
from gramloop.data.readers.depth import FORMAT_FILE
from gramloop.data.readers.panoptic import maps_folder
from gramloop.data.readers.semantic import ADE20K_CLASS_FILE, ADE20K_FOLDER, CLASS_FILE
from gramloop.data.records import Record, decode_image
from gramloop.data.shifted import Shift, encode, shift_record
from gramloop.data.suites import Condition
from gramloop.data.truth import Annotation, segments_info, segments_png
from gramloop.errors import GramLoopError
from gramloop.shifts.seeds import RECIPE_VERSION
from gramloop.util.checksums import sha256
from gramloop.util.files import UnwritableError, atomic_write, is_taken, locked, remove_leftovers
from gramloop.util.processes import process_context, process_pool, run_unordered, worker_count

CHUNK = 8  # images per call of a worker
_PREFIXES = {
    "coco": "coco/",
    "ade20k": f"ade/{ADE20K_FOLDER}/",
}  # where a public set lies in a condition's folder

Chunk = tuple[Condition, int, int]


@dataclass
class WriteOutcome:
    """What a run did."""

    manifest: Manifest
    made: int = 0  # images generated now
    found: int = 0  # images of unfinished conditions that an earlier run had written
    skipped: list[Condition] = field(default_factory=list)  # finished before
    finished: list[Condition] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)  # damaged files, made again


@dataclass
class Written:
    """What became of some images of a condition."""

    checksums: list[tuple[str, str]] = field(default_factory=list)  # path in the condition's folder, sha256
    annotations: list[Annotation] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    made: int = 0
    found: int = 0

    def store(self, folder: Path, relative: str, data: bytes) -> bool:
        """Make sure that a file holds these bytes; whether it had to be written."""
        path, digest = folder / relative, sha256(data)
        self.checksums.append((relative, digest))
        before = present_digest(path)
        if before == digest:
            return False
        if before:
            self.replaced.append(str(path))
        atomic_write(path, data)
        return True

    def add(self, other: Written) -> None:
        """Add the results of another part."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


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
        self.known: dict[Path, str] = {}  # files of unfinished conditions with their checksums
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
        problems = Problems(self.opened.root)
        taken: dict[str, str] = {}
        for record in self.clean:
            name = self.file_name(record)
            if name in taken:
                problems.add(f"{taken[name]} and {record.name} would both become {name}")
            taken[name] = record.name
        problems.raise_if_any()

    def file_name(self, record: Record) -> str:
        """The image's name in the folder of images, with the suffix of the chosen format."""
        return PurePosixPath(record.name).with_suffix(f".{self.opened.encoding}").as_posix()

    def write_images(self, condition: Condition, start: int, stop: int) -> Written:
        """Write the images (and label files) of one part of a condition.

        A file that is there is kept if its checksum is known and right; otherwise it is made again and compared.
        """
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
            written.store(folder, *self._label_file(record, record.label_path, shift.moves))
        image = f"{self.images_folder}{self.file_name(record)}"
        known = self.known.get(folder / image)
        if known is not None and present_digest(folder / image) == known:
            written.checksums.append((image, known))
            written.found += 1
            return
        pixels = decode_image(record.path, upright=record.upright)
        new = written.store(folder, image, shift.encoded(pixels, record))
        written.made, written.found = written.made + new, written.found + (not new)

    def _moved_entries(self, record: Record, shift: Shift) -> Iterable[Annotation]:
        """What the annotation file lists of an image whose pixels moved."""
        if self.has_segments:
            entry = {"image_id": record.image_id, "file_name": self._map_name(record)}
            return [{**entry, "segments_info": segments_info(record.segments())}]
        exact = self.clean.task == "instance"  # where outlines lie within a pixel
        return shift.annotations(record.annotations or (), record, run_lengths=exact)

    def _label_file(self, record: Record, path: Path, moved: bool) -> tuple[str, bytes]:
        """Name and content of the file of segments, depth or labels: the same file, or its content moved."""
        if self.has_segments:
            data = segments_png(record.segments().ids) if moved else path.read_bytes()
            return f"{self.coco_name}/{self._map_name(record)}", data
        if record.depth_format is not None:
            name = f"depth/{self.split}/{PurePosixPath(record.name).with_suffix('')}"
            if not moved:
                return name + path.suffix, path.read_bytes()
            buffer = io.BytesIO()
            np.save(buffer, record.depth().metres * np.float32(record.depth_format.scale))
            return f"{name}.npy", buffer.getvalue()
        name = f"{self.prefix}annotations/{self.split}/{record.image_id}"
        if not moved or record.classes is None:
            return name + path.suffix, path.read_bytes()
        return f"{name}.png", encode(record.classes.to_values(record.labels()))

    def _map_name(self, record: Record) -> str:
        assert record.label_path is not None
        assert self.clean.annotation_file is not None
        return record.label_path.relative_to(maps_folder(self.clean.annotation_file)).as_posix()

    def finish(self, condition: Condition, written: Written, recorded: str | None) -> tuple[str, int]:
        """Write what belongs to the whole condition; the checksum of its checksums, and its size in bytes.

        Where it was finished before, ``recorded`` is what came out then, and must come out again.
        """
        folder = self.target / condition.key
        described = self._set_file(self.opened.shift(condition).moves, written.annotations)
        if described is not None:
            written.store(folder, *described)
        lines = checksum_lines(written.checksums)
        if recorded not in (None, sha256(lines)):
            raise GramLoopError(
                f"{folder} was made again, and differs from what {MANIFEST} recorded; choose another folder, or delete "
                "it and its entry there"
            )
        atomic_write(folder / CHECKSUMS, lines)
        return sha256(lines), sum((folder / name).stat().st_size for name, _ in written.checksums)

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

    def is_finished(self, condition: Condition, manifest: Manifest, full: bool) -> bool:
        """Whether a condition is whole; if not, `known` gets what is known of its files."""
        key, folder = condition.key, self.target / condition.key
        recorded = manifest.conditions.get(key)
        listed = recorded is not None and present_digest(folder / CHECKSUMS) == recorded
        if listed and not damaged_files(folder, manifest.sizes.get(key), full):
            return True
        self.known |= listed_checksums(folder)
        return False

    def begin(self) -> Manifest:
        """The manifest to resume from: the one of the target if it fits, else a new one; nothing is written."""
        wanted = Manifest(
            suite=self.opened.suite.name,
            recipe_version=RECIPE_VERSION,
            encoding=self.opened.encoding,
            images=len(self.clean),
            frost=frost_fingerprint(self.opened.frost_textures),
            packages=package_versions(),
            contents=self.contents,
        )
        found = read_manifest(self.target)
        if found is not None:
            refuse_difference(found, wanted, self.target)
        elif is_taken(self.target):
            raise GramLoopError(f"{self.target} is not empty and has no {MANIFEST}; choose a new folder")
        # until a condition is finished, images may be repaired
        return wanted if found is None or not found.conditions else found


def write_suite(
    opened: OpenSuite,
    target: Path,
    *,
    workers: int | None = None,
    verify: bool = False,
    on_chunk: Callable[[Condition, int], None] | None = None,
    on_finished: Callable[[Condition], None] | None = None,
) -> WriteOutcome:
    """Write all opened conditions to a folder; what an earlier run finished is kept, and repaired where damaged.

    Args:
        opened: a suite over a clean set.
        target: the folder.
        workers: processes; one per core by default.
        verify: compare every file of finished conditions with its checksum, not only sizes and a sample.
        on_chunk: called with a condition and a number of images whenever these are done.
        on_finished: called with a condition when it is finished.
    """
    workers = worker_count(workers)
    writer = SuiteWriter(opened, target)
    try:
        outcome = WriteOutcome(writer.begin())  # what is refused stays untouched
        with locked(target):
            _write(writer, outcome, workers, verify, on_chunk or _ignore, on_finished or _ignore)
        return outcome
    except OSError as error:
        raise GramLoopError(f"cannot continue writing to {target}: {error}") from error


def _write(
    writer: SuiteWriter,
    outcome: WriteOutcome,
    workers: int,
    verify: bool,
    on_chunk: Callable[[Condition, int], None],
    on_finished: Callable[[Condition], None],
) -> None:
    target, images = writer.target, len(writer.clean)
    if read_manifest(target) != outcome.manifest:
        outcome.manifest.write(target)
        for listing in target.rglob(CHECKSUMS):  # of other images
            listing.unlink()
    remove_leftovers(target, alone=True)
    wanted = writer.opened.conditions
    outcome.skipped = [each for each in wanted if writer.is_finished(each, outcome.manifest, verify)]
    for condition in outcome.skipped:
        on_chunk(condition, images)
    todo = [each for each in wanted if each not in outcome.skipped]
    chunks = ((each, start, min(start + CHUNK, images)) for each in todo for start in range(0, images, CHUNK))
    parts: dict[Condition, dict[int, Written]] = {condition: {} for condition in todo}
    for (condition, start, _), written in _results(writer, chunks, workers):
        parts[condition][start] = written
        if written.checksums:  # so that a later start knows what is complete
            with (target / condition.key / CHECKSUMS).open("ab") as stream:
                stream.write(checksum_lines(written.checksums))
        outcome.made, outcome.found = outcome.made + written.made, outcome.found + written.found
        on_chunk(condition, written.made + written.found + len(written.failures))
        if len(parts[condition]) == -(-images // CHUNK):
            _finish(writer, condition, parts.pop(condition), outcome)
            on_finished(condition)


def _ignore(*_: object) -> None:
    pass


def _finish(
    writer: SuiteWriter, condition: Condition, parts: dict[int, Written], outcome: WriteOutcome
) -> None:
    whole = Written()
    for start in sorted(parts):
        whole.add(parts[start])
    if whole.failures:
        outcome.failures += [f"{condition}: {failure}" for failure in whole.failures]
        return
    recorded = outcome.manifest.conditions.get(condition.key)
    checksum, size = writer.finish(condition, whole, recorded)
    outcome.manifest = outcome.manifest.with_condition(condition.key, checksum, size)
    outcome.manifest.write(writer.target)
    outcome.replaced += whole.replaced
    outcome.finished.append(condition)


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
