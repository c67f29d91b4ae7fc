"""Images without annotations: any folder of them, or the images of an annotated set."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from gramloop.data.checks import Check, Problems, image_problem, orientation, read_headers
from gramloop.data.readers.semantic import IMAGE_SUFFIXES
from gramloop.data.records import DataSet, Record, TaskName
from gramloop.util.files import files_below


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
    paths = [
        path
        for path in files_below(folder)
        if path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".")
    ]
    if not paths:
        problems.add(f"{folder} holds no images ({', '.join(IMAGE_SUFFIXES)})")
    names = [path.relative_to(folder) for path in paths]
    often = Counter(name.with_suffix("") for name in names)
    records = []
    for path, name, header in zip(paths, names, read_headers(paths, check, "images"), strict=True):
        problems.add(image_problem(path, header))
        size = header.size if orientation(path) < 5 else header.size[::-1]
        key = name.with_suffix("") if often[name.with_suffix("")] == 1 else name
        records.append(Record(key.as_posix(), path, name.as_posix(), *size, upright=True))
    problems.raise_if_any()
    return DataSet(folder, task, tuple(records), {})


def without_annotations(data: DataSet, task: TaskName) -> DataSet:
    """The images of an annotated set alone."""
    bare = tuple(replace(record, label_path=None, annotations=None) for record in data)
    return DataSet(data.root, task, bare, {})
