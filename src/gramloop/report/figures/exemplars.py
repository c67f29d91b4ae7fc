"""Which images a report shows: the best, the worst and a typical one, each called what it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np

from gramloop.errors import GramLoopError
from gramloop.report.figures.heat import signed

Key = TypeVar("Key")


def choose(gains: Mapping[Key, float], unit: str) -> dict[Key, str]:
    """From gains by image: the largest gain, the largest loss and the median, with the words that say so.

    Of equal gains the first is taken. An image is shown once, under the first name that fits it.
    """
    finite = {key: gain for key, gain in gains.items() if np.isfinite(gain)}
    if not finite:
        return {}
    keys, values = list(finite), np.array(list(finite.values()))
    among = f"of {len(keys)} images kept" if len(keys) > 1 else "the one image kept"
    middle = float(np.median(values))
    picks = [
        (int(values.argmax()), "largest gain" if values.max() > 0 else "smallest loss"),
        (int(values.argmin()), "largest loss" if values.min() < 0 else "smallest gain"),
        (int(np.abs(values - middle).argmin()), "typical (median)"),
    ]
    chosen: dict[Key, str] = {}
    for index, name in picks:
        words = f"{name} {among}, {signed(float(values[index]), 1)} {unit}"
        chosen.setdefault(keys[index], words)
    return chosen


def parse(text: str) -> tuple[str, str]:
    """An image named by the reader, ``CONDITION:IMAGE`` such as ``fog/3:scene-0007``."""
    condition, colon, image = text.partition(":")
    if not colon or not condition or not image:
        raise GramLoopError(f"an exemplar is CONDITION:IMAGE, such as fog/3:17, not {text!r}")
    return condition, image
