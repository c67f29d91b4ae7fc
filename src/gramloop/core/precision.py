"""Full float32 precision for the few products that decide the gate, whatever surrounds them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch


def full_float32(device: torch.device) -> AbstractContextManager[None]:
    """Turn autocast and reduced-precision float32 products (TF32, bfloat16) off, then restore them.

    A bfloat16 Gram errs by about as much as a typical drift. Inside a compiled or exported graph the
    process-wide product precision cannot be switched: there, leave it at PyTorch's default, "highest".
    """
    precision = "highest" if torch.compiler.is_compiling() else torch.get_float32_matmul_precision()
    if precision == "highest" and not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return _switched(device, precision)


@contextmanager
def _switched(device: torch.device, precision: str) -> Iterator[None]:
    with torch.autocast(device.type, enabled=False):
        if precision == "highest":
            yield
            return
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(precision)
