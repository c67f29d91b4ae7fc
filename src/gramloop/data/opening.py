"""Opening a suite on a folder: shifted images are read where they exist and made where they do not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from gramloop.data.checks import Check, Problems
from gramloop.data.coco import COCO_CATEGORIES_ONLY, COCO_VAL2017, Expected, coco_root, open_coco
from gramloop.data.coco_panoptic import (
    PANOPTIC_CATEGORIES_ONLY,
    PANOPTIC_VAL2017,
    open_panoptic,
    panoptic_root,
)
from gramloop.data.contents import listed_checksums
from gramloop.data.depth import FORMATS, depth_root, open_depth
from gramloop.data.manifest import read_manifest
from gramloop.data.photos import open_unlabelled
from gramloop.data.records import DataSet, Record, Task
from gramloop.data.semantic import ADE20K_IMAGES, DEFAULT_SPLIT, ade20k_classes, open_semantic, semantic_root
from gramloop.data.shifted import Encoding, Shift, shift_data_set
from gramloop.data.suites import SEVERITIES, Condition, Suite, find_suite
from gramloop.data.verifying import condition_problems
from gramloop.errors import GramLoopError
from gramloop.shifts.common import LEAST_SIDE
from gramloop.shifts.geometry import GEOMETRIC

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
    task: Task | None = None
    check: Check = "headers"
    partial: bool = False  # accept other counts than those of the public set
    labels: bool = True  # False reads images alone, and any folder of them is a set
    verify: Verify = "quick"  # how a suite that was written with checksums is compared with them


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
        expected = _expected_under(self.suite, condition)
        return open_set(self.suite.base, self.root / condition.key, self.options, expected)

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
        name: a name of the table (``coco-c``, ``ade20k-p``, …) or one's own (``my-set-c``).
        root: a clean set, or a folder of shifted sets as ``<condition>/<severity>/…``.
        conditions: some conditions by name; all of the suite by default.
        severities: some severities; 1 to 5 by default.
        origin: ``folders`` and ``generated`` insist; ``auto`` reads where a condition's folder exists.
        options: how the set is read.
        encoding: for generated images, see :class:`gramloop.data.shifted.Shift`.
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
    in_folders = any((root / condition.key).is_dir() for condition in chosen)
    if origin == "folders" or (origin == "auto" and in_folders):
        _check_folders(suite, root, chosen, options.verify)
        return opened
    opened = replace(opened, clean=open_set(suite.base, root, options))
    _check_generation(opened)
    return opened


def open_set(base: str, root: Path, options: ReadOptions, expected: Expected | None = None) -> DataSet:
    """Open one plain set: COCO, ADE20K, one's own in either layout, or images without labels."""
    if not options.labels:
        return open_unlabelled(root, options.task or "semantic", split=options.split, check=options.check)
    if base == "ade20k":
        images = None if options.partial else ADE20K_IMAGES
        classes = ade20k_classes(root)
        return open_semantic(root, classes=classes, check=options.check, expected_images=images)
    if base == "coco" and options.task == "panoptic":
        found = PANOPTIC_CATEGORIES_ONLY if options.partial else PANOPTIC_VAL2017
        return open_panoptic(root, check=options.check, expected=found)
    if base == "coco":
        expected = COCO_CATEGORIES_ONLY if options.partial else expected or COCO_VAL2017
        return _with_boxes_or_masks(open_coco(root, check=options.check, expected=expected), options.task)
    if base in FORMATS:
        return open_depth(root, split=options.split, stored=FORMATS[base], check=options.check)
    task = _own_task(root, options)
    if task == "depth":
        return open_depth(root, split=options.split, check=options.check)
    if task == "semantic":
        return open_semantic(root, split=options.split, classes=options.classes, check=options.check)
    if task == "panoptic":
        return open_panoptic(root, check=options.check)
    return _with_boxes_or_masks(open_coco(root, check=options.check), task)


def _with_boxes_or_masks(data: DataSet, task: Task | None) -> DataSet:
    """The set for detection, or for the masks of the same objects."""
    return replace(data, task="instance") if task == "instance" else data


def _own_task(root: Path, options: ReadOptions) -> Task:
    if options.task is not None:
        return options.task
    semantic, detection = semantic_root(root) is not None, coco_root(root) is not None
    if semantic and (detection or panoptic_root(root) is not None):
        raise GramLoopError(
            f"{root} has label pictures and COCO annotations; choose the task semantic, detection, instance or panoptic"
        )
    if not semantic and not detection:
        if depth_root(root) is not None:
            return "depth"
        if panoptic_root(root) is not None:
            return "panoptic"
        raise GramLoopError(
            f"{root} is no data set: it needs images/ with annotations/ of label pictures, "
            "annotations/instances_*.json or panoptic_*.json in COCO format, or depth/; photographs without labels need --truth clean"
        )
    return "semantic" if semantic else "detection"


def _expected_under(suite: Suite, condition: Condition) -> Expected | None:
    if suite.base != "coco":
        return None
    # under a move of the image some annotations vanish, so their number is not known
    return replace(COCO_VAL2017, annotations=None) if condition.name in GEOMETRIC else COCO_VAL2017


def _check_generation(opened: OpenSuite) -> None:
    """Ask every shift once, so that an impossible severity or texture folder is told before the work."""
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
        boxes = sum(len(record.shown_annotations()) for data in opened.values() for record in data)
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
