"""A stand-in for a GPU of NVIDIA's: what `stand_in_device` says of ``cuda:0``, and what CUDA refuses beyond it.

While deterministic algorithms are on, operations that PyTorch's list names as having no deterministic kernel raise,
and so do products of matrices where cuBLAS was not told how to be deterministic before the first of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from stand_in_device import Place, standing_in

DEVICE = torch.device("cuda:0")
MEMORY = 80 * 2**30
Given = Mapping[str, Any]


def _summed_in_floats(args: Any, kwargs: Given) -> bool:
    """The kernel sees what was asked for by dtype, so that a mask summed up in float32 is refused as well."""
    dtype = kwargs.get("dtype") or args[0].dtype
    return bool(dtype.is_floating_point or dtype.is_complex)


def _with_indices(args: Any, kwargs: Given) -> bool:
    return len(args) > 1 or "dim" in kwargs


def _of_products(args: Any, kwargs: Given) -> bool:
    return bool((args[4] if len(args) > 4 else kwargs["reduce"]) == "prod")


def _always(*_: Any) -> bool:
    return True


# PyTorch's list, as far as forwards go: the operator, and when it has no deterministic kernel on CUDA
NOT_DETERMINISTIC: dict[str, Callable[[Any, Given], bool]] = {
    "cumsum": _summed_in_floats,
    "cumsum_": _summed_in_floats,
    "median": _with_indices,
    "nanmedian": _with_indices,
    "histc": _always,
    "bincount": lambda args, kwargs: len(args) > 1 or kwargs.get("weights") is not None,
    "put": _always,
    "put_": _always,
    "max_unpool2d": _always,
    "max_unpool3d": _always,
    "nll_loss_forward": _always,
    "nll_loss2d_forward": _always,
    "scatter_reduce": _of_products,
    "scatter_reduce_": _of_products,
    "resize_": lambda args, _: bool(args[0].is_quantized),
    "kthvalue": _always,  # in the lists of earlier versions
}
_BY_CUBLAS = ("mm", "bmm", "addmm", "addmm_", "baddbmm", "baddbmm_", "mv", "addmv", "dot", "linear")
_TOLD = ":4096:8", ":16:8"


class _Refusals:
    """What one process with a GPU refuses; cuBLAS reads its setting once, at the first product."""

    def __init__(self) -> None:
        self._told: bool | None = None

    def __call__(self, name: str, args: Any, kwargs: Given) -> None:
        determined = torch.are_deterministic_algorithms_enabled()
        if name in _BY_CUBLAS:
            if self._told is None:
                self._told = os.environ.get("CUBLAS_WORKSPACE_CONFIG") in _TOLD
            if determined and not self._told:
                raise RuntimeError(f"{name} is not deterministic because it uses CuBLAS")
        if determined and name in NOT_DETERMINISTIC and NOT_DETERMINISTIC[name](args, kwargs):
            raise RuntimeError(f"{name}_cuda does not have a deterministic implementation")


@contextmanager
def stand_in_gpu(*, indices_from_cpu: bool = False) -> Iterator[None]:
    """In this thread there is a GPU, and ``torch.cuda`` tells of it.

    CUDA lets tensors of the CPU index its own, at the price of waiting for a copy; here that is refused, unless a
    host of somebody else's does it.
    """
    properties = SimpleNamespace(name="stand-in", total_memory=MEMORY, major=9, minor=0)
    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "is_bf16_supported": lambda *_, **__: True,
        "get_device_name": lambda *_: "stand-in",
        "get_device_properties": lambda *_: properties,
        "get_device_capability": lambda *_: (9, 0),
        "mem_get_info": lambda *_: (MEMORY, MEMORY),
        "max_memory_allocated": lambda *_: 2**30,
        "reset_peak_memory_stats": lambda *_: None,
        "synchronize": lambda *_: None,
        "empty_cache": lambda: None,
        "set_device": lambda *_: None,
        "_lazy_init": lambda: None,
        "is_initialized": lambda: True,
    }
    with ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(patch.object(torch.cuda, name, answer))
        stack.enter_context(standing_in(Place(DEVICE, _Refusals(), indices_from_cpu=indices_from_cpu)))
        yield


@contextmanager
def determined() -> Iterator[None]:
    """Deterministic algorithms, as an evaluation turns them on."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
