"""The most memory that was in use at once since a moment one chooses."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def reset_peak(device: torch.device) -> None:
    """Begin anew, where the system can; elsewhere the peak is that of the process's whole life."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        _RESET.write_text("5")
    except OSError:
        return


def peak_memory(device: torch.device) -> int:
    """Bytes: of the GPU's tensors, or of the process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    try:
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration):
        return _life_peak()


def _life_peak() -> int:
    try:
        import resource
    except ImportError:  # not a Unix system
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)
