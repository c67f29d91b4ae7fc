"""The core's hosts, predictors and an evaluation on the stand-in for MPS: nothing there is float64 or left on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from device_models import EMBEDDED, RELEASED, Load
from stand_in_audit import (
    INDEXED_FROM_CPU,
    VARIANTS,
    audit_float32,
    frozen,
    moved,
    seen,
)
from stand_in_mps import stand_in_mps

Loaders = Callable[[str], Load]
HERE = torch.arange(6.0).reshape(2, 3)
REFUSED: dict[str, Callable[[Tensor], object]] = {
    "made there": lambda there: torch.zeros(3, dtype=torch.float64, device="mps"),
    "made like one": lambda there: torch.zeros_like(there, dtype=torch.float64),
    "moved there": lambda there: HERE.double().to("mps"),
    "converted": lambda there: there.double(),
    "converted on its way": lambda there: there.to("cpu", torch.float64),
    "summed": lambda there: there.sum(dtype=torch.float64),
    "promoted": lambda there: torch.mul(there.long(), torch.tensor(0.5, dtype=torch.float64)),
    "of Python's data": lambda there: torch.tensor([0.5], dtype=torch.float64, device="mps"),
    "of an array": lambda there: torch.as_tensor(np.zeros(2), device="mps"),
}


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.mark.parametrize("name", REFUSED)
def test_there_is_no_float64(name: str) -> None:
    with stand_in_mps(), pytest.raises(TypeError, match="doesn't support float64"):
        REFUSED[name](HERE.to("mps"))


def check(name: str, variant: str) -> None:
    """Where the CPU has float64 for a few numbers, MPS has float32, so that the last digits of a drift differ."""
    model, x = frozen(name)
    expected = seen(model, x, VARIANTS[variant])
    with stand_in_mps(indices_from_cpu=name.startswith(INDEXED_FROM_CPU)):
        found = seen(moved(model, "mps"), x.to("mps"), VARIANTS[variant])
    assert len(found) == len(expected) > 3
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-3, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant(variant: str) -> None:
    check("DINOv3ViTModel", variant)


@pytest.mark.parametrize(
    "name", [*EMBEDDED, *(pytest.param(name, marks=pytest.mark.slow) for name in RELEASED)]
)
def test_predictors(name: str, load_of: Loaders) -> None:
    audit_float32(load_of(name), "mps:0", apart=2e-2)
