"""Files around a prediction: which images were meant, what their results are called, and how those are written."""

from __future__ import annotations

import glob
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gramloop.errors import GramLoopError
from gramloop.util.files import files_below

SUFFIXES = frozenset(
    [".bmp", ".gif", ".jp2", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"]
)
VERSIONS = ("ordinary", "replayed", "mitigated", "picture")


@dataclass(frozen=True)
class ImageFile:
    """One image and where its results belong: ``target`` has the image's name without an ending."""

    path: Path
    target: Path

    def result(self, version: str, ending: str) -> Path:
        """The file of one version, such as ``cat.replayed.png``."""
        return self.target.with_name(f"{self.target.name}.{version}{ending}")


def find_images(sources: Iterable[str], out: Path) -> list[ImageFile]:
    """The images that files, folders and globs name, each once, in order.

    A folder stands for all images below it, and its inner folders appear again below ``out``. Results of an
    earlier run are passed over. A source that does not exist is among them, so that it fails by itself.
    """
    files: dict[Path, ImageFile] = {}
    for source in sources:
        for image, relative in _expand(source):
            files.setdefault(image.absolute(), ImageFile(image, out / relative.with_suffix("")))
    _refuse_clashes(files.values())
    return list(files.values())


def _expand(source: str) -> list[tuple[Path, Path]]:
    """Images with their place below the output folder."""
    path = Path(source)
    if path.is_dir():
        found = [each for each in files_below(path) if _is_image(each)]
        if not found:
            raise GramLoopError(f"the folder {path} holds no images")
        return [(each, each.relative_to(path)) for each in found]
    if not path.exists() and glob.has_magic(source):
        matches = sorted(Path(each) for each in glob.glob(source, recursive=True))
        found = [each for each in matches if _is_image(each)]
        if not found:
            raise GramLoopError(f"no image matches {source}")
        return [(each, Path(each.name)) for each in found]
    return [(path, Path(path.name))]


def _is_image(path: Path) -> bool:
    earlier_result = any(path.name.endswith(f".{version}.png") for version in VERSIONS)
    hidden = path.name.startswith(".")
    return path.suffix.lower() in SUFFIXES and not hidden and not earlier_result and path.is_file()


def _refuse_clashes(files: Iterable[ImageFile]) -> None:
    owners: dict[str, ImageFile] = {}
    for file in files:
        other = owners.setdefault(str(file.target).lower(), file)  # some file systems do not tell case apart
        if other is not file:
            raise GramLoopError(
                f"{other.path} and {file.path} would both be written as {file.target}.*; "
                "give them different output folders"
            )
