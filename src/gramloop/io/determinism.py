"""The same bits every time: deterministic algorithms or an error, on whatever device."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gramloop.errors import GramLoopError

_CUBLAS, _SETTING = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"


def tell_cublas() -> None:
    """Let products of matrices on a GPU be deterministic once that is asked for.

    PyTorch looks at this variable once, at the first product of the process, so that it has to be set before any.
    """
    os.environ.setdefault(_CUBLAS, _SETTING)


@contextmanager
def deterministic_algorithms() -> Iterator[None]:
    """Deterministic algorithms or an error within a ``with`` block."""
    import torch

    tell_cublas()
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("error")
    try:
        with _deterministic_compiler():
            yield
    except RuntimeError as error:
        if "CuBLAS" not in str(error):
            raise
        raise GramLoopError(
            f"this process multiplied matrices on the GPU before {_CUBLAS} was set, or set it to "
            f"{os.environ[_CUBLAS]}; start Python with {_CUBLAS}={_SETTING}, or import gramloop first"
        ) from error
    finally:
        torch.set_deterministic_debug_mode(before)


@contextmanager
def _deterministic_compiler() -> Iterator[None]:
    """The same for what is compiled within a ``with`` block.

    `torch.use_deterministic_algorithms` would import the compiler for it: a second for models without transformers, which
    imports it anyway.
    """
    name, setting = (
        "torch._inductor.config",
        "TORCHINDUCTOR_DETERMINISTIC",
    )  # which the former reads when imported
    compiler: Any = sys.modules.get(name)
    told = os.environ.get(setting)
    before = told == "1" if compiler is None else compiler.deterministic
    os.environ[setting] = "1"
    if compiler is not None:
        compiler.deterministic = True
    try:
        yield
    finally:
        del os.environ[setting]
        if told is not None:
            os.environ[setting] = told
        compiler = sys.modules.get(name)  # it may have been imported meanwhile
        if compiler is not None:
            compiler.deterministic = before
