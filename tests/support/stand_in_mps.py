"""A stand-in for Apple's GPUs: what `stand_in_device` says of ``mps:0``, where there is no float64.

Nothing makes or becomes float64 there, on the way to the CPU either: a copy converts before it leaves. MPS has no list
of operations without a deterministic kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch

from stand_in_device import Place, standing_in

DEVICE = torch.device("mps:0")
MEMORY = 32 * 2**30
_MISSING = (torch.float64, torch.complex128)


def _refuse_dtype(dtype: torch.dtype) -> None:
    if dtype in _MISSING:
        raise TypeError(
            "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. "
            "Please use float32 instead."
        )


def _refuse(name: str, args: Any, kwargs: Mapping[str, Any]) -> None:
    if name == "_to_copy" and kwargs.get("dtype") is not None:
        _refuse_dtype(kwargs["dtype"])


@contextmanager
def stand_in_mps(*, indices_from_cpu: bool = False) -> Iterator[None]:
    """In this thread there is an Apple GPU, and ``torch.mps`` tells of it; indices as for `stand_in_gpu`."""
    told = {
        "synchronize": lambda: None,
        "empty_cache": lambda: None,
        "recommended_max_memory": lambda: MEMORY,
        "current_allocated_memory": lambda: 2**20,
        "driver_allocated_memory": lambda: 2**20,
    }
    with ExitStack() as stack:
        stack.enter_context(patch.object(torch.backends.mps, "is_available", lambda: True))
        stack.enter_context(patch.object(torch.backends.mps, "is_built", lambda: True))
        for name, answer in told.items():
            stack.enter_context(patch.object(torch.mps, name, answer))
        stack.enter_context(standing_in(Place(DEVICE, _refuse, _refuse_dtype, indices_from_cpu)))
        yield
