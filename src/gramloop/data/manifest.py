"""The manifest of a set written to disk: what made it, from what, and what came out, as checksums."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

from gramloop.data.records import DataSet
from gramloop.errors import GramLoopError
from gramloop.util.files import atomic_write
from gramloop.util.json_files import checked, first_difference, read_json, refuse_unknown

MANIFEST = "manifest.json"
CHECKSUMS = "checksums.sha256"  # per condition, in the format of the sha256sum command
LAYOUT = 1
_WORDS = {
    "layout": "layout version",
    "suite": "suite",
    "recipe_version": "recipe version",
    "encoding": "image format",
    "source": "clean source set",
    "frost": "frost textures",
}  # what must agree before files are added


@dataclass(frozen=True)
class Manifest:
    """Everything that decides the bytes of a written set, and the checksum of each finished condition."""

    suite: str
    recipe_version: int
    encoding: str
    source: str  # fingerprint of the clean set
    images: int
    frost: str  # "synthesised", or a checksum of the user's textures
    packages: Mapping[str, str]
    conditions: Mapping[str, str] = field(default_factory=dict)  # "fog/3": checksum of its checksum file
    layout: int = LAYOUT
    contents: str = ""  # checksum over every byte of the clean set; empty in older manifests
    sizes: Mapping[str, int] = field(default_factory=dict)  # "fog/3": bytes of its files; empty in older ones

    def with_condition(self, key: str, checksum: str, size: int) -> Manifest:
        """The manifest after one more condition is finished."""
        return replace(self, conditions={**self.conditions, key: checksum}, sizes={**self.sizes, key: size})

    def write(self, folder: Path) -> None:
        """Store as JSON, with one checksum over the set."""
        ordered = dict(sorted(self.conditions.items()))
        total = sha256("".join(f"{digest}  {key}\n" for key, digest in ordered.items()).encode())
        sizes = dict(sorted(self.sizes.items()))
        content = {**asdict(self), "conditions": ordered, "sizes": sizes, "sha256": total}
        atomic_write(folder / MANIFEST, (json.dumps(content, indent=1) + "\n").encode())


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a written set, or None where there is none."""
    path = folder / MANIFEST
    if not path.is_file():
        return None
    what = "a manifest written by gramloop corrupt"
    content = read_json(path, what)
    refuse_unknown(content, {**Manifest.__dataclass_fields__, "sha256": ""}, str(path), what)
    return checked(content, Manifest, str(path), what)


def refuse_difference(found: Manifest, wanted: Manifest, folder: Path) -> None:
    """Raise unless new files would fit beside the ones that are there."""
    before, now = ({words: getattr(one, name) for name, words in _WORDS.items()} for one in (found, wanted))
    if words := first_difference(before, now):
        raise GramLoopError(f"{folder} was made with the {words}; choose another folder")
    if found.conditions and found.contents and found.contents != wanted.contents:
        raise GramLoopError(
            f"{folder} was made from other images of the same names and sizes; put the clean set back, or choose another "
            "folder"
        )
    for package, version_now in wanted.packages.items():
        begun = found.packages.get(package, "none")
        if begun != version_now:
            raise GramLoopError(
                f"{folder} was begun with {package} {begun}, and {version_now} may give other pixels; "
                f"install {begun} again or choose another folder"
            )


def package_versions() -> dict[str, str]:
    """The versions of everything that takes part in making pixels."""
    from PIL import features

    names = ("numpy", "scipy", "opencv-python-headless", "pillow")
    versions = {name: _version(name) for name in names}
    versions["libjpeg in pillow"] = str(features.version("libjpeg_turbo"))
    versions["machine"] = platform.machine()
    return versions


def _version(name: str) -> str:
    try:
        return version(name)
    except ImportError:
        if not name.startswith("opencv"):
            return "unknown"
        import cv2

        return str(cv2.__version__)


def fingerprint(data: DataSet) -> str:
    """A checksum over names, sizes in bytes and annotations of a clean set, without reading its pixels."""
    digest = hashlib.sha256()
    for record in data:
        files = [record.path, *([record.label_path] if record.label_path else [])]
        sizes = [os.stat(file).st_size for file in files]
        digest.update(f"{record.image_id}\t{record.name}\t{sizes}\n".encode())
    if data.annotation_file is not None:
        digest.update(data.annotation_file.read_bytes())
    return digest.hexdigest()


def frost_fingerprint(textures: Path | None) -> str:
    """A checksum over a folder of frost pictures."""
    if textures is None:
        return "synthesised"
    files = sorted(path for path in textures.iterdir() if path.is_file())
    return sha256(checksum_lines((path.name, sha256(path.read_bytes())) for path in files))


def checksum_lines(checksums: Iterable[tuple[str, str]]) -> bytes:
    """(path, digest) pairs as the lines that ``sha256sum --check`` reads, sorted by path."""
    return "".join(f"{digest}  {path}\n" for path, digest in sorted(checksums)).encode()


def sha256(data: bytes) -> str:
    """The checksum of some bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()
