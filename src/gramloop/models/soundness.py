"""Whether numbers of a model can be used: finite, and of the kind that the model computes with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from gramloop.errors import GramLoopError


def refuse_infinite(name: str, value: Tensor, path: Path) -> None:
    """Refuse a tensor of a file that holds NaN or an infinity; one pass over it, and no copy."""
    if value.is_meta or not value.is_floating_point() or not value.numel():
        return
    # numbers of eight bits have no order here, and those of 64 may be too large for the model's
    wide = value.detach() if value.element_size() in (2, 4) else value.detach().float()
    low, high = torch.aminmax(wide)
    if not (low.isfinite() and high.isfinite()):
        worst = "NaN" if low.isnan() else "an infinity"
        raise GramLoopError(f"{path} is damaged or was never finished: {name} holds {worst}")


def refuse_kinds(
    expected: Mapping[str, torch.dtype],
    reads: Mapping[str, Iterable[str]],
    found: Mapping[str, torch.dtype],
    path: Path,
) -> None:
    """Refuse whole numbers or truth values in place of the floating-point numbers that a model computes with.

    Args:
        expected: the type of each of the model's tensors.
        reads: the entries of the file that it is made of.
        found: the type of each entry.
        path: the file.
    """
    for target, dtype in expected.items():
        wrong = [name for name in reads.get(target, ()) if not found[name].is_floating_point]
        if dtype.is_floating_point and wrong:
            kind = str(found[wrong[0]]).removeprefix("torch.")
            raise GramLoopError(
                f"{path} holds {wrong[0]} as {kind}; it is a floating-point number, such as float32"
            )


def refuse_unsound(model: nn.Module, path: Path) -> None:
    """Refuse a model that somebody else read from ``path`` where a number in it is not finite."""
    for name, value in model.state_dict().items():
        refuse_infinite(name, value, path)
