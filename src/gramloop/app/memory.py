"""Memory between requests: what one leaves behind is found and given back before the next.

A figure is a ring of objects, and Python looks for rings seldom where it holds as many objects as torch, transformers
and gradio bring. What is freed in many threads stays with glibc, in pieces, until it is asked for.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from typing import Any


def settle() -> None:
    """Have everything that is here by now passed over by `tidy`; `release` undoes it."""
    gc.collect()
    gc.freeze()


def release() -> None:
    """Everything is looked at again."""
    gc.unfreeze()


def tidy() -> None:
    """Free what a request left behind: some 15 ms once things have settled."""
    gc.collect()
    if _TRIM is not None:
        _TRIM(0)


def _find_trim() -> Callable[[int], Any] | None:
    """glibc's way to give memory back; other libraries have none, or need none."""
    if sys.platform != "linux":
        return None
    trim: Callable[[int], Any] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim


_TRIM = _find_trim()
