"""What a bug report asks for first: versions, devices, memory."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from gramloop.util.device import available_devices

_PACKAGES = ("gramloop", "torch", "transformers", "safetensors", "numpy", "opencv-python-headless", "pillow")


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Versions of packages, what the machine has, and which device was chosen."""
    return {
        "packages": {name: _version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": _memory(),
        "cuda": torch.version.cuda,
        "cudnn": _cudnn(),
        "float32_products": torch.get_float32_matmul_precision(),
        "float32_convolutions": "tf32" if torch.backends.cudnn.allow_tf32 else "highest",
        "devices": [_described(name) for name in available_devices()],
        "device": str(device),
        "free_bytes": _free(device),
    }


def _described(name: str) -> dict[str, Any]:
    """A device, without taking memory of it."""
    if name == "mps":
        return {"device": name, "name": "Apple GPU", "memory_bytes": torch.mps.recommended_max_memory()}
    if not name.startswith("cuda"):
        return {"device": name, "name": platform.processor() or platform.machine()}
    found = torch.cuda.get_device_properties(torch.device(name))
    return {
        "device": name,
        "name": found.name,
        "memory_bytes": found.total_memory,
        "capability": f"{found.major}.{found.minor}",
    }


def _free(device: torch.device) -> int | None:
    """Memory that nobody uses of the chosen GPU, which is about to be used anyway."""
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else None


def _cudnn() -> int | None:
    found: int | None = torch.backends.cudnn.version() if torch.cuda.is_available() else None  # type: ignore[no-untyped-call]
    return found


def _memory() -> int | None:
    names = "SC_PAGE_SIZE", "SC_PHYS_PAGES"
    known = getattr(os, "sysconf_names", {})
    return os.sysconf(names[0]) * os.sysconf(names[1]) if all(name in known for name in names) else None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
