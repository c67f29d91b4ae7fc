"""A scan as JSON, with everything in it, and back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gramloop.errors import GramLoopError
from gramloop.tune.scan.scanning import Scan
from gramloop.tune.scan.scores import DEFAULT, all_scores, find_score, ranked
from gramloop.util.json_files import checked, read_json

_FORMAT = 1
WHAT = "a scan that gramloop scan wrote"


def to_json(scan: Scan, score: str = DEFAULT) -> bytes:
    """Settings, every measured value, and per window its medians, scores, cost and rank by ``score``."""
    find_score(score)
    record = {
        "format": _FORMAT,
        "host": scan.host,
        "depth": scan.depth,
        "replays": scan.replays,
        "blocks": scan.blocks,
        "naive_blocks": scan.naive_blocks,
        "windows": scan.windows,
        "conditions": scan.conditions,
        "images": scan.images,
        "score": score,
        "ranking": _ranking(scan, score),
        "values": {name: _numbers(values) for name, values in scan.values.items()},
    }
    return (json.dumps(record, indent=1, allow_nan=False) + "\n").encode()


def read_scan(path: Path | str) -> Scan:
    """A scan that was written before."""
    stored = _read(Path(path))
    try:
        values = {name: np.array(each, dtype=np.float64) for name, each in stored.values.items()}
        found = {name: getattr(stored, name) for name in Scan.__dataclass_fields__}
        return Scan(**{**found, "values": values})
    except ValueError as error:
        raise GramLoopError(f"{path} is not {WHAT}: {error}") from error


@dataclass(frozen=True)
class _Ranked:
    window: tuple[int, int]


@dataclass(frozen=True)
class _StoredScan:
    """What is read again of a scan."""

    format: int
    host: str
    depth: int
    replays: int
    blocks: int
    naive_blocks: int
    windows: tuple[tuple[int, int], ...]
    conditions: tuple[str, ...]
    images: tuple[str, ...]
    values: dict[str, list[list[list[float | None]]]]
    ranking: tuple[_Ranked, ...]

    def __post_init__(self) -> None:
        for first, last in (*self.windows, *(row.window for row in self.ranking)):
            if not 0 <= first <= last < self.depth:
                raise GramLoopError(f"the window {[first, last]} does not lie in {self.depth} blocks")


def _read(path: Path) -> _StoredScan:
    content = read_json(path, WHAT)
    if isinstance(content, dict) and content.get("format", _FORMAT) != _FORMAT:
        raise GramLoopError(f"{path} has format {content['format']!r}; this version reads {_FORMAT}")
    return checked(content, _StoredScan, str(path), WHAT)


def read_ranking(path: Path) -> tuple[int, tuple[tuple[int, int], ...]]:
    """How many blocks the backbone of a stored scan has, and its windows, the best first."""
    stored = _read(path)
    return stored.depth, tuple(row.window for row in stored.ranking)


def _ranking(scan: Scan, score: str) -> list[dict[str, Any]]:
    typical = {name: _numbers(scan.typical(name)) for name in scan.values}
    pairs = {}
    if scan.paired:
        pairs = {
            kind: {name: _numbers(measure(name)) for name in scan.values}
            for kind, measure in (
                ("shifted_to_clean", scan.shifted_to_clean),
                ("separation", scan.separation),
            )
        }
    scores = {name: _numbers(values) for name, values in all_scores(scan).items()}
    costs = scan.costs()
    rows = []
    for entry in ranked(scan, score):
        place = scan.windows.index(entry.window)
        price = costs[place]
        row: dict[str, Any] = {"window": entry.window, "blocks": price.blocks, "multiplier": price.multiplier}
        row["typical"] = {name: values[place] for name, values in typical.items()}
        row["scores"] = {name: values[place] for name, values in scores.items()}
        for kind, of in pairs.items():
            row[kind] = {name: values[place] for name, values in of.items()}
        rows.append(row)
    return rows


def _numbers(values: NDArray[np.float64]) -> Any:
    """Nested lists in which null stands for what is not finite: JSON knows no NaN."""
    numbers = values.astype(object)
    numbers[~np.isfinite(values)] = None
    return numbers.tolist()
