"""The device that a model runs on, by name, and deterministic algorithms on it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gramloop.errors import GramLoopError

if TYPE_CHECKING:
    import torch

_SAME = {"cuda": "cuda:0", "mps:0": "mps", "cpu:0": "cpu"}  # two names of one device
_CUBLAS, _CUBLAS_SETTING = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"


def choose_device(name: str | None) -> torch.device:
    """The device of a name: cpu, cuda, cuda:1 or mps; the best available for ``auto`` or None."""
    import torch

    known = available_devices()
    if name is None or name == "auto":
        return torch.device("cuda" if "cuda:0" in known else known[-1])
    try:
        device = torch.device(name)
    except RuntimeError:  # not a name of any device
        device = None
    if device is not None and _SAME.get(str(device), str(device)) in known:
        return device
    raise GramLoopError(f"--device {name} is not on this machine; there is {', '.join(known)}")


def available_devices() -> tuple[str, ...]:
    """The CPU, MPS and every GPU by its number; counted, not opened, since that would take memory."""
    import torch

    mps = ("mps",) if torch.backends.mps.is_available() else ()
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return ("cpu", *mps, *(f"cuda:{number}" for number in range(gpus)))


def numbered_device(name: str | None) -> str | None:
    """The device if its name has a number, such as ``cuda:1``; None where any of its kind will do."""
    device = choose_device(name)
    return str(device) if ":" in str(device) else None


def gpus_of(device: torch.device) -> tuple[str, ...]:
    """The GPUs that a name stands for: all of ``cuda``, the one of ``cuda:1``, none of another device."""
    if device.type != "cuda":
        return ()
    if ":" in str(device):
        return (str(device),)
    return tuple(name for name in available_devices() if name.startswith("cuda")) or ("cuda",)


def configure_cublas() -> None:
    """Allow deterministic matrix products on a GPU; PyTorch reads the variable once, at the first product."""
    os.environ.setdefault(_CUBLAS, _CUBLAS_SETTING)


@contextmanager
def deterministic_algorithms() -> Iterator[None]:
    """Deterministic algorithms or an error within a ``with`` block."""
    import torch

    configure_cublas()
    before = torch.get_deterministic_debug_mode()
    # `torch.use_deterministic_algorithms` would do both, but import the compiler, which takes a second
    compiler: Any = sys.modules.get("torch._inductor.config")
    compiled = getattr(compiler, "deterministic", False)
    torch.set_deterministic_debug_mode("error")
    if compiler is not None:
        compiler.deterministic = True
    try:
        yield
    except RuntimeError as error:
        if "CuBLAS" not in str(error):
            raise
        raise GramLoopError(
            f"this process multiplied matrices on the GPU before {_CUBLAS} was set, or set it to "
            f"{os.environ[_CUBLAS]}; start Python with {_CUBLAS}={_CUBLAS_SETTING}, or import gramloop first"
        ) from error
    finally:
        torch.set_deterministic_debug_mode(before)
        if compiler is not None:
            compiler.deterministic = compiled
