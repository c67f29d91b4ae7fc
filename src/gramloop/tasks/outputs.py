"""Files around a prediction: which images were meant, what their results are called, and how those are written."""

from __future__ import annotations

import glob
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from gramloop.data.coco_panoptic import segments_info
from gramloop.data.segment_maps import segments_png
from gramloop.errors import GramLoopError
from gramloop.tasks.class_names import Classes
from gramloop.tasks.prediction import Depth, Detection, InstanceMasks, Panoptic, Prediction, Segmentation
from gramloop.tasks.segments import segment_map
from gramloop.util.files import files_below

SUFFIXES = frozenset(
    [".bmp", ".gif", ".jp2", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"]
)
DEPTH_STEPS = 256  # to the metre in a depth picture
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


def result_files(found: Prediction, image: Path, name: str, classes: Classes) -> dict[str, bytes]:
    """The content of a prediction's files by ending: a label map, COCO results, an array of depth, or COCO's segments.

    ``name`` is what they are called before the ending.
    """
    if isinstance(found, Segmentation):
        return {".png": labels_png(found.labels)}
    if isinstance(found, Detection):
        return {".json": coco_results(image, found)}
    if isinstance(found, Depth):
        return {".npy": depth_npy(found.values)}
    if isinstance(found, InstanceMasks):
        return {".json": mask_results(image, found)}
    if isinstance(found, Panoptic):
        picture, entry = panoptic_files(found, f"{name}.png")
        return {".png": picture, ".json": _panoptic_json(image, found, entry, classes)}
    raise GramLoopError(f"there is no file for a {type(found).__name__}")


def labels_png(labels: np.ndarray) -> bytes:
    """A label map (H, W) as a grey PNG whose values are the classes; 16 bits if there are more than 256."""
    depth = np.uint8 if labels.max(initial=0) < 256 else np.uint16
    buffer = io.BytesIO()
    Image.fromarray(labels.astype(depth)).save(buffer, format="png")
    return buffer.getvalue()


def depth_npy(values: np.ndarray) -> bytes:
    """Depth or disparity (H, W) as the model gives it, float32, a file of numpy."""
    buffer = io.BytesIO()
    np.save(buffer, values.astype(np.float32))
    return buffer.getvalue()


def depth_png(metres: np.ndarray) -> bytes:
    """Depth (H, W) in metres as a grey PNG of 16 bits, 256 steps to the metre, as KITTI writes it; 0 is unknown."""
    steps = np.clip(np.round(np.nan_to_num(metres) * DEPTH_STEPS), 0, 65535)
    buffer = io.BytesIO()
    Image.fromarray(steps.astype(np.uint16)).save(buffer, format="png")
    return buffer.getvalue()


def panoptic_files(found: Panoptic, name: str) -> tuple[bytes, dict[str, Any]]:
    """Segments as a PNG file of colours, and what COCO's JSON says of that file; ``name`` is the file's."""
    infos = segments_info(segment_map(found))
    for entry, info in zip(infos, found.infos, strict=True):
        entry["score"] = round(info.score, 6)
    return segments_png(found.segments), {"file_name": name, "segments_info": infos}


def _panoptic_json(image: Path, found: Panoptic, entry: Mapping[str, Any], classes: Classes) -> bytes:
    """COCO's JSON of one image; of the categories those that were found."""
    kinds = {info.category: info.is_thing for info in found.infos}
    content = {
        "images": [
            {
                "id": image_identity(image),
                "file_name": image.name,
                "height": found.segments.shape[0],
                "width": found.segments.shape[1],
            }
        ],
        "annotations": [{"image_id": image_identity(image), **entry}],
        "categories": [
            {"id": number, "name": classes.get(number) or f"class {number}", "isthing": int(thing)}
            for number, thing in sorted(kinds.items())
        ],
    }
    return (json.dumps(content) + "\n").encode()


def mask_results(image: Path, found: InstanceMasks) -> bytes:
    """Masks as COCO results: run lengths, which are as large as the image."""
    rows = [
        {
            "image_id": image_identity(image),
            "category_id": int(label),
            "segmentation": mask,
            "score": round(float(score), 6),
        }
        for mask, score, label in zip(found.masks, found.scores, found.labels, strict=True)
    ]
    return ("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n").encode()


def image_identity(image: Path) -> int | str:
    """An image's id in COCO's files: its name without the ending, a number where it is one, as in COCO's own."""
    return int(image.stem) if image.stem.isascii() and image.stem.isdecimal() else image.stem


def coco_results(image: Path, found: Detection) -> bytes:
    """Detections as COCO results: left, top, width, height in pixels."""
    corners = found.boxes.astype(float)
    sizes = corners[:, 2:] - corners[:, :2]
    rows = [
        {
            "image_id": image_identity(image),
            "category_id": int(label),
            "bbox": [round(value, 3) for value in (*corner[:2].tolist(), *size.tolist())],
            "score": round(float(score), 6),
        }
        for corner, size, score, label in zip(corners, sizes, found.scores, found.labels, strict=True)
    ]
    return ("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n").encode()
