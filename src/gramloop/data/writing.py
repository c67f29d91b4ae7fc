"""Writing a generated suite to disk: over all cores, resumable after a kill, with checksums.

Every condition becomes ``<condition>/<severity>/`` in the layout of the released -P sets (``coco/…`` and
``ade/ADEChallengeData2016/…`` for the public sets, the plain layouts for custom ones). A file is whole or absent, and a
condition is finished when its checksums are there, which are written last. A folder that was damaged afterwards is to be
deleted and written again.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
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
    DataSet,
    Encoding,
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
from gramloop.util.files import (
    UnwritableError,
    atomic_write,
    is_taken,
    locked,
    read_digest,
    remove_leftovers,
    sha256,
)
from gramloop.util.json_files import first_difference
from gramloop.util.processes import in_order, worker_count

CHUNK = 8  # images per call of a worker
# where a public set lies in a condition's folder
_PREFIXES = {"coco": "coco/", "ade20k": f"ade/{ADE20K_FOLDER}/"}


@dataclass
class WriteOutcome:
    """What a run did, or a worker with some images of a condition."""

    made: int = 0  # images generated now
    found: int = 0  # images of unfinished conditions that an earlier run had written
    skipped: list[Condition] = field(default_factory=list)  # finished before
    finished: list[Condition] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    checksums: dict[str, str] = field(default_factory=dict)  # sha256 by path in the condition's folder
    annotations: list[Annotation] = field(default_factory=list)

    def store(self, path: Path, name: str, make: Callable[[], bytes]) -> bool:
        """Make and write the file of a name, unless it is there; whether it was made."""
        if kept := path.is_file():
            self.checksums[name] = read_digest(path)
        else:
            data = make()
            self.checksums[name] = sha256(data)
            atomic_write(path, data)
        return not kept


@dataclass(frozen=True)
class SuiteLayout:
    """Where the files of a suite go, and in which form."""

    target: Path
    encoding: Encoding
    prefix: str  # of a public set, in a condition's folder
    split: str
    coco_name: str  # of the annotation file without suffix, in a condition's folder; empty without one
    maps: Path | None  # where the clean set's segments lie, if it has some
    run_lengths: bool  # for moved masks; outlines lie within a pixel

    @classmethod
    def of(cls, opened: OpenSuite, clean: DataSet, target: Path) -> SuiteLayout:
        """The layout of a public set, or of a custom one."""
        base, file = opened.suite.base, clean.annotation_file
        prefix, maps, coco_name = _PREFIXES.get(base, ""), None, ""
        split = "validation" if base == "ade20k" else opened.options.split
        if file is not None:
            kind, _, part = file.stem.partition("_")
            split = part if part and kind in ("instances", "panoptic") else "images"
            if clean[0].label_path is not None:
                maps = maps_folder(file)
            coco_name = f"{prefix}annotations/{'instances' if maps is None else 'panoptic'}_{split}"
        return cls(target, opened.encoding, prefix, split, coco_name, maps, clean.task == "instance")

    def image_name(self, record: Record) -> str:
        """An image's name in the folder of images, with the suffix of the chosen format."""
        return PurePosixPath(record.name).with_suffix(f".{self.encoding}").as_posix()

    def image_path(self, record: Record) -> str:
        """An image's path in a condition's folder."""
        folder = self.split if self.coco_name else f"images/{self.split}"
        return f"{self.prefix}{folder}/{self.image_name(record)}"

    def map_name(self, record: Record) -> str:
        """The name of a file of segments, as the annotation file has it."""
        assert record.label_path is not None
        assert self.maps is not None
        return record.label_path.relative_to(self.maps).as_posix()

    def label_file(self, record: Record, source: Path, moved: bool) -> tuple[str, Callable[[], bytes]]:
        """Path and content of the file of segments, depth or labels: the same file, or its content moved."""
        if self.maps is not None:
            name = f"{self.coco_name}/{self.map_name(record)}"
            return name, (lambda: segments_png(record.segments().ids)) if moved else source.read_bytes
        depth, classes = record.depth_format, record.classes
        if depth is not None:
            name = f"depth/{self.split}/{PurePosixPath(record.name).with_suffix('')}"
        else:
            name = f"{self.prefix}annotations/{self.split}/{record.image_id}"
        if moved and depth is not None:
            return f"{name}.npy", lambda: _array_file(record.depth().metres * np.float32(depth.scale))
        if moved and classes is not None:
            return f"{name}.png", lambda: encode(classes.to_values(record.labels()))
        return name + source.suffix, source.read_bytes

    def moved_entries(self, record: Record, shift: Shift) -> list[Annotation]:
        """What the annotation file lists of an image whose pixels moved."""
        if self.maps is not None:
            entry = {"image_id": record.image_id, "file_name": self.map_name(record)}
            return [{**entry, "segments_info": segments_info(record.segments())}]
        return list(shift.annotations(record.annotations or (), record, run_lengths=self.run_lengths))

    def set_file(
        self, clean: DataSet, moved: bool, annotations: list[Annotation]
    ) -> tuple[str, bytes] | None:
        """The one file that describes all images: annotations, depth format or class list; photographs have none."""
        first, published = clean[0], clean.root / ADE20K_CLASS_FILE
        if self.coco_name:
            return f"{self.coco_name}.json", self._annotation_file(clean, annotations if moved else None)
        if first.depth_format is not None:
            # it was cropped before it moved
            stored = replace(first.depth_format, crop="none") if moved else first.depth_format
            return FORMAT_FILE, (json.dumps(asdict(stored)) + "\n").encode()
        if self.prefix and published.is_file():
            return f"{self.prefix}{ADE20K_CLASS_FILE}", published.read_bytes()
        if first.classes is None:
            return None
        pairs = zip(first.classes.values, first.classes.names, strict=True)
        return f"{self.prefix}{CLASS_FILE}", "".join(f"{value} {name}\n" for value, name in pairs).encode()

    def _annotation_file(self, clean: DataSet, moved: list[Annotation] | None) -> bytes:
        assert clean.annotation_file is not None
        content: dict[str, Any] = read_coco(clean.annotation_file)
        names = {record.image_id: self.image_name(record) for record in clean}
        content["images"] = [{**entry, "file_name": names[entry["id"]]} for entry in content["images"]]
        if moved is not None:
            content["annotations"] = moved
        elif self.maps is None:
            content["annotations"] = [entry for record in clean for entry in record.annotations or ()]
        return json.dumps(content, separators=(",", ":")).encode()


