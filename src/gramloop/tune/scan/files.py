"""A scan as JSON, with everything in it, and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gramloop.errors import GramLoopError
from gramloop.tune.scan.scanning import Scan
from gramloop.tune.scan.scores import DEFAULT, all_scores, find_score, ranked

_FORMAT = 1


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
    path = Path(path)
    try:
        record = json.loads(path.read_text())
        if record["format"] != _FORMAT:
            raise GramLoopError(f"{path} has format {record['format']!r}; this version reads {_FORMAT}")
        return Scan(
            host=record["host"],
            depth=record["depth"],
            replays=record["replays"],
            windows=tuple((start, end) for start, end in record["windows"]),
            conditions=tuple(record["conditions"]),
            images=tuple(record["images"]),
            values={name: np.array(values, dtype=np.float64) for name, values in record["values"].items()},
            blocks=record["blocks"],
            naive_blocks=record["naive_blocks"],
        )
    except OSError as error:
        raise GramLoopError(f"{path} cannot be read: {error.strerror}") from error
    except GramLoopError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise GramLoopError(f"{path} is not a scan that gramloop scan wrote") from error


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
