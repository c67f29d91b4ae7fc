"""The device that a model runs on: by name, with deterministic algorithms, and its memory."""

from __future__ import annotations

import gc
import os
import random
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gramloop.errors import GramLoopError

if TYPE_CHECKING:
    import torch

RUN_SEED = 100  # of all generators, as in the paper; no method of this package draws from them
_SAME = {"cuda": "cuda:0", "mps:0": "mps", "cpu:0": "cpu"}  # two names of one device
_CUBLAS, _CUBLAS_SETTING = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
# of a plain RuntimeError of PyTorch: on the CPU, on MPS, and in libraries below CUDA
_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED")
_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


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


def device_kind(name: str | None, elsewhere: bool) -> str:
    """The type of the device of a name; that of a dry run or of a cluster may be on another machine."""
    named = re.fullmatch(r"(cuda|mps)(:\d+)?", name or "") if elsewhere else None
    return choose_device(name).type if named is None else named[1]


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


@contextmanager
def deterministic(threads: int) -> Iterator[None]:
    """Deterministic algorithms or an error, seeded generators, and a fixed number of threads, since sums depend on it."""
    import numpy as np
    import torch

    before = torch.get_num_threads(), np.random.get_state(), random.getstate()  # noqa: NPY002
    torch.set_num_threads(threads)
    try:
        with deterministic_algorithms(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(RUN_SEED)
            np.random.seed(RUN_SEED)  # noqa: NPY002
            random.seed(RUN_SEED)
            yield
    finally:
        torch.set_num_threads(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        random.setstate(before[2])


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is about lack of memory."""
    import torch

    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)


def release_memory(device: torch.device) -> None:
    """Give back what a failed prediction left behind."""
    import torch

    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def reset_peak(device: torch.device) -> None:
    """Measure the peak from now on, where the system can; elsewhere it is that of the process's whole life."""
    import torch

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):
        _RESET.write_text("5")


def peak_memory(device: torch.device) -> int:
    """The most bytes in use at once: of the GPU's tensors, or of the process; 0 where the system does not say."""
    import torch

    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    with suppress(OSError, StopIteration):
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return 0
