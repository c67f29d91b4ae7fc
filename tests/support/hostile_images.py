"""Annotations, sets and pictures that are broken in ways that a number decides."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path

from PIL import Image

import broken_files
from hostile_case import Case, World, copied, plan_of
from sound_sets import sound_coco


def bad_annotations(world: World, rng: random.Random, place: Path) -> Case:
    data = copied(world, "scenes", place)
    file = data / "annotations" / "instances_val.json"
    good = file.read_bytes()
    if rng.random() < 0.85:
        content = json.loads(good)
        for _ in range(rng.choice([1, 1, 2])):
            content = broken_files.change_json(content, rng)
        file.write_bytes(broken_files.json_bytes(content))
    else:
        file.write_bytes(broken_files.change_bytes(good, rng))
    command = plan_of(world, data, "detect", place / "out")
    return Case(command, (place / "out",), lambda: sound_coco(file, data / "images"))


def bad_set(world: World, rng: random.Random, place: Path) -> Case:
    """A file of a set of label pictures, depth or panoptic segments is another, gone or a folder."""
    data = copied(world, "scenes", place)
    task = rng.choice(
        ["segment"] * 6 + ["depth"] * 5 + ["panoptic"]
    )  # the last starts processes, and takes seconds
    named = {
        "segment": ["classes.txt"],
        "depth": ["depth.json"],
        "panoptic": ["annotations/panoptic_val.json"],
    }[task]
    folder = {
        "segment": "annotations/validation",
        "depth": "depth/validation",
        "panoptic": "annotations/panoptic_val",
    }
    pictures = sorted((data / "images").rglob("*.png")) + sorted((data / folder[task]).rglob("*.png"))
    file = data / rng.choice(named) if rng.random() < 0.4 else rng.choice(pictures)
    before, kind = file.read_bytes(), rng.randrange(6)
    if kind == 0:
        file.unlink()
    elif kind == 1:
        file.unlink()
        file.mkdir()
    elif file.suffix == ".json":
        file.write_bytes(broken_files.json_bytes(broken_files.change_json(json.loads(before), rng)))
    elif file.suffix == ".png" and kind < 5:
        file.write_bytes(broken_files.odd_picture(rng))
    else:
        file.write_bytes(broken_files.change_bytes(before, rng))
    command = plan_of(world, data, task, place / "out")
    if task == "panoptic":
        command = [
            "corrupt",
            "--suite",
            "mine-c",
            "--task",
            "panoptic",
            "--condition",
            "fog",
            "--severity",
            "1",
        ]
        command += ["--workers", "1", "--decode", str(data), str(place / "out")]
    return Case(command, (place / "out",), lambda: _readable(file, before))


def _readable(file: Path, before: bytes) -> bool:
    """Whether a picture can be decoded in its size, or another file is still one of its kind; an oracle by Pillow."""
    if not file.is_file():
        return file.name in ("depth.json",)  # which may be left out
    if file.suffix != ".png":
        return bool(file.read_bytes().strip())
    try:
        with Image.open(file) as picture, Image.open(io.BytesIO(before)) as old:
            return picture.size == old.size  # a plan looks at headers; pixels are told where they are read
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return False


def bad_picture(world: World, rng: random.Random, place: Path) -> Case:
    file = place / rng.choice(["one.png", "two.jpg", "=3.png", "-4.png", "ü 5.webp"])
    data = broken_files.odd_picture(rng)
    if rng.random() < 0.4:
        data = broken_files.change_bytes((world.folder / "picture.png").read_bytes(), rng)
    file.write_bytes(data)
    command = ["predict", str(file), "--task", rng.choice(["segment", "detect"]), "--model", str(world.model)]
    command += ["--out", str(place / "out"), "--method", "replay:window=2-3"] + [
        "--no-picture"
    ] * rng.randrange(2)
    return Case(command, (place / "out",), lambda: _decodes(file))


def _decodes(file: Path) -> bool:
    try:
        with Image.open(file) as picture:
            picture.load()
            return min(picture.size) >= 2
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return False
