"""Opening a set or a suite on a folder: shifted images are read where they exist and generated where they do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from gramloop.data.checks import CHECKSUMS, raise_problems, with_listed_checksums
from gramloop.data.coco import (
    COCO_CATEGORY_IDS,
    COCO_VAL2017,
    PANOPTIC_VAL2017,
    Expected,
    coco_root,
    open_coco,
    open_panoptic,
)
from gramloop.data.folders import (
    ADE20K_IMAGES,
    DEFAULT_SPLIT,
    KITTI,
    LABEL_PICTURES,
    NYU,
    ade20k_classes,
    depth_root,
    open_depth,
    open_photos,
    open_semantic,
    semantic_root,
)
from gramloop.data.records import DataSet, Encoding, Record, Shift, TaskName, shift_data_set
from gramloop.data.suites import SEVERITIES, Condition, Suite, find_suite
from gramloop.errors import GramLoopError
from gramloop.shifts.common import LEAST_SIDE
from gramloop.shifts.geometry import GEOMETRIC
from gramloop.util.json_files import checked, read_json

Origin = Literal["auto", "folders", "generated"]
MANIFEST = "manifest.json"  # of a written suite: everything that decides its bytes
COCO_O_FOLDER = "ood_coco"
COCO_O_IMAGES = 6782
COCO_O_BOXES = 26624


@dataclass(frozen=True)
class ReadOptions:
    """How a set is read: which part, which class list, whether complete and with its labels."""

    split: str = DEFAULT_SPLIT
    classes: Path | None = None
    task: TaskName | None = None  # the kind of annotations, a name of READERS; by default what there is
    partial: bool = False  # accept other counts than those of the public set
    labels: bool = True  # False reads images alone, and any folder of them is a set


@dataclass(frozen=True)
class Reader:
    """How sets with one kind of annotations are found and opened."""

    find: Callable[[Path], Path | None]  # the folder at or below a root that holds such a set
    open: Callable[[Path, str, ReadOptions, bool], DataSet]  # root, base set, options, annotations moved


def _open_semantic(root: Path, base: str, options: ReadOptions, moved: bool) -> DataSet:
    if base != "ade20k":
        return open_semantic(root, split=options.split, classes=options.classes)
    images = None if options.partial else ADE20K_IMAGES
    return open_semantic(root, classes=ade20k_classes(root), expected_images=images)


def _open_objects(root: Path, base: str, options: ReadOptions, moved: bool) -> DataSet:
    # when images move, some annotations vanish, so that their number is not known
    whole = replace(COCO_VAL2017, annotations=None) if moved else COCO_VAL2017
    return open_coco(root, expected=_of_coco(base, options, whole))


def _open_instance(root: Path, base: str, options: ReadOptions, moved: bool) -> DataSet:
    return replace(_open_objects(root, base, options, moved), task="instance")


def _open_panoptic(root: Path, base: str, options: ReadOptions, moved: bool) -> DataSet:
    return open_panoptic(root, expected=_of_coco(base, options, PANOPTIC_VAL2017))


def _of_coco(base: str, options: ReadOptions, whole: Expected) -> Expected | None:
    if base != "coco":
        return None
    return Expected(category_ids=whole.category_ids) if options.partial else whole


def _open_depth(root: Path, base: str, options: ReadOptions, moved: bool) -> DataSet:
    return open_depth(root, split=options.split, stored={"nyu": NYU, "kitti": KITTI}.get(base))


READERS = {
    "semantic": Reader(semantic_root, _open_semantic),
    "detection": Reader(coco_root, _open_objects),
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
        folder, moved = self.root / condition.key, condition.name in GEOMETRIC
        return with_listed_checksums(open_set(self.suite.base, folder, self.options, moved=moved), folder)

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
    suite, root = find_suite(name), Path(root)
    if not root.is_dir():
        raise GramLoopError(f"the folder {root} does not exist")
    if origin not in get_args(Origin):
        raise GramLoopError(f"the origin must be auto, folders or generated, not {origin!r}")
    chosen = suite.select(conditions, severities)
    if origin == "auto":
        origin = "folders" if any((root / condition.key).is_dir() for condition in chosen) else "generated"
    opened = OpenSuite(
        suite, root, chosen, options or ReadOptions(), encoding=encoding, frost_textures=frost_textures
    )
    return _with_data(opened, origin)


def _with_data(opened: OpenSuite, origin: Origin) -> OpenSuite:
    suite, root, options = opened.suite, opened.root, opened.options
    if suite.kind == "clean":
        return replace(opened, ready={opened.conditions[0]: open_set(suite.base, root, options)})
    if suite.kind == "o":
        return replace(opened, ready=_open_domains(opened))
    if origin == "folders":
        _check_folders(opened, root)
        return opened
    opened = replace(opened, clean=open_set(suite.base, root, options))
    _check_generation(opened)
    return opened


def open_set(base: str, root: Path, options: ReadOptions, *, moved: bool = False) -> DataSet:
    """Open one plain set.

    Args:
        base: a public set, whose counts are checked, or the name of a custom one.
        root: its folder.
        options: how it is read.
        moved: the images moved and objects may have vanished, so that there are fewer annotated than in the public set.
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
    task = options.task or "semantic"
    semantic = semantic_root(root)
    if task == "panoptic" and coco_root(root, "panoptic") is not None:
        data = open_panoptic(root)
    elif coco_root(root) is not None and (task in _OBJECTS or semantic is None):
        data = open_coco(root)
    else:
        return open_photos(
            root if semantic is None else LABEL_PICTURES.split(semantic, options.split)[0], task
        )
    bare = tuple(replace(record, label_path=None, annotations=None) for record in data)
    return DataSet(data.root, task, bare, {})


