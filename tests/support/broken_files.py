"""Good files made bad: bytes torn and flipped, JSON changed at one place, pictures and weights of wrong kinds."""

from __future__ import annotations

import copy
import io
import json
import math
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

DEEP = json.loads("[" * 90 + "]" * 90)
STRANGE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 2**70, -(2**70), 0.5, -0.5, 1e308, math.nan, math.inf, -math.inf,
    "", "x", "0", "1", "big", "=1+1", "../../etc/passwd", "/dev/zero", "\0", "\ud800", "a" * 300, "é" * 200,
    [], [[]], [1], [1, 2, 3, 4], [None], ["x"], [-1, -1], [math.nan] * 4, {}, {"x": 1}, {"": None}, DEEP,
)  # fmt: skip


def change_json(value: Any, rng: random.Random) -> Any:
    """A copy in which one place has another value, is gone, stands twice, or has a neighbour that nobody knows."""
    changed = copy.deepcopy(value)
    places = list(_places(changed))
    holder, key = rng.choice(places)
    kind = rng.randrange(5)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.append(copy.deepcopy(holder[key]))
    elif kind == 1:
        holder[rng.choice(["unknown", "id ", "Window", ""])] = rng.choice(STRANGE)
    elif kind == 2:
        other_holder, other = rng.choice(places)
        holder[key] = copy.deepcopy(other_holder[other])
    else:
        holder[key] = rng.choice(STRANGE)
    return changed


def _places(value: Any) -> Any:
    """Every place of a JSON value; lists of many are represented by a few."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in list(keys)[:12]:
        yield value, key
        yield from _places(value[key])


def json_bytes(value: Any) -> bytes:
    return json.dumps(value).encode()


def change_bytes(data: bytes, rng: random.Random) -> bytes:
    """Torn, flipped, blanked, doubled, or nothing to do with what it was."""
    place, kind = rng.randrange(len(data) or 1), rng.randrange(8)
    some = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 40)))
    return [
        b"",
        data[:place],
        data[place:],
        data[:place] + some + data[place:],
        data[:place] + some + data[place + len(some) :],
        data[:place] + bytes(min(64, len(data) - place)) + data[place + 64 :],
        data + some,
        some * 20,
    ][kind]


def _png_header(width: int, height: int) -> bytes:
    """A PNG file that claims a size and holds no such pixels."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    pixels = chunk(b"IDAT", zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + pixels + chunk(b"IEND", b"")


def _saved(array: np.ndarray, mode: str | None, form: str) -> bytes:
    buffer = io.BytesIO()
    image = Image.fromarray(array)
    (image if mode is None else image.convert(mode)).save(buffer, form)
    return buffer.getvalue()


def odd_picture(rng: random.Random) -> bytes:
    """The bytes of a picture of an odd size, kind or depth, or that is none."""
    seeded = np.random.default_rng(rng.randrange(1000))
    rgb = seeded.integers(0, 256, (rng.choice([1, 2, 5, 64]), rng.choice([1, 2, 3, 64, 90]), 3), np.uint8)
    makers: list[Callable[[], bytes]] = [
        lambda: _png_header(rng.choice([0, 1, 40000, 2**31 - 1]), rng.choice([0, 1, 40000, 2**31 - 1])),
        lambda: b"",
        lambda: b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        lambda: _saved(rgb, rng.choice(["1", "L", "P", "RGBA", "LA", "CMYK", "YCbCr"]), "TIFF" if rng.random() < 0.5 else "PNG")
        if rng.random() < 0.5
        else _saved(rgb, rng.choice(["1", "L", "P", "RGBA", "LA"]), "PNG"),
        lambda: _saved(rgb[..., 0].astype(np.uint16) * 257, None, "PNG"),
        lambda: _saved(rgb[..., 0].astype(np.float32) * rng.choice([1.0, math.nan, math.inf]), None, "TIFF"),
        lambda: _saved(rgb[..., 0].astype(np.int32) * rng.choice([1, -1, 70000]), None, "TIFF"),
        lambda: change_bytes(_saved(rgb, None, rng.choice(["PNG", "JPEG", "WEBP", "BMP", "GIF"])), rng),
        lambda: _saved(rgb, None, "GIF"),
    ]  # fmt: skip
    try:
        return rng.choice(makers)()
    except (OSError, ValueError):  # Pillow cannot write this one
        return b"not a picture"


def break_weights(path: Path, rng: random.Random) -> None:
    """One tensor of a safetensors file is gone, renamed, of another shape or kind, or holds what is no number."""
    kind = rng.randrange(9)
    if kind >= 7:
        path.write_bytes(change_bytes(path.read_bytes(), rng))
        return
    weights = load_file(path)
    name = rng.choice(sorted(weights))
    value = weights[name]
    if kind == 0:
        del weights[name]
    elif kind == 1:
        weights[rng.choice(["strange", name + "x", name[:-1], ""])] = weights.pop(name)
    elif kind == 2:
        weights[name] = value.flatten()[: rng.randrange(max(1, value.numel()))].clone()
    elif kind == 3:
        weights[name] = value.to(rng.choice([torch.int64, torch.uint8, torch.bool]))
    elif kind in (4, 5) and value.numel() and value.is_floating_point():
        value.view(-1)[rng.randrange(value.numel())] = rng.choice([math.nan, math.inf, -math.inf])
    else:
        weights["extra"] = torch.zeros(2)
    metadata = {"taps": json.dumps([2, 5])} if "semantic" in path.name else {"format": "pt"}
    if rng.random() < 0.2 and "semantic" in path.name:
        metadata = {
            "taps": rng.choice(["", "[]", "[1", '["x"]', "[99]", "[-1, 5]", "[" * 5000, "null", "{}"])
        }
    save_file(weights, path, metadata=metadata)


def sound_weights(path: Path, good: Path) -> bool:
    """Whether a file of weights holds what the good one holds, in other finite numbers."""
    try:
        found, expected = load_file(path), load_file(good)
    except Exception:
        return False
    if {name: value.shape for name, value in found.items()} != {n: v.shape for n, v in expected.items()}:
        return False
    floats = [(value, expected[name]) for name, value in found.items() if expected[name].is_floating_point()]
    return all(value.is_floating_point() and bool(value.isfinite().all()) for value, _ in floats)
