"""Opening a set or a suite on a folder: shifted images are read where they exist and generated where they do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from gramloop.data.checks import Check, Problems, check_records
from gramloop.data.manifest import condition_problems, listed_checksums, read_manifest
from gramloop.data.readers.coco import COCO_CATEGORIES_ONLY, COCO_VAL2017, coco_root, open_coco
from gramloop.data.readers.depth import DEPTH_FORMATS, depth_root, open_depth
from gramloop.data.readers.panoptic import PANOPTIC_CATEGORIES_ONLY, PANOPTIC_VAL2017, open_panoptic
from gramloop.data.readers.semantic import (
    ADE20K_IMAGES,
    DEFAULT_SPLIT,
    IMAGE_SUFFIXES,
    ade20k_classes,
    open_semantic,
    semantic_root,
    split_folders,
    visible_files,
)
from gramloop.data.records import DataSet, Record, TaskName
from gramloop.data.shifted import Encoding, Shift, shift_data_set
from gramloop.data.suites import SEVERITIES, Condition, Suite, find_suite
from gramloop.errors import GramLoopError
from gramloop.shifts.common import LEAST_SIDE
from gramloop.shifts.geometry import GEOMETRIC


def open_photos(folder: Path | str, task: TaskName = "semantic", *, check: Check = "headers") -> DataSet:
    """Open every image at or below a folder, without annotations and classes.

    Args:
        folder: where they lie. An image is called by its path below the folder, without the suffix where that is
            unique, as in a set of label pictures: the same image then gets the same shifts.
        task: what a model predicts on them.
        check: ``headers`` opens every file, ``decode`` reads every pixel of it.
    """
    folder = Path(folder)
    problems = Problems(folder)
    paths = visible_files(folder, IMAGE_SUFFIXES)
    if not paths:
        problems.add(f"{folder} holds no images ({', '.join(IMAGE_SUFFIXES)})")
    names = [path.relative_to(folder) for path in paths]
    often = Counter(name.with_suffix("") for name in names)
    keys = [name.with_suffix("") if often[name.with_suffix("")] == 1 else name for name in names]
    records = [
        Record(key.as_posix(), path, name.as_posix(), 0, 0, upright=True)
        for key, path, name in zip(keys, paths, names, strict=True)
    ]
    checked = check_records(records, check, problems)
    problems.raise_if_any()
    return DataSet(folder, task, checked, {})


Origin = Literal["auto", "folders", "generated"]
Verify = Literal["none", "quick", "full"]
COCO_O_FOLDER = "ood_coco"
COCO_O_IMAGES = 6782
COCO_O_BOXES = 26624


@dataclass(frozen=True)
class ReadOptions:
    """How a set is read: which part, which class list, how thoroughly, whether complete and with its labels."""

    split: str = DEFAULT_SPLIT
    classes: Path | None = None
    task: TaskName | None = None  # the kind of annotations, a name of READERS; by default what there is
    check: Check = "headers"
    partial: bool = False  # accept other counts than those of the public set
    labels: bool = True  # False reads images alone, and any folder of them is a set
    verify: Verify = "quick"  # how a suite that was written with checksums is compared with them


@dataclass(frozen=True)
class Reader:
    """How sets with one kind of annotations are found and opened."""

    find: Callable[[Path], Path | None]  # the folder at or below a root that holds such a set
    open: Callable[[Path, str, ReadOptions, bool], DataSet]  # root, base set, options, annotations moved


def _open_semantic(root: Path, base: str, options: ReadOptions, moved: bool) -> DataSet:
    if base != "ade20k":
        return open_semantic(root, split=options.split, classes=options.classes, check=options.check)
    images = None if options.partial else ADE20K_IMAGES
    return open_semantic(root, classes=ade20k_classes(root), check=options.check, expected_images=images)


def _open_coco(root: Path, base: str, options: ReadOptions, moved: bool) -> DataSet:
    if base != "coco":
        return open_coco(root, check=options.check)
    # when images move, some annotations vanish, so that their number is not known
    whole = replace(COCO_VAL2017, annotations=None) if moved else COCO_VAL2017
    return open_coco(root, check=options.check, expected=COCO_CATEGORIES_ONLY if options.partial else whole)


def _open_instance(root: Path, base: str, options: ReadOptions, moved: bool) -> DataSet:
    return replace(_open_coco(root, base, options, moved), task="instance")


def _open_panoptic(root: Path, base: str, options: ReadOptions, moved: bool) -> DataSet:
    public = PANOPTIC_CATEGORIES_ONLY if options.partial else PANOPTIC_VAL2017
    return open_panoptic(root, check=options.check, expected=public if base == "coco" else None)


def _open_depth(root: Path, base: str, options: ReadOptions, moved: bool) -> DataSet:
    return open_depth(root, split=options.split, stored=DEPTH_FORMATS.get(base), check=options.check)


READERS = {
    "semantic": Reader(semantic_root, _open_semantic),
    "detection": Reader(coco_root, _open_coco),
    "instance": Reader(coco_root, _open_instance),
    "panoptic": Reader(lambda root: coco_root(root, "panoptic"), _open_panoptic),
    "depth": Reader(depth_root, _open_depth),
}
"""The readers by kind of annotations; a task with files of its own adds one."""
_BUILT_IN = frozenset(READERS)
_OBJECTS = ("detection", "instance", "panoptic")
_PUBLIC = {"ade20k": ("semantic",), "coco": _OBJECTS, "nyu": ("depth",), "kitti": ("depth",)}  # their kinds


@dataclass(frozen=True)
class OpenSuite:
    """A suite with its data: iterate for (condition, data set) pairs, or open one condition."""

    suite: Suite
    root: Path
    conditions: tuple[Condition, ...]
    options: ReadOptions
    clean: DataSet | None = field(default=None, repr=False)  # what generated conditions are made from
    ready: Mapping[Condition, DataSet] = field(default_factory=dict, repr=False)  # clean, and the domains
    encoding: Encoding = "png"
    frost_textures: Path | None = None

    def __iter__(self) -> Iterator[tuple[Condition, DataSet]]:
        return ((condition, self.open(condition)) for condition in self.conditions)

    def __len__(self) -> int:
        return len(self.conditions)

    def open(self, condition: Condition) -> DataSet:
        """The shifted data set of one condition."""
        if condition not in self.conditions:
            raise GramLoopError(f"the condition {condition} of {self.suite.name} was not opened")
        if condition in self.ready:
            return self.ready[condition]
        if self.clean is not None:
            return shift_data_set(self.clean, self.shift(condition))
        moved = condition.name in GEOMETRIC
        return open_set(self.suite.base, self.root / condition.key, self.options, moved=moved)

    def listed(self, condition: Condition) -> dict[Path, str]:
        """The checksums that a condition brings along, by file."""
        return {} if self.clean is not None else listed_checksums(self.root / condition.key)

    def shift(self, condition: Condition) -> Shift:
        """What is done to each clean image under a generated condition."""
        return Shift(self.suite.name, self.suite.kind, condition, self.encoding, self.frost_textures)


def open_suite(
    name: str,
    root: Path | str,
    *,
    conditions: Sequence[str] | None = None,
    severities: Sequence[int] | None = None,
    origin: Origin = "auto",
    options: ReadOptions | None = None,
    encoding: Encoding = "png",
    frost_textures: Path | None = None,
) -> OpenSuite:
    """Open a suite, or some of its conditions, on a folder.

    Args:
        name: a name of the table (``coco-c``, ``ade20k-p``, …) or a custom one (``my-set-c``).
        root: a clean set, or a folder of shifted sets as ``<condition>/<severity>/…``.
        conditions: some conditions by name; all of the suite by default.
        severities: some severities; 1 to 5 by default.
        origin: ``folders`` reads, ``generated`` generates, ``auto`` reads where a condition's folder exists.
        options: how the set is read.
        encoding: for generated images, see `Shift`.
        frost_textures: a folder of frost pictures, in place of the synthesised ice.
    """
    suite, root, options = find_suite(name), Path(root), options or ReadOptions()
    if not root.is_dir():
        raise GramLoopError(f"the folder {root} does not exist")
    if origin not in ("auto", "folders", "generated"):
        raise GramLoopError(f"the origin must be auto, folders or generated, not {origin!r}")
    chosen = suite.select(conditions, severities)
    opened = OpenSuite(suite, root, chosen, options, None, {}, encoding, frost_textures)
    if suite.kind == "clean":
        return replace(opened, ready={chosen[0]: open_set(suite.base, root, options)})
    if suite.kind == "o":
        return replace(opened, ready=_open_domains(suite, root, chosen, options))
    if origin == "auto":
        origin = "folders" if any((root / condition.key).is_dir() for condition in chosen) else "generated"
    if origin == "folders":
        _check_folders(suite, root, chosen, options.verify)
        return opened
    opened = replace(opened, clean=open_set(suite.base, root, options))
    _check_generation(opened)
    return opened


def open_set(base: str, root: Path, options: ReadOptions, *, moved: bool = False) -> DataSet:
    """Open one plain set.

    Args:
        base: a public set (``coco``, ``ade20k``, ``nyu``, ``kitti``) or any other name.
        root: its folder.
        options: how it is read.
        moved: the images were moved, so that fewer objects may be annotated than in the public set.
    """
    if not options.labels:
        return _open_unlabelled(root, options)
    offered = _PUBLIC.get(base)
    kind = options.task or (_guess_kind(root) if offered is None else offered[0])
    if kind not in READERS:
        raise GramLoopError(f"no reader of {kind!r} annotations; there are {', '.join(READERS)}")
    if offered is not None and kind in _BUILT_IN and kind not in offered:
        kind = offered[0]
    return READERS[kind].open(root, base, options, moved)


def _guess_kind(root: Path) -> TaskName:
    """The kind of annotations that a folder holds."""
    found = [kind for kind, reader in READERS.items() if reader.find(root) is not None]
    if "semantic" in found and any(kind in found for kind in _OBJECTS):
        raise GramLoopError(
            f"{root} has label pictures and COCO annotations; choose the task semantic, detection, instance or panoptic"
        )
    if not found:
        raise GramLoopError(
            f"{root} is not a data set: it needs images/ with annotations/ of label pictures, "
            "annotations/instances_*.json or panoptic_*.json in COCO format, or depth/; photographs without labels need "
            "--truth clean"
        )
    return next(kind for kind in ("semantic", "detection", "depth", "panoptic", *found) if kind in found)


def _open_unlabelled(root: Path, options: ReadOptions) -> DataSet:
    """The images of a folder in any layout; of an annotated set the same ones that it has with its annotations."""
    task, check = options.task or "semantic", options.check
    semantic = semantic_root(root)
    if task == "panoptic" and coco_root(root, "panoptic") is not None:
        data = open_panoptic(root, check=check)
    elif coco_root(root) is not None and (task in _OBJECTS or semantic is None):
        data = open_coco(root, check=check)
    else:
        folder = root if semantic is None else split_folders(semantic, options.split)[0]
        return open_photos(folder, task, check=check)
    bare = tuple(replace(record, label_path=None, annotations=None) for record in data)
    return DataSet(data.root, task, bare, {})


def _check_generation(opened: OpenSuite) -> None:
    """Try every shift once, so that an impossible severity or texture folder is reported before the work."""
    problems = Problems(opened.root)
    probe = np.zeros((LEAST_SIDE, LEAST_SIDE, 3), dtype=np.uint8)
    square = Record("probe", opened.root, "probe", LEAST_SIDE, LEAST_SIDE)
    for condition in opened.conditions:
        if condition.severity > max(SEVERITIES) or opened.frost_textures is not None:
            opened.shift(condition).pixels(probe, square)
    for record in opened.clean or ():
        if min(record.height, record.width) < LEAST_SIDE:
            problems.add(
                f"{record.path} is {record.width} x {record.height}; shifts need {LEAST_SIDE} px a side"
            )
    problems.raise_if_any()


def _open_domains(
    suite: Suite, root: Path, chosen: Sequence[Condition], options: ReadOptions
) -> dict[Condition, DataSet]:
    base = root / COCO_O_FOLDER if (root / COCO_O_FOLDER).is_dir() else root
    _check_folders(suite, base, chosen, options.verify)
    opened = {
        condition: open_coco(base / condition.key, check=options.check, expected=COCO_CATEGORIES_ONLY)
        for condition in chosen
    }
    if len(chosen) == len(suite.conditions) and not options.partial:
        problems = Problems(base)
        images = sum(len(data) for data in opened.values())
        boxes = sum(len(record.coco_entries()) for data in opened.values() for record in data)
        if images != COCO_O_IMAGES:
            problems.add(f"its domains list {images} images, not {COCO_O_IMAGES}")
        if boxes != COCO_O_BOXES:
            problems.add(f"its domains list {boxes} boxes, not {COCO_O_BOXES}")
        problems.raise_if_any()
    return opened


def _check_folders(suite: Suite, root: Path, chosen: Sequence[Condition], verify: Verify) -> None:
    problems = Problems(root)
    manifest = read_manifest(root)
    if manifest is not None and manifest.suite != suite.name:
        raise GramLoopError(f"{root} holds the suite {manifest.suite}, not {suite.name}")
    for condition in chosen:
        if not (root / condition.key).is_dir():
            problems.add(f"the folder {condition.key} of {suite.name} is missing")
        elif manifest is not None and condition.key not in manifest.conditions:
            problems.add(f"{condition.key} is not finished; run the same gramloop corrupt again")
        else:
            for problem in condition_problems(root, condition.key, manifest, verify):
                problems.add(problem)
    problems.raise_if_any()
