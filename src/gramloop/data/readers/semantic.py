"""Data sets of images and label pictures: ADE20K's SceneParse150 and custom sets in its layout.

Layout: ``images/<split>/**.jpg`` (or .png, …) and ``annotations/<split>/**.png`` (or ``labels/``), paired by
relative path without suffix. The class list is ``classes.txt``, one name per line: names stand for the label
values 1, 2, 3, … and 0 means unlabelled, as in ADE20K; if every line begins with a number, that number is
the label value instead. The values 0, 255 and 65535 are ignored where the list does not name them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gramloop.data.checks import Check, Problems, check_annotations, image_problem, read_headers, size_problem
from gramloop.data.records import LABEL_MODES, ClassList, DataSet, Record
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
    images_folder, labels_folder = split_folders(folder, split)
    class_list = classes if isinstance(classes, ClassList) else _class_list(folder, classes)
    problems = Problems(folder)
    images = files_by_key(images_folder, IMAGE_SUFFIXES, problems)
    labels = files_by_key(labels_folder, LABEL_SUFFIXES, problems)
    if not images:
        problems.add(f"{images_folder} holds no images")
    if expected_images is not None and len(images) != expected_images:
        problems.add(f"{images_folder} holds {len(images)} images, not {expected_images}")
    pairs = _pairs(images, labels, labels_folder.name, problems)
    records = _records(pairs, images_folder, class_list, check, problems)
    problems.raise_if_any()
    if check == "decode":
        check_annotations(records, "labels", "label values", problems)
    return DataSet(folder, "semantic", tuple(records), dict(enumerate(class_list.names)))


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


def files_by_key(folder: Path, suffixes: Sequence[str], problems: Problems) -> dict[str, Path]:
    """The files below a folder by their relative path without suffix, sorted."""
    found: dict[str, Path] = {}
    for path in files_below(folder):
        if path.suffix.lower() not in suffixes or path.name.startswith("."):
            continue
        key = path.relative_to(folder).with_suffix("").as_posix()
        if key in found:
            problems.add(f"{found[key]} and {path.name} claim the same name")
        found[key] = path
    return found


def _pairs(
    images: dict[str, Path], labels: dict[str, Path], folder: str, problems: Problems
) -> dict[str, tuple[Path, Path]]:
    for key in sorted(images.keys() - labels.keys()):
        problems.add(f"{images[key]} has no label picture {folder}/{key}.png")
    for key in sorted(labels.keys() - images.keys()):
        problems.add(f"{labels[key]} has no image")
    return {key: (images[key], labels[key]) for key in sorted(images.keys() & labels.keys())}


def _records(
    pairs: dict[str, tuple[Path, Path]], folder: Path, classes: ClassList, check: Check, problems: Problems
) -> list[Record]:
    headers = (
        read_headers([image for image, _ in pairs.values()], check, "images"),
        read_headers([label for _, label in pairs.values()], check, "labels"),
    )
    records: list[Record] = []
    for (key, (image, label)), header, of_label in zip(pairs.items(), *headers, strict=True):
        problems.add(image_problem(image, header))
        if of_label.problem:
            problems.add(of_label.problem)
        elif of_label.mode not in LABEL_MODES:
            problems.add(f"{label} is a {of_label.mode} picture; labels need one channel of class numbers")
        elif not header.problem:
            problems.add(size_problem(label, of_label.size, header.size))
        name = image.relative_to(folder).as_posix()
        records.append(Record(key, image, name, *header.size, label, classes))
    return records


def _class_list(folder: Path, named: Path | str | None) -> ClassList:
    if named is not None:
        return read_class_list(Path(named))
    if (folder / CLASS_FILE).is_file():
        return read_class_list(folder / CLASS_FILE)
    if (folder / ADE20K_CLASS_FILE).is_file():
        return _read_object_info(folder / ADE20K_CLASS_FILE)
    raise GramLoopError(f"{folder / CLASS_FILE} is missing: it lists the class names, one per line")


def ade20k_classes(root: Path) -> ClassList:
    """The 150 classes of SceneParse150, with the set's own names where it has them."""
    folder = semantic_root(root)
    if folder is not None and (folder / ADE20K_CLASS_FILE).is_file():
        classes = _read_object_info(folder / ADE20K_CLASS_FILE)
        if len(classes.names) != ADE20K_CLASSES:
            raise GramLoopError(
                f"{folder / ADE20K_CLASS_FILE} lists {len(classes.names)} classes, not {ADE20K_CLASSES}"
            )
        return classes
    return read_class_list(Path(__file__).with_name("ade20k.txt"))


def read_class_list(path: Path) -> ClassList:
    """Read one name per line, or one number and name per line."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise GramLoopError(f"cannot read the class list {path}: {error}") from error
    lines = [line for line in lines if line and not line.startswith("#")]
    if not lines:
        raise GramLoopError(f"the class list {path} is empty; it lists the class names, one per line")
    words = [line.split(maxsplit=1) for line in lines]
    if all(len(pair) == 2 and pair[0].isdecimal() for pair in words):
        return ClassList(tuple(name for _, name in words), tuple(int(number) for number, _ in words))
    return ClassList.numbered_from_one(lines)


def _read_object_info(path: Path) -> ClassList:
    """ADE20K's own table: a heading, then rows of tab-separated index, ratios, counts and names."""
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:] if line.strip()]
    try:
        numbers = tuple(int(row[0]) for row in rows)
    except ValueError as error:
        raise GramLoopError(f"{path} is not ADE20K's class table: {error}") from error
    return ClassList(tuple(row[-1].strip() for row in rows), numbers)
