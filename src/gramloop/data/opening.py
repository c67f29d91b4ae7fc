"""Opening a set or a suite on a folder: shifted images are read where they exist and generated where they do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from gramloop.data.checks import CHECKSUMS, raise_problems, with_listed_checksums
from gramloop.data.coco import COCO_CATEGORY_IDS, STUFF_IDS, coco_root, open_coco, open_panoptic
from gramloop.data.folders import (
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
    open: Callable[[Path, str, ReadOptions], DataSet]  # root, base set, options


def _open_semantic(root: Path, base: str, options: ReadOptions) -> DataSet:
    if base == "ade20k":
        return open_semantic(root, classes=ade20k_classes(root))
    return open_semantic(root, split=options.split, classes=options.classes)


def _open_depth(root: Path, base: str, options: ReadOptions) -> DataSet:
    return open_depth(root, split=options.split, stored={"nyu": NYU, "kitti": KITTI}.get(base))


READERS = {
    "semantic": Reader(semantic_root, _open_semantic),
    "detection": Reader(coco_root, lambda root, *_: open_coco(root)),
    "instance": Reader(coco_root, lambda root, *_: replace(open_coco(root), task="instance")),
    "panoptic": Reader(lambda root: coco_root(root, "panoptic"), lambda root, *_: open_panoptic(root)),
    "depth": Reader(depth_root, _open_depth),
}
"""The readers by kind of annotations; a task with files of its own adds one."""
_BUILT_IN = frozenset(READERS)
_OBJECTS = ("detection", "instance", "panoptic")


@dataclass(frozen=True)
class PublicSet:
    """What a public set is known to hold; None where nothing is known."""

    images: int | None = None
    objects: int | None = None
    category_ids: frozenset[int] | None = None


COCO_VAL2017 = PublicSet(5000, 36781, COCO_CATEGORY_IDS)
COCO_O = PublicSet(6782, 26624, COCO_CATEGORY_IDS)
PUBLIC_SETS = {  # by base set and kind of annotations, the default first
    "ade20k": {"semantic": PublicSet(images=2000)},
    "coco": {
        "detection": COCO_VAL2017,
        "instance": COCO_VAL2017,
        "panoptic": PublicSet(5000, None, COCO_CATEGORY_IDS | STUFF_IDS),
    },
    "nyu": {"depth": PublicSet()},
    "kitti": {"depth": PublicSet()},
}


def check_public(where: Path, sets: Sequence[DataSet], known: PublicSet, options: ReadOptions) -> None:
    """Refuse sets that do not hold together what a public one does; only categories count where a part is accepted."""
    problems = []
    for ids in (set(data.categories) for data in sets):
        if (wanted := known.category_ids) is not None and ids != wanted:
            lacking, unknown = sorted(wanted - ids), sorted(ids - wanted)
            problems.append(
                f"its category ids are not COCO's {len(wanted)} (lacking {lacking}, unknown {unknown})"
            )
    if not options.partial:
        counts = {
            "images": (known.images, sum(map(len, sets))),
            "objects": (known.objects, sum(len(one.annotations or ()) for data in sets for one in data)),
        }
        for what, (expected, found) in counts.items():
            if expected not in (None, found):
                problems.append(f"it holds {found} {what}, not {expected}")
    raise_problems(where, problems)


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
    options = options or ReadOptions()
    opened = OpenSuite(suite, root, chosen, options, encoding=encoding, frost_textures=frost_textures)
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
    offered = PUBLIC_SETS.get(base, {})
    kind = options.task or next(iter(offered), None) or _guess_kind(root)
    if kind not in READERS:
        raise GramLoopError(f"no reader of {kind!r} annotations; there are {', '.join(READERS)}")
    if offered and kind in _BUILT_IN and kind not in offered:
        kind = next(iter(offered))
    data = READERS[kind].open(root, base, options)
    # when images move, some objects vanish, so that their number is not known
    known = offered.get(kind, PublicSet())
    check_public(root, [data], replace(known, objects=None) if moved else known, options)
    return data


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
    opened = {each: open_coco(base / each.key) for each in suite.conditions}
    known = (
        COCO_O if len(opened) == len(suite.suite.conditions) else PublicSet(category_ids=COCO_CATEGORY_IDS)
    )
    check_public(base, list(opened.values()), known, suite.options)
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
