"""What a model runs on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gramloop.errors import GramLoopError

if TYPE_CHECKING:
    import torch


def choose_device(name: str | None) -> torch.device:
    """The device of that name, such as ``cuda:1``; without one the GPU if there is one, else the CPU."""
    import torch

    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type == "cuda":  # counted, not tried: that would take memory of the GPU
            there = (device.index or 0) < torch.cuda.device_count()
        else:
            there = not torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError):  # of an unknown name, or a torch without that device
        there = False
    if not there:
        raise GramLoopError(f"--device {name} is not on this machine; cpu always is")
    return device
