"""The same bits every time: deterministic algorithms or an error, on whatever device."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

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
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    except RuntimeError as error:
        if "CuBLAS" not in str(error):
            raise
        raise GramLoopError(
            f"this process multiplied matrices on the GPU before {_CUBLAS} was set, or set it to "
            f"{os.environ[_CUBLAS]}; start Python with {_CUBLAS}={_SETTING}, or import gramloop first"
        ) from error
    finally:
        torch.use_deterministic_algorithms(before)
