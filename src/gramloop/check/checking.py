"""The first minute on a machine: does it compute what it should?"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from typing import Any

import torch

from gramloop.check.cases import Case, behaviour_cases, drift_cases, head_cases, placement_cases
from gramloop.check.small_models import Precision
from gramloop.errors import GramLoopError
from gramloop.util.device import available_devices

_PACKAGES = ("gramloop", "torch", "transformers", "safetensors", "numpy", "opencv-python-headless", "pillow")
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Checked:
    """A machine, what was checked on it, and how it came out."""

    machine: dict[str, Any]
    precision: str
    cases: tuple[Case, ...]

    @property
    def failed(self) -> tuple[Case, ...]:
        """What does not agree."""
        return tuple(case for case in self.cases if case.passed is False)

    @property
    def verdict(self) -> str:
        """In one line."""
        where = f"{self.machine['device']} in {self.precision}"
        judged = [case for case in self.cases if case.passed is not None]
        if not self.failed:
            return (
                f"GramLoop computes on {where} what it should: {len(judged)} of {len(judged)} checks agree."
            )
        names = ", ".join(f"{case.group}: {case.name}" for case in self.failed[:3])
        return (
            f"{len(self.failed)} of {len(judged)} checks on {where} do not agree ({names}): do not trust numbers of this "
            "machine; what gramloop check --json prints is what a report of the fault needs."
        )

    def as_json(self) -> dict[str, Any]:
        """Everything, as plain values."""
        return {
            "machine": self.machine,
            "precision": self.precision,
            "passed": not self.failed,
            "verdict": self.verdict,
            "cases": [asdict(case) for case in self.cases],
        }


def check_machine(
    device: torch.device | str = "cpu",
    autocast: bool = False,
    dtype: str = "float32",
    watch: Callable[[Case], None] = lambda case: None,
) -> Checked:
    """Run every check on a device.

    Args:
        device: such as ``cuda:1``.
        autocast: run the backbone's blocks under bfloat16 autocast, as GPUs run the released models.
        dtype: of the backbone's weights.
        watch: sees each case as it is done.
    """
    if dtype not in _DTYPES:
        raise GramLoopError(f"dtype is {dtype!r}; it is one of {', '.join(_DTYPES)}")
    if autocast and dtype != "float32":
        raise GramLoopError("autocast is for weights in float32; leave out --autocast or --dtype")
    precision = Precision(torch.device(device), _DTYPES[dtype], autocast)
    cases = []
    with true_float32():
        for case in _all(precision):
            watch(case)
            cases.append(case)
    return Checked(describe_machine(precision.device), precision.words, tuple(cases))


def _all(precision: Precision) -> Iterator[Case]:
    return chain(*(cases(precision) for cases in (drift_cases, placement_cases, head_cases, behaviour_cases)))


@contextmanager
def true_float32() -> Iterator[None]:
    """Products and convolutions in float32 itself: by default PyTorch lets a GPU round convolutions to TF32."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


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
    """Free memory of the chosen GPU."""
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
