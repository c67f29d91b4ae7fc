"""Data sets of images with a depth file for each: NYU Depth v2, KITTI, and custom sets.

A list: a text file in the folder whose lines are ``image depth`` (further columns are skipped, such as the focal length
in the lists of NYU and KITTI), paths relative to the folder.

Folders: ``images/<split>/**`` (or ``rgb``, ``image``) and ``depth/<split>/**`` (or ``depths``, ``groundtruth_depth``),
paired by relative path without suffix, where ``image`` in a name stands for ``groundtruth_depth``, as KITTI has it.

Depth is a PNG of 16 bits or a .npy file; 0 means not known. ``depth.json`` in the folder may say how it is stored:
``{"scale": 1000, "near": 0.001, "far": 80}``; NYU stores 1000 numbers per metre and KITTI 256.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from gramloop.data.checks import Check, Problems, check_records
from gramloop.data.readers.semantic import DEFAULT_SPLIT, paired_files, split_folder
from gramloop.data.records import DataSet, Record
from gramloop.data.truth import DepthFormat
from gramloop.errors import GramLoopError
from gramloop.util.json_files import checked, read_json, refuse_unknown

NYU = DepthFormat(1000.0, 1e-3, 10.0, "eigen")
KITTI = DepthFormat(256.0, 1e-3, 80.0)
DEPTH_FORMATS = {"nyu": NYU, "kitti": KITTI}
FORMAT_FILE = "depth.json"
DEPTH_SUFFIXES = (".png", ".npy")
IMAGE_FOLDERS = ("images", "rgb", "image")
DEPTH_FOLDERS = ("depth", "depths", "groundtruth_depth")
LISTS = ("nyu_test.txt", "test.txt", "list.txt", "eigen_test_files_with_gt.txt", "kitti_test.txt")


def depth_root(root: Path) -> Path | None:
    """The folder if it holds images with depth, or None."""
    return root if _list_file(root) is not None or _folders(root) is not None else None


def open_depth(
    root: Path | str,
    *,
    split: str = DEFAULT_SPLIT,
    stored: DepthFormat | None = None,
    check: Check = "headers",
) -> DataSet:
    """Open a set of images with depth, and check it whole.

    Args:
        root: the folder with a list, or with ``images`` and ``depth``.
        split: the subfolder of both; a set without subfolders is opened whole, and a list has none.
        stored: how depth is stored where ``depth.json`` does not say it; millimetres by default.
        check: ``headers`` opens every file, ``decode`` reads every pixel of it.

    Returns:
        A data set whose records have ``depth``.
    """
    root = Path(root)
    problems = Problems(root)
    depth_format = read_format(root, stored or DepthFormat())
    listed = _list_file(root)
    pairs = list(_listed(listed, problems)) if listed else _paired(root, split, problems)
    if not pairs and not problems.found:
        problems.add("it holds no images with depth")
    problems.raise_if_any()
    records = [replace(record, depth_format=depth_format) for record in pairs]
    found = check_records(records, check, problems)
    problems.raise_if_any()
    return DataSet(root, "depth", found, {})


def read_format(root: Path, otherwise: DepthFormat) -> DepthFormat:
    """How a set stores depth: what its ``depth.json`` says, and the rest as in ``otherwise``."""
    path = root / FORMAT_FILE
    if not path.is_file():
        return otherwise
    what = 'a file that says how depth is stored, such as {"scale": 1000, "far": 10}'
    content, usual = read_json(path, what), asdict(otherwise)
    refuse_unknown(content, usual, str(path), what)
    return checked(
        {**usual, **content} if isinstance(content, dict) else content, DepthFormat, str(path), what
    )


def _list_file(root: Path) -> Path | None:
    return next((root / name for name in LISTS if (root / name).is_file()), None)


def _folders(root: Path) -> tuple[Path, Path] | None:
    images = next((root / name for name in IMAGE_FOLDERS if (root / name).is_dir()), None)
    depth = next((root / name for name in DEPTH_FOLDERS if (root / name).is_dir()), None)
    return None if images is None or depth is None else (images, depth)


def _listed(path: Path, problems: Problems) -> Iterator[Record]:
    taken: set[str] = set()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#") or (len(words) > 1 and words[1] == "None"):
            continue  # KITTI's lists say None where there is no depth
        if len(words) < 2:
            problems.add(f"line {number} of {path} is {line!r}; it needs an image and its depth")
            continue
        name, depth = (word.lstrip("/") for word in words[:2])
        key = Path(name).with_suffix("").as_posix()
        for file in (path.parent / name, path.parent / depth):
            if not file.is_file():
                problems.add(f"{file}, of line {number} of {path.name}, is missing")
        if key in taken:
            problems.add(f"line {number} of {path.name} names {words[0]} again")
        taken.add(key)
        yield Record(key, path.parent / name, name, 0, 0, path.parent / depth)


def _paired(root: Path, split: str, problems: Problems) -> list[Record]:
    folders = _folders(root)
    if folders is None:
        raise GramLoopError(
            f"{root} is not a set of images with depth: it needs images/ and depth/, or a list such as {LISTS[0]}"
        )
    images, depths = split_folder(root, folders, split)
    other_name = ("image", "groundtruth_depth")
    return paired_files(images, depths, DEPTH_SUFFIXES, "depth", problems, other_name)
