"""Full float32 precision for the few products that decide the gate, whatever surrounds them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def full_float32(device: torch.device) -> Iterator[None]:
    """Turn autocast and reduced-precision float32 products (TF32, bfloat16) off, then restore them.

    A bfloat16 Gram errs by about as much as a typical drift. Inside a compiled or exported graph the
    process-wide product precision cannot be switched: there, leave it at PyTorch's default, "highest".
    """
    if torch.is_autocast_enabled(device.type):
        with torch.autocast(device.type, enabled=False):
            yield from _full_products()
    else:
        yield from _full_products()


def _full_products() -> Iterator[None]:
    before = "highest" if torch.compiler.is_compiling() else torch.get_float32_matmul_precision()
    if before == "highest":
        yield
        return
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