def _check_generation(opened: OpenSuite) -> None:
    """Try every shift once, so that an impossible severity or texture folder is reported before the work."""
    probe = np.zeros((LEAST_SIDE, LEAST_SIDE, 3), dtype=np.uint8)
    square = Record("probe", opened.root, "probe", LEAST_SIDE, LEAST_SIDE)
    for condition in opened.conditions:
        if condition.severity > max(SEVERITIES) or opened.frost_textures is not None:
            opened.shift(condition).pixels(probe, square)
    small = [each for each in opened.clean or () if min(each.height, each.width) < LEAST_SIDE]
    raise_problems(
        opened.root,
        [f"{one.path} is {one.width} x {one.height}; shifts need {LEAST_SIDE} px a side" for one in small],
    )


def _open_domains(suite: OpenSuite) -> dict[Condition, DataSet]:
    """The domains of COCO-O, which must hold what the public set does unless a part is accepted."""
    base = suite.root / COCO_O_FOLDER if (suite.root / COCO_O_FOLDER).is_dir() else suite.root
    _check_folders(suite, base)
    expected = Expected(category_ids=COCO_CATEGORY_IDS)
    opened = {each: open_coco(base / each.key, expected=expected) for each in suite.conditions}
    images = sum(len(data) for data in opened.values())
    boxes = sum(len(record.coco_entries()) for data in opened.values() for record in data)
    whole = len(suite.conditions) == len(suite.suite.conditions) and not suite.options.partial
    if whole and (images, boxes) != (COCO_O_IMAGES, COCO_O_BOXES):
        raise GramLoopError(
            f"cannot use {base}: its domains list {images} images and {boxes} boxes, "
            f"not {COCO_O_IMAGES} and {COCO_O_BOXES}"
        )
    return opened


def _check_folders(opened: OpenSuite, root: Path) -> None:
    """Refuse folders of conditions that are missing or not finished."""
    problems, written = [], (root / MANIFEST).is_file()
    if written and (found := read_manifest(root).get("suite")) != opened.suite.name:
        raise GramLoopError(f"{root} holds the suite {found}, not {opened.suite.name}")
    for condition in opened.conditions:
        folder = root / condition.key
        if not folder.is_dir():
            problems.append(f"the folder {condition.key} of {opened.suite.name} is missing")
        elif written and not (folder / CHECKSUMS).is_file():
            problems.append(f"{condition.key} is not finished; run the same gramloop corrupt again")
    raise_problems(root, problems)


def read_manifest(folder: Path) -> dict[str, Any]:
    """What decided the bytes of a written suite."""
    path, what = folder / MANIFEST, "a manifest written by gramloop corrupt"
    return checked(read_json(path, what), dict[str, Any], str(path), what)
