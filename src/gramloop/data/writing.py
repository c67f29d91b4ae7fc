"""Writing a generated suite to disk: over all cores, resumable after a kill, with checksums.

Every condition becomes ``<condition>/<severity>/`` in the layout of the released -P sets (``coco/…`` and
``ade/ADEChallengeData2016/…`` for the public sets, the plain layouts for one's own). A file is whole or
absent; a condition is finished when its checksum file is there and the manifest names it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from gramloop.data.checks import Problems
from gramloop.data.coco import read_coco
from gramloop.data.coco_panoptic import maps_folder, segments_info
from gramloop.data.contents import ChangedFileError, listed_checksums, refuse_change, with_contents
from gramloop.data.depth import FORMAT_FILE, moved_depth
from gramloop.data.manifest import (
    CHECKSUMS,
    MANIFEST,
    Manifest,
    checksum_lines,
    fingerprint,
    frost_fingerprint,
    package_versions,
    read_manifest,
    refuse_difference,
    sha256,
)
from gramloop.data.object_masks import moved_annotations
from gramloop.data.opening import OpenSuite
from gramloop.data.records import Annotation, Record
from gramloop.data.segment_maps import segments_png
from gramloop.data.semantic import ADE20K_CLASS_FILE, ADE20K_FOLDER, CLASS_FILE
from gramloop.data.shifted import ShiftedRecord, encode_labels, shift_record
from gramloop.data.suites import Condition
from gramloop.data.verifying import PARTIAL, damaged_files, is_listed, noted, read_digest, relisted, size_of
from gramloop.errors import GramLoopError
from gramloop.shifts.seeds import RECIPE_VERSION
from gramloop.util.files import UnwritableError, atomic_write, is_taken, remove_leftovers


@dataclass
class Written:
    """What became of some images of a condition."""

    checksums: list[tuple[str, str]] = field(
        default_factory=list
    )  # path below the condition's folder, sha256
    annotations: list[Annotation] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)  # files that were there, and were not right
    made: int = 0
    found: int = 0

    def store(self, folder: Path, relative: str, data: bytes) -> bool:
        """See that a file holds these bytes; whether it had to be written."""
        path, digest = folder / relative, sha256(data)
        self.checksums.append((relative, digest))
        before = read_digest(path)
        if before == digest:
            return False
        if before:
            self.replaced.append(str(path))
        atomic_write(path, data)
        return True

    def add(self, other: Written) -> None:
        """Take over the results of another part."""
        self.checksums += other.checksums
        self.annotations += other.annotations
        self.failures += other.failures
        self.replaced += other.replaced
        self.made += other.made
        self.found += other.found


class SuiteWriter:
    """Knows where each file of a suite goes and what is in it; sent once to every worker."""

    def __init__(self, opened: OpenSuite, target: Path) -> None:
        if opened.clean is None:
            raise GramLoopError(
                f"{opened.root} holds shifted sets already; a clean set is needed to make them from"
            )
        self.opened, self.target = opened, target
        self.clean, _ = with_contents(opened.clean, len(opened.clean))
        self.suffix = f".{opened.encoding}"
        self.known: dict[str, dict[str, str]] = {}  # of unfinished conditions: files with their checksums
        self._refuse_target()
        self._refuse_clashes()

    def _refuse_target(self) -> None:
        source, place = self.opened.root.resolve(), self.target.resolve()
        if place == source or source in place.parents:
            raise GramLoopError(
                f"the target {self.target} lies in the source {self.opened.root}; choose a folder outside it"
            )

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
        """The image's name below the folder of images, with the suffix of the chosen format."""
        return PurePosixPath(record.name).with_suffix(self.suffix).as_posix()

    @property
    def prefix(self) -> str:
        """Where a set lies below its condition's folder."""
        public = {"coco": "coco/", "ade20k": f"ade/{ADE20K_FOLDER}/"}
        return public.get(self.opened.suite.base, "")

    @property
    def images_folder(self) -> str:
        """The folder of images below the condition's folder."""
        if self._in_coco_format:
            return f"{self.prefix}{self._coco_split()}/"
        return f"{self.prefix}images/{self._semantic_split()}/"

    @property
    def _in_coco_format(self) -> bool:
        return self.clean.task in ("detection", "instance", "panoptic")

    def _coco_split(self) -> str:
        file = self.clean.annotation_file
        kind, _, split = file.stem.partition("_") if file else ("", "", "")
        return split if split and kind in ("instances", "panoptic") else "images"

    @property
    def _coco_name(self) -> str:
        """The annotation file below the condition's folder, without its suffix."""
        kind = "panoptic" if self.clean.task == "panoptic" else "instances"
        return f"{self.prefix}annotations/{kind}_{self._coco_split()}"

    def _semantic_split(self) -> str:
        return "validation" if self.opened.suite.base == "ade20k" else self.opened.options.split

    def write_images(self, condition: Condition, start: int, stop: int) -> Written:
        """Write the images (and label pictures) of one part of a condition.

        A file that is there is kept if its checksum is known and right; otherwise it is made again and compared.
        """
        shift, written = self.opened.shift(condition), Written()
        for record in self.clean[start:stop]:
            shifted = shift_record(record, shift)
            try:
                refuse_change(shifted)
                if shift.moves:
                    written.annotations += self._moved_annotations(shifted)
                self._write_image(shifted, condition, written)
            except (UnwritableError, ChangedFileError):  # no other image would fare better
                raise
            except GramLoopError as error:
                written.failures.append(str(error))
        return written

    def _moved_annotations(self, record: ShiftedRecord) -> Iterable[Annotation]:
        """What the annotation file says of an image whose pixels moved."""
        if self.clean.task == "detection":
            return record.shown_annotations()
        if self.clean.task == "panoptic":
            infos = segments_info(record.segments())
            entry = {"image_id": record.image_id, "file_name": self._map_name(record)}
            return [{**entry, "segments_info": infos}]
        if self.clean.task == "instance" and record.shift is not None:
            affine = record.shift.affine(record)
            return moved_annotations(record.annotations or (), affine, record.height, record.width)
        return ()

    def _write_image(self, record: ShiftedRecord, condition: Condition, written: Written) -> None:
        folder = self.target / condition.key
        image = f"{self.images_folder}{self.file_name(record)}"
        if self.clean.task == "panoptic":
            written.store(folder, *self._segments_file(record))
        elif record.label_path is not None and record.depth_format is not None:
            written.store(folder, *self._depth_file(record))
        elif record.label_path is not None and record.classes is not None:
            labels = f"{self.prefix}annotations/{self._semantic_split()}/{record.image_id}"
            if record.shift is not None and record.shift.moves:
                data = encode_labels(record.classes.to_values(record.labels()))
                written.store(folder, f"{labels}.png", data)
            else:
                written.store(folder, labels + record.label_path.suffix, record.label_path.read_bytes())
        known = self.known.get(condition.key, {}).get(image)
        if known is not None and read_digest(folder / image) == known:
            written.checksums.append((image, known))
            written.found += 1
        elif written.store(folder, image, record.encoded()):
            written.made += 1
        else:
            written.found += 1

    def _segments_file(self, record: ShiftedRecord) -> tuple[str, bytes]:
        """The segments of one image: its own file, or where they moved another."""
        assert record.label_path is not None
        moved = record.shift is not None and record.shift.moves
        data = segments_png(record.segments().ids) if moved else record.label_path.read_bytes()
        return f"{self._coco_name}/{self._map_name(record)}", data

    def _map_name(self, record: Record) -> str:
        assert record.label_path is not None
        assert self.clean.annotation_file is not None
        return record.label_path.relative_to(maps_folder(self.clean.annotation_file)).as_posix()

    def _depth_file(self, record: ShiftedRecord) -> tuple[str, bytes]:
        """The depth of one image: its own file, or where it moved an array of metres."""
        assert record.label_path is not None
        name = f"depth/{self._semantic_split()}/{PurePosixPath(record.name).with_suffix('')}"
        if record.shift is not None and record.shift.moves:
            return f"{name}.npy", moved_depth(record)
        return name + record.label_path.suffix, record.label_path.read_bytes()

    def _format_file(self, condition: Condition) -> tuple[str, bytes]:
        stored = self.clean[0].depth_format
        assert stored is not None
        if self.opened.shift(condition).moves:
            stored = replace(stored, crop="none")  # it was cropped before it moved
        return FORMAT_FILE, (json.dumps(asdict(stored)) + "\n").encode()

    def finish(self, condition: Condition, written: Written, recorded: str | None) -> tuple[str, int]:
        """Write what belongs to the whole condition; the checksum of its checksums, and its size in bytes.

        Where it was finished before, ``recorded`` is what came out then, and must come out again.
        """
        folder = self.target / condition.key
        if self._in_coco_format:
            moves = self.opened.shift(condition).moves
            path = f"{self._coco_name}.json"
            data = self._annotation_file(written.annotations if moves else None)
            written.store(folder, path, data)
        elif self.clean.task == "depth":
            written.store(folder, *self._format_file(condition))
        else:
            name, data = self._class_file()
            written.store(folder, f"{self.prefix}{name}", data)
        lines = checksum_lines(written.checksums)
        if recorded not in (None, sha256(lines)):
            raise GramLoopError(
                f"{folder} was made again, and is not what {MANIFEST} says that it was; choose another folder, or delete "
                "it and its entry there"
            )
        atomic_write(folder / CHECKSUMS, lines)
        (folder / PARTIAL).unlink(missing_ok=True)
        return sha256(lines), size_of(folder, (name for name, _ in written.checksums))

    def is_finished(self, condition: Condition, manifest: Manifest, full: bool) -> bool:
        """Whether a condition is whole; if not, what is known of its files is taken down for `write_images`."""
        key = condition.key
        folder, recorded = self.target / key, manifest.conditions.get(key)
        if recorded is not None and is_listed(folder, recorded):
            if not damaged_files(folder, manifest.sizes.get(key), full):
                return True
            listed = listed_checksums(folder).items()
            self.known[key] = {path.relative_to(folder).as_posix(): digest for path, digest in listed}
            return False
        self.known[key] = relisted(folder, recorded) or noted(folder)
        return False

    def _annotation_file(self, moved: list[Annotation] | None) -> bytes:
        assert self.clean.annotation_file is not None
        content: dict[str, Any] = read_coco(self.clean.annotation_file)
        names = {record.image_id: self.file_name(record) for record in self.clean}
        content["images"] = [{**entry, "file_name": names[entry["id"]]} for entry in content["images"]]
        if moved is None and self.clean.task == "panoptic":
            return json.dumps(content, separators=(",", ":")).encode()
        if moved is None:
            moved = [annotation for record in self.clean for annotation in record.annotations or ()]
        content["annotations"] = moved
        return json.dumps(content, separators=(",", ":")).encode()

    def _class_file(self) -> tuple[str, bytes]:
        published = self.clean.root / ADE20K_CLASS_FILE
        if self.opened.suite.base == "ade20k" and published.is_file():
            return ADE20K_CLASS_FILE, published.read_bytes()
        classes = self.clean[0].classes
        assert classes is not None
        pairs = zip(classes.values, classes.names, strict=True)
        return CLASS_FILE, "".join(f"{value} {name}\n" for value, name in pairs).encode()


def check_target(opened: OpenSuite, target: Path) -> Manifest:
    """The manifest to go on from: the one of the target if it fits, else a new one; nothing is written."""
    assert opened.clean is not None
    wanted = Manifest(
        suite=opened.suite.name,
        recipe_version=RECIPE_VERSION,
        encoding=opened.encoding,
        source=fingerprint(opened.clean),
        images=len(opened.clean),
        frost=frost_fingerprint(opened.frost_textures),
        packages=package_versions(),
        contents=with_contents(opened.clean, len(opened.clean))[1],
    )
    found = read_manifest(target)
    if found is not None:
        refuse_difference(found, wanted, target)
    elif is_taken(target):
        raise GramLoopError(f"{target} is not empty and has no {MANIFEST}; choose a new folder")
    if found is not None and not found.conditions:  # an image may have been put right meanwhile
        return replace(found, contents=wanted.contents)
    return found or wanted


def begin(target: Path, manifest: Manifest) -> None:
    """Write the manifest where it is new, and remove what a kill left half-written."""
    if read_manifest(target) != manifest:
        manifest.write(target)
        for noted_before in target.rglob(PARTIAL):  # of other images
            noted_before.unlink()
    remove_leftovers(target, alone=True)
