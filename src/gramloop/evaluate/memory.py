"""Memory of a process that runs a model: its peak, and what happens when an image does not fit."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from gramloop.errors import GramLoopError
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor

# what PyTorch says in a plain RuntimeError: on the CPU, on MPS, and in libraries below CUDA
_WORDS = ("can't allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED")
_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class OutOfMemoryError(GramLoopError):
    """An image does not fit into memory: its part is not stored, and all others are."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory did not suffice."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)


def too_large(
    predictor: Predictor[Prediction], device: torch.device, images: Sequence[tuple[object, int, int]]
) -> OutOfMemoryError:
    """The error about images (name, height, width) that were predicted together, and what to change."""
    name, height, width = max(images, key=lambda image: image[1] * image[2])
    about = f"{width} x {height}"
    advice = ["a smaller --short-side"]
    if len(images) > 1:
        about += f", in a batch of {len(images)}"
        advice.insert(0, "--batch 1")
    weights = next((each for block in predictor.blocks for each in block.parameters()), None)
    if device.type != "cpu" and weights is not None and weights.dtype == torch.float32:
        advice.append("--dtype bfloat16")
    advice.append("another --device")
    return OutOfMemoryError(
        f"{name} ({about}) does not fit into the memory of {device}; try "
        f"{', '.join(advice[:-1])} or {advice[-1]}"
    )


def release_memory(device: torch.device) -> None:
    """Give back what a failed prediction left behind."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def reset_peak(device: torch.device) -> None:
    """Measure the peak from now on, where the system can; elsewhere it is that of the process's whole life."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        _RESET.write_text("5")
    except OSError:
        return


def peak_memory(device: torch.device) -> int:
    """The most bytes in use at once: of the GPU's tensors, or of the process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    try:
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration):
        pass
    try:
        import resource
    except ImportError:  # not a Unix system
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)
