"""Photographs without labels: any folder of images, or the images of a labelled set whose labels are left alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from gramloop.data.checks import Check, Problems, image_problem, orientation, read_headers
from gramloop.data.coco import coco_root, open_coco
from gramloop.data.coco_panoptic import open_panoptic, panoptic_root
from gramloop.data.records import DataSet, Record, Task
from gramloop.data.semantic import DEFAULT_SPLIT, IMAGE_SUFFIXES, semantic_root, split_folders
from gramloop.util.files import files_below


def open_photos(folder: Path | str, task: Task = "semantic", *, check: Check = "headers") -> DataSet:
    """Every image at or below a folder, without truth and without classes.

    Args:
        folder: where they lie. An image is called by its path below the folder, without the suffix where that is
            enough, as in a set of label pictures: the same image then gets the same shifts.
        task: what a model is to say about them.
        check: ``headers`` looks into every file, ``decode`` reads every pixel of it.
    """
    folder = Path(folder)
    problems = Problems(folder)
    paths = [
        path
        for path in files_below(folder)
        if path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".")
    ]
    if not paths:
        problems.add(f"{folder} holds no images ({', '.join(IMAGE_SUFFIXES)})")
    names = [path.relative_to(folder).as_posix() for path in paths]
    stems = [path.relative_to(folder).with_suffix("").as_posix() for path in paths]
    often = Counter(stems)
    records = []
    headers = read_headers(paths, check, "images")
    for path, name, stem, header in zip(paths, names, stems, headers, strict=True):
        if problem := image_problem(path, header):
            problems.add(problem)
        size = (header.height, header.width)
        high, wide = size if orientation(path) < 5 else size[::-1]
        records.append(Record(stem if often[stem] == 1 else name, path, name, high, wide, upright=True))
    problems.raise_if_any()
    return DataSet(folder, task, tuple(records), {})


def open_unlabelled(
    root: Path, task: Task, *, split: str = DEFAULT_SPLIT, check: Check = "headers"
) -> DataSet:
    """The images of a folder in any layout; of a labelled set the same ones that it would show with its labels."""
    semantic, coco = semantic_root(root), coco_root(root)
    panoptic = task == "panoptic" and panoptic_root(root) is not None
    boxes = coco is not None and (task in ("detection", "instance") or semantic is None)
    if panoptic or boxes:
        found = open_panoptic(root, check=check) if panoptic else open_coco(root, check=check)
        bare = tuple(replace(record, label_path=None, annotations=None) for record in found)
        return DataSet(found.root, task, bare, {})
    if semantic is not None:
        return open_photos(split_folders(semantic, split)[0], task, check=check)
    return open_photos(root, task, check=check)
