"""What a model runs on: named as people name it, and one sentence about what is there where a name is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gramloop.errors import GramLoopError

if TYPE_CHECKING:
    import torch

AUTO = "auto"
_SAME = {"cuda": "cuda:0", "mps:0": "mps", "cpu:0": "cpu"}  # names of one device


def choose_device(name: str | None) -> torch.device:
    """The device of that name: cpu, cuda, cuda:1 or mps; of ``auto``, or without a name, the best that is there."""
    import torch

    known = devices_here()
    if name is None or name == AUTO:
        return torch.device("cuda" if "cuda:0" in known else known[-1])
    try:
        device = torch.device(name)
    except RuntimeError:  # no name of any device
        device = None
    if device is not None and _SAME.get(str(device), str(device)) in known:
        return device
    listed = f"{', '.join(known[:-1])} and {known[-1]} are" if len(known) > 1 else "cpu alone is"
    raise GramLoopError(f"--device {name} is not on this machine; {listed}")


def devices_here() -> tuple[str, ...]:
    """What there is: the CPU, every GPU by its number, and MPS; counted, not tried, since that would take memory."""
    import torch

    found = ["cpu"]
    if torch.backends.mps.is_available():
        found.append("mps")
    if torch.cuda.is_available():
        found += [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    return tuple(found)


def placed(name: str | None) -> str | None:
    """The one device that a name tells apart from others of its kind, such as ``cuda:1``; None where it takes any."""
    device = choose_device(name)
    return str(device) if ":" in str(device) else None


def gpus_of(device: torch.device) -> tuple[str, ...]:
    """The GPUs that a name stands for: all of ``cuda``, the one of ``cuda:1``; none where it is another device."""
    if device.type != "cuda":
        return ()
    if ":" in str(device):
        return (str(device),)
    return tuple(name for name in devices_here() if name.startswith("cuda")) or ("cuda",)
