"""Data sets of files in folders: images with label pictures (ADE20K), with depth (NYU, KITTI), or photographs alone.

Label pictures: ``images/<split>/**.jpg`` (or .png, …) and ``annotations/<split>/**.png`` (or ``labels/``), paired by
relative path without suffix. The class list is ``classes.txt``, one name per line: names stand for the label
values 1, 2, 3, … and 0 means unlabelled, as in ADE20K; if every line begins with a number, that number is
the label value instead. The values 0, 255 and 65535 are ignored where the list does not name them.

Depth: ``images/<split>/**`` (or ``rgb``, ``image``) and ``depth/<split>/**`` (or ``depths``, ``groundtruth_depth``), where
``image`` in a name stands for ``groundtruth_depth``, as KITTI has it. Or a list: a text file whose lines are
``image depth`` (further columns are skipped, such as the focal length in the lists of NYU and KITTI), paths relative to
the folder. Depth is a PNG of 16 bits or a .npy file; 0 means not known. ``depth.json`` may say how it is stored:
``{"scale": 1000, "near": 0.001, "far": 80}``; NYU stores 1000 numbers per metre and KITTI 256.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from gramloop.data.checks import check_headers, raise_problems
from gramloop.data.records import DataSet, Record, TaskName
from gramloop.data.truth import ClassList, DepthFormat
from gramloop.errors import GramLoopError
from gramloop.util.files import files_below
from gramloop.util.json_files import checked, read_json, refuse_unknown

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")
DEFAULT_SPLIT = "validation"
KNOWN_SPLITS = ("training", "validation", "train", "val", "test")
LISTS = ("nyu_test.txt", "test.txt", "list.txt", "eigen_test_files_with_gt.txt", "kitti_test.txt")
CLASS_FILE = "classes.txt"
FORMAT_FILE = "depth.json"
ADE20K_FOLDER = "ADEChallengeData2016"
ADE20K_CLASS_FILE = "objectInfo150.txt"
ADE20K_CLASSES = 150
NYU = DepthFormat(1000.0, 1e-3, 10.0, "eigen")
KITTI = DepthFormat(256.0, 1e-3, 80.0)


@dataclass(frozen=True)
class Layout:
    """Names of the folders of images and of label files, which have the names of their images."""

    images: tuple[str, ...]
    labels: tuple[str, ...]
    suffixes: tuple[str, ...]  # of label files
    what: str  # a label file is called in messages
    renamed: tuple[str, str] = ("", "")  # a part of an image's name, and what its label file may have instead

    def folders(self, root: Path) -> tuple[Path, Path] | None:
        """The folders of images and of label files, if there are both."""
        images, labels = (
            next((root / name for name in names if (root / name).is_dir()), None)
            for names in (self.images, self.labels)
        )
        return None if images is None or labels is None else (images, labels)

    def split(self, root: Path, split: str) -> tuple[Path, Path]:
        """The folders of one split; both whole where the set has no splits."""
        found = self.folders(root)
        assert found is not None
        images, labels = found
        if (images / split).is_dir() and (labels / split).is_dir():
            return images / split, labels / split
        subfolders = sorted(child.name for child in images.iterdir() if child.is_dir())
        if split != DEFAULT_SPLIT or any(name in KNOWN_SPLITS for name in subfolders):
            held = ", ".join(subfolders) or "no subfolders"
            raise GramLoopError(
                f"{root} has no split {split!r} with images and labels; {images.name}/ holds {held}"
            )
        return images, labels

    def records(self, root: Path, split: str, problems: list[str]) -> list[Record]:
        """The images of a split with their label files; files without a partner are problems."""
        images, labels = self.split(root, split)
        pictures = _files_by_key(images, IMAGE_SUFFIXES, problems)
        found = _files_by_key(labels, self.suffixes, problems)
        keys = {key: key if key in found else key.replace(*self.renamed) for key in pictures}
        lacking = {key for key in pictures if keys[key] not in found}
        problems += (f"{pictures[key]} has no {self.what} {labels.name}/{key}.png" for key in sorted(lacking))
        problems += (f"{found[key]} has no image" for key in sorted(found.keys() - set(keys.values())))
        if not pictures:
            problems.append(f"{images} holds no images")
        return [
            Record(key, path, path.relative_to(images).as_posix(), 0, 0, found[keys[key]])
            for key, path in sorted(pictures.items())
            if key not in lacking
        ]


LABEL_PICTURES = Layout(
    ("images",), ("annotations", "labels"), (".png", ".tif", ".tiff", ".bmp"), "label picture"
)
DEPTH_FILES = Layout(
    ("images", "rgb", "image"),
    ("depth", "depths", "groundtruth_depth"),
    (".png", ".npy"),
    "depth",
    ("image", "groundtruth_depth"),
)


def open_photos(folder: Path | str, task: TaskName = "semantic") -> DataSet:
    """Open every image at or below a folder, without annotations and classes.

    Args:
        folder: where they lie. An image is called by its path below the folder, without the suffix where that is
            unique, as in a set of label pictures: the same image then gets the same shifts.
        task: what a model predicts on them.
    """
    folder = Path(folder)
    names = [path.relative_to(folder) for path in _visible_files(folder, IMAGE_SUFFIXES)]
    problems = [] if names else [f"{folder} holds no images ({', '.join(IMAGE_SUFFIXES)})"]
    often = Counter(name.with_suffix("") for name in names)
    keys = (name.with_suffix("") if often[name.with_suffix("")] == 1 else name for name in names)
    records = tuple(
        Record(key.as_posix(), folder / name, name.as_posix(), 0, 0, upright=True)
        for key, name in zip(keys, names, strict=True)
    )
    return _checked(DataSet(folder, task, records, {}), problems)


def semantic_root(root: Path) -> Path | None:
    """The folder at or below ``root`` that holds images and label pictures, or None."""
    folders = (root, root / ADE20K_FOLDER, root / "ade" / ADE20K_FOLDER)
    return next((each for each in folders if LABEL_PICTURES.folders(each)), None)


def open_semantic(
    root: Path | str,
    *,
    split: str = DEFAULT_SPLIT,
    classes: ClassList | Path | str | None = None,
) -> DataSet:
    """Open a set of images and label pictures, and check it whole.

    Args:
        root: the folder with ``images`` and ``annotations``, or one that holds ``ADEChallengeData2016``.
        split: the subfolder of both; a set without subfolders is opened whole.
        classes: a class list, a file of one, or None for the one in the set's folder.

    Returns:
        A data set whose records have ``labels``.
    """
    folder = semantic_root(Path(root))
    if folder is None:
        raise GramLoopError(f"{root} is not a set of images and labels: it needs images/ and annotations/")
    class_list = classes if isinstance(classes, ClassList) else _class_list(folder, classes)
    problems: list[str] = []
    pairs = LABEL_PICTURES.records(folder, split, problems)
    records = tuple(replace(record, classes=class_list) for record in pairs)
    return _checked(DataSet(folder, "semantic", records, dict(enumerate(class_list.names))), problems)


def depth_root(root: Path) -> Path | None:
    """The folder if it holds images with depth, or None."""
    return root if _list_file(root) or DEPTH_FILES.folders(root) else None


def open_depth(root: Path | str, *, split: str = DEFAULT_SPLIT, stored: DepthFormat | None = None) -> DataSet:
    """Open a set of images with depth, and check it whole.

    Args:
        root: the folder with a list, or with ``images`` and ``depth``.
        split: the subfolder of both; a set without subfolders is opened whole, and a list has none.
        stored: how depth is stored where ``depth.json`` does not say it; millimetres by default.

    Returns:
        A data set whose records have ``depth``.
    """
    root = Path(root)
    if depth_root(root) is None:
        raise GramLoopError(
            f"{root} is not a set of images with depth: it needs images/ and depth/, or a list such as {LISTS[0]}"
        )
    depth_format, problems = read_format(root, stored or DepthFormat()), list[str]()
    if (listed := _list_file(root)) is not None:
        pairs = _listed_records(listed, problems)
    else:
        pairs = DEPTH_FILES.records(root, split, problems)
    records = tuple(replace(record, depth_format=depth_format) for record in pairs)
    return _checked(DataSet(root, "depth", records, {}), problems)


def _checked(data: DataSet, problems: list[str]) -> DataSet:
    data = check_headers(data, problems)
    raise_problems(data.root, problems)
    return data


def read_format(root: Path, otherwise: DepthFormat) -> DepthFormat:
    """How a set stores depth: what its ``depth.json`` says, and the rest as in ``otherwise``."""
    path = root / FORMAT_FILE
    if not path.is_file():
        return otherwise
    what = 'a file that says how depth is stored, such as {"scale": 1000, "far": 10}'
    content, usual = read_json(path, what), asdict(otherwise)
    refuse_unknown(content, usual, str(path), what)
    whole = {**usual, **content} if isinstance(content, dict) else content
    return checked(whole, DepthFormat, str(path), what)


def _list_file(root: Path) -> Path | None:
    return next((root / name for name in LISTS if (root / name).is_file()), None)


def _listed_records(path: Path, problems: list[str]) -> list[Record]:
    """The records of a list of images and their depth."""
    found: dict[str, Record] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#") or (len(words) > 1 and words[1] == "None"):
            continue  # KITTI's lists say None where there is no depth
        if len(words) < 2:
            problems.append(f"line {number} of {path} is {line!r}; it needs an image and its depth")
            continue
        name, depth = (word.lstrip("/") for word in words[:2])
        key = Path(name).with_suffix("").as_posix()
        if key in found:
            problems.append(f"line {number} of {path.name} names {words[0]} again")
        found[key] = Record(key, path.parent / name, name, 0, 0, path.parent / depth)
    if not found:
        problems.append("it holds no images with depth")
    return list(found.values())


def _files_by_key(folder: Path, suffixes: Sequence[str], problems: list[str]) -> dict[str, Path]:
    """The files below a folder by their relative path without suffix, sorted."""
    found: dict[str, Path] = {}
    for path in _visible_files(folder, suffixes):
        key = path.relative_to(folder).with_suffix("").as_posix()
        if key in found:
            problems.append(f"{found[key]} and {path.name} claim the same name")
        found[key] = path
    return found


def _visible_files(folder: Path, suffixes: Sequence[str]) -> list[Path]:
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
