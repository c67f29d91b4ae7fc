"""Data sets of images and label pictures: ADE20K's SceneParse150 and custom sets in its layout.

Layout: ``images/<split>/**.jpg`` (or .png, …) and ``annotations/<split>/**.png`` (or ``labels/``), paired by
relative path without suffix. The class list is ``classes.txt``, one name per line: names stand for the label
values 1, 2, 3, … and 0 means unlabelled, as in ADE20K; if every line begins with a number, that number is
the label value instead. The values 0, 255 and 65535 are ignored where the list does not name them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gramloop.data.checks import Check, Problems, check_records
from gramloop.data.records import ClassList, DataSet, Record
from gramloop.errors import GramLoopError
from gramloop.util.files import files_below

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")
LABEL_SUFFIXES = (".png", ".tif", ".tiff", ".bmp")
DEFAULT_SPLIT = "validation"
KNOWN_SPLITS = ("training", "validation", "train", "val", "test")
LABEL_FOLDERS = ("annotations", "labels")
CLASS_FILE = "classes.txt"
ADE20K_FOLDER = "ADEChallengeData2016"
ADE20K_CLASS_FILE = "objectInfo150.txt"
ADE20K_CLASSES = 150
ADE20K_IMAGES = 2000


def semantic_root(root: Path) -> Path | None:
    """The folder at or below ``root`` that holds images and label pictures, or None."""
    for folder in (root, root / ADE20K_FOLDER, root / "ade" / ADE20K_FOLDER):
        if (folder / "images").is_dir() and any((folder / name).is_dir() for name in LABEL_FOLDERS):
            return folder
    return None


def open_semantic(
    root: Path | str,
    *,
    split: str = DEFAULT_SPLIT,
    classes: ClassList | Path | str | None = None,
    check: Check = "headers",
    expected_images: int | None = None,
) -> DataSet:
    """Open a set of images and label pictures, and check it whole.

    Args:
        root: the folder with ``images`` and ``annotations``, or one that holds ``ADEChallengeData2016``.
        split: the subfolder of both; a set without subfolders is opened whole.
        classes: a class list, a file of one, or None for the one in the set's folder.
        check: ``headers`` opens every file, ``decode`` reads every pixel of it.
        expected_images: a count that must be met.

    Returns:
        A data set whose records have ``labels``.
    """
    root = Path(root)
    folder = semantic_root(root)
    if folder is None:
        raise GramLoopError(f"{root} is not a set of images and labels: it needs images/ and annotations/")
    class_list = classes if isinstance(classes, ClassList) else _class_list(folder, classes)
    images, labels = split_folders(folder, split)
    problems = Problems(folder)
    pairs = paired_files(images, labels, LABEL_SUFFIXES, "label picture", problems)
    if not pairs and not problems.found:
        problems.add(f"{images} holds no images")
    if expected_images is not None and len(pairs) != expected_images:
        problems.add(f"{images} holds {len(pairs)} images, not {expected_images}")
    records = [replace(record, classes=class_list) for record in pairs]
    checked = check_records(records, check, problems)
    problems.raise_if_any()
    return DataSet(folder, "semantic", checked, dict(enumerate(class_list.names)))


def split_folders(folder: Path, split: str) -> tuple[Path, Path]:
    """The folders of images and of label pictures of a split."""
    labels = next(folder / name for name in LABEL_FOLDERS if (folder / name).is_dir())
    return split_folder(folder, (folder / "images", labels), split)


def split_folder(folder: Path, parts: tuple[Path, Path], split: str) -> tuple[Path, Path]:
    """The folders of images and labels of one split of a set; both whole where it has no splits."""
    images, labels = parts
    if (images / split).is_dir() and (labels / split).is_dir():
        return images / split, labels / split
    subfolders = sorted(child.name for child in images.iterdir() if child.is_dir())
    if split != DEFAULT_SPLIT or any(name in KNOWN_SPLITS for name in subfolders):
        held = ", ".join(subfolders) or "no subfolders"
        raise GramLoopError(
            f"{folder} has no split {split!r} with images and labels; {images.name}/ holds {held}"
        )
    return images, labels


def paired_files(
    images: Path,
    labels: Path,
    suffixes: Sequence[str],
    what: str,
    problems: Problems,
    other_name: tuple[str, str] = ("", ""),
) -> list[Record]:
    """Records of the images below a folder with the files of labels that have their names, without their sizes.

    Args:
        images: folder of the images.
        labels: folder of the files of labels.
        suffixes: of the files of labels.
        what: a file of labels is called in messages.
        problems: collects files without a partner.
        other_name: what the name of an image has, and what the name of its labels may have instead.
    """
    pictures = _files_by_key(images, IMAGE_SUFFIXES, problems)
    found = _files_by_key(labels, suffixes, problems)
    keys = {key: key if key in found else key.replace(*other_name) for key in pictures}
    records = []
    for key, path in sorted(pictures.items()):
        if keys[key] in found:
            name = path.relative_to(images).as_posix()
            records.append(Record(key, path, name, 0, 0, found[keys[key]]))
        else:
            problems.add(f"{path} has no {what} {labels.name}/{key}.png")
    for key in sorted(found.keys() - set(keys.values())):
        problems.add(f"{found[key]} has no image")
    return records


def _files_by_key(folder: Path, suffixes: Sequence[str], problems: Problems) -> dict[str, Path]:
    """The files below a folder by their relative path without suffix, sorted."""
    found: dict[str, Path] = {}
    for path in visible_files(folder, suffixes):
        key = path.relative_to(folder).with_suffix("").as_posix()
        if key in found:
            problems.add(f"{found[key]} and {path.name} claim the same name")
        found[key] = path
    return found


def visible_files(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    """The files below a folder with these suffixes, sorted, without those whose names begin with a dot."""
    files = files_below(folder)
    return [path for path in files if path.suffix.lower() in suffixes and not path.name.startswith(".")]


def _class_list(folder: Path, named: Path | str | None) -> ClassList:
    usual = (folder / CLASS_FILE, folder / ADE20K_CLASS_FILE)
    path = Path(named) if named is not None else next((each for each in usual if each.is_file()), None)
    if path is None:
        raise GramLoopError(f"{folder / CLASS_FILE} is missing: it lists the class names, one per line")
    return read_class_list(path)


def ade20k_classes(root: Path) -> ClassList:
    """The 150 classes of SceneParse150, with the set's own names where it ships them."""
    path = (semantic_root(root) or root) / ADE20K_CLASS_FILE
    if not path.is_file():
        return read_class_list(Path(__file__).with_name("ade20k.txt"))
    classes = read_class_list(path)
    if len(classes.names) != ADE20K_CLASSES:
        raise GramLoopError(f"{path} lists {len(classes.names)} classes, not {ADE20K_CLASSES}")
    return classes


def read_class_list(path: Path) -> ClassList:
    """Read one name per line, one number and name per line, or ADE20K's table of the classes."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise GramLoopError(f"cannot read the class list {path}: {error}") from error
    if path.name == ADE20K_CLASS_FILE:  # a heading, then rows of index, ratios, counts and names between tabs
        columns = (line.split("\t") for line in lines[1:] if line)
        lines = [f"{row[0]} {row[-1]}" for row in columns]
    lines = [line for line in lines if line and not line.startswith("#")]
    if not lines:
        raise GramLoopError(f"the class list {path} is empty; it lists the class names, one per line")
    words = [line.split(maxsplit=1) for line in lines]
    if all(len(pair) == 2 and pair[0].isdecimal() for pair in words):
        return ClassList(tuple(name for _, name in words), tuple(int(number) for number, _ in words))
    return ClassList.numbered_from_one(lines)