def write_images(layout: SuiteLayout, shift: Shift, records: Sequence[Record]) -> WriteOutcome:
    """Write some clean images of a condition and their label files; what is there is kept."""
    written, folder = WriteOutcome(), layout.target / shift.condition.key
    for clean in records:
        try:
            refuse_change(clean)
            record = shift_record(clean, shift)
            if shift.moves and layout.coco_name:
                written.annotations += layout.moved_entries(record, shift)
            if record.label_path is not None:
                path, make = layout.label_file(record, record.label_path, shift.moves)
                written.store(folder / path, path, make)
            path = layout.image_path(record)
            made = written.store(folder / path, path, partial(_image_file, clean, shift))
            written.made, written.found = written.made + made, written.found + (not made)
        except (UnwritableError, ChangedFileError):  # no other image would fare better
            raise
        except GramLoopError as error:
            written.failures.append(str(error))
    return written


def _image_file(clean: Record, shift: Shift) -> bytes:
    pixels = decode_image(clean.path, upright=clean.upright)
    return encode(shift.pixels(pixels, clean), shift.encoding)


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
    if opened.clean is None:
        raise GramLoopError(
            f"{opened.root} holds shifted sets already; a clean set is needed to make them from"
        )
    source, place = opened.root.resolve(), target.resolve()
    if place == source or source in place.parents:
        raise GramLoopError(
            f"the target {target} lies in the source {opened.root}; choose a folder outside it"
        )
    clean, contents = with_contents(opened.clean, len(opened.clean))
    layout = SuiteLayout.of(opened, clean, target)
    _refuse_clashes(layout, clean)
    manifest = {  # everything that decides the bytes of the suite
        "suite": opened.suite.name,
        "recipe version": RECIPE_VERSION,
        "image format": opened.encoding,
        "frost textures": frost_fingerprint(opened.frost_textures),
        "packages, which decide the pixels": package_versions(),
        "checksum of the clean set": contents,
    }
    try:
        _refuse_other_suite(target, manifest)  # which stays untouched
        with locked(target):
            atomic_write(target / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())
            remove_leftovers(target, alone=True)
            return _write(opened, clean, layout, workers, on_chunk, on_finished)
    except OSError as error:
        raise GramLoopError(f"cannot continue writing to {target}: {error}") from error


def _refuse_clashes(layout: SuiteLayout, clean: DataSet) -> None:
    taken: dict[str, str] = {}
    for record in clean:
        name = layout.image_name(record)
        if name in taken:
            raise GramLoopError(
                f"cannot use {clean.root}: {taken[name]} and {record.name} would both become {name}"
            )
        taken[name] = record.name


def _refuse_other_suite(target: Path, manifest: dict[str, Any]) -> None:
    """Refuse a folder that holds anything but this suite of this clean set."""
    if (target / MANIFEST).is_file():
        if words := first_difference(read_manifest(target), manifest):
            raise GramLoopError(f"{target} was made with the {words}; choose another folder")
    elif is_taken(target):
        raise GramLoopError(f"{target} is not empty and has no {MANIFEST}; choose a new folder")


def _write(
    opened: OpenSuite,
    clean: DataSet,
    layout: SuiteLayout,
    workers: int,
    on_chunk: Callable[[Condition, int], None],
    on_finished: Callable[[Condition], None],
) -> WriteOutcome:
    outcome = WriteOutcome()
    for condition in opened.conditions:
        if (layout.target / condition.key / CHECKSUMS).is_file():
            outcome.skipped.append(condition)
            on_chunk(condition, len(clean))
    todo = [each for each in opened.conditions if each not in outcome.skipped]
    parts = [clean[start : start + CHUNK] for start in range(0, len(clean), CHUNK)]
    calls = ((layout, opened.shift(condition), part) for condition in todo for part in parts)
    results = in_order(write_images, calls, workers)
    for condition in todo:
        whole = WriteOutcome()
        for _, written in zip(parts, results, strict=False):
            whole.checksums |= written.checksums
            whole.annotations += written.annotations
            whole.failures += (f"{condition}: {failure}" for failure in written.failures)
            outcome.made, outcome.found = outcome.made + written.made, outcome.found + written.found
            on_chunk(condition, written.made + written.found + len(written.failures))
        outcome.failures += whole.failures
        if not whole.failures:
            _finish(opened.shift(condition), clean, layout, whole)
            outcome.finished.append(condition)
            on_finished(condition)
    return outcome


def _finish(shift: Shift, clean: DataSet, layout: SuiteLayout, written: WriteOutcome) -> None:
    """Write what belongs to a whole condition, its checksums last."""
    folder = layout.target / shift.condition.key
    described = layout.set_file(clean, shift.moves, written.annotations)
    if described is not None:
        name, data = described
        atomic_write(folder / name, data)
        written.checksums[name] = sha256(data)
    atomic_write(folder / CHECKSUMS, checksum_lines(written.checksums))


def _array_file(values: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()
