"""What a bug report asks for first: versions, devices, memory."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

_PACKAGES = ("gramloop", "torch", "transformers", "safetensors", "numpy", "opencv-python-headless", "pillow")


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Versions of packages, and what the machine and the chosen device are."""
    return {
        "packages": {name: _version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": str(device),
        **_device(device),
    }


def _device(device: torch.device) -> dict[str, Any]:
    if device.type != "cuda":
        return {}
    found = torch.cuda.get_device_properties(device)
    return {
        "name": found.name,
        "memory_bytes": found.total_memory,
        "capability": f"{found.major}.{found.minor}",
        "devices": torch.cuda.device_count(),
        "cuda": torch.version.cuda,
        "bfloat16": torch.cuda.is_bf16_supported(),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
