"""Full float32 precision for a few products, whatever surrounds them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

_switching = threading.Lock()
_inside: list[str] = []  # the precision to restore, once for each thread for which it is switched


def full_float32(device: torch.device) -> AbstractContextManager[None]:
    """Turn autocast and reduced-precision float32 products (TF32, bfloat16) off, then restore them.

    A bfloat16 Gram errs by about as much as a typical drift. Inside a compiled or exported graph the
    process-wide product precision cannot be switched: there, leave it at PyTorch's default, "highest".
    """
    if torch.compiler.is_compiling():
        precision = "highest"
    else:
        with _switching:
            precision = _inside[0] if _inside else torch.get_float32_matmul_precision()
    if precision == "highest" and not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return _switched(device, precision)


def without_autocast(kind: str) -> AbstractContextManager[object]:
    """Turn autocast off on devices of a kind; where it is off, nothing, for a mode would cut a traced graph into parts."""
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


@contextmanager
def _switched(device: torch.device, precision: str) -> Iterator[None]:
    with torch.autocast(device.type, enabled=False):
        if precision == "highest":
            yield
            return
        with _switching:
            _inside.append(precision)
            torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            with _switching:
                _inside.pop()
                if not _inside:  # the last thread out restores
                    torch.set_float32_matmul_precision(precision)
