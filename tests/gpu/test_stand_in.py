"""The stand-in refuses what a GPU refuses; what runs on it has the CPU's numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stand_in_gpu import stand_in_gpu

HERE = torch.arange(6.0).reshape(2, 3)


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    """They would ask for a real device, and end the process where there is none."""
    with torch.no_grad():
        yield


REFUSED: dict[str, Callable[[Tensor], object]] = {
    "arithmetic": lambda there: there + HERE,
    "concatenation": lambda there: torch.cat([there, HERE]),
    "indexing by a CPU tensor": lambda there: there[torch.tensor([0])],
    "indexing a CPU tensor": lambda there: HERE[(there > 0)],
    "assignment": lambda there: there.__setitem__(0, HERE[0]),
    "weights left behind": lambda there: nn.Linear(3, 3)(there),
    "an image left behind": lambda there: nn.Linear(3, 3).to("cuda")(HERE),
    "where": lambda there: torch.where(HERE > 0, there, there),
    "in place": lambda there: HERE.clone().add_(there),
}


@pytest.mark.parametrize("name", REFUSED)
def test_places_do_not_mix(name: str) -> None:
    with stand_in_gpu(), pytest.raises(RuntimeError, match="same device"):
        REFUSED[name](HERE.to("cuda"))


@pytest.mark.parametrize("read", [lambda value: value.numpy(), np.asarray, np.array])
def test_no_numpy_without_a_copy(read: Callable[[Tensor], object]) -> None:
    with stand_in_gpu():
        there = HERE.to("cuda:0")
        with pytest.raises(TypeError, match="numpy"):
            read(there)
        assert np.array_equal(there.cpu().numpy(), HERE.numpy())


UNDETERMINED: dict[str, Callable[[Tensor], object]] = {
    "cumsum": lambda there: there.cumsum(1),
    "median with indices": lambda there: there.median(1),
    "histc": lambda there: there.histc(4),
    "bincount with weights": lambda there: torch.bincount(there[0].long(), there[0]),
    "put_": lambda there: there.put_(torch.tensor([0], device="cuda"), torch.tensor([1.0], device="cuda")),
    "nll_loss": lambda there: F.nll_loss(there, torch.tensor([0, 1], device="cuda")),
}


@pytest.mark.parametrize("name", UNDETERMINED)
def test_what_has_no_deterministic_kernel(name: str) -> None:
    try:
        torch.use_deterministic_algorithms(True)
        with stand_in_gpu(), pytest.raises(RuntimeError, match="deterministic"):
            UNDETERMINED[name](HERE.to("cuda"))
    finally:
        torch.use_deterministic_algorithms(False)
    with stand_in_gpu():
        UNDETERMINED[name](HERE.to("cuda"))


def test_whole_numbers_may_be_summed_up() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        with stand_in_gpu():
            assert (HERE.to("cuda") > 1).cumsum(1).tolist() == [[0, 0, 1], [1, 2, 3]]
    finally:
        torch.use_deterministic_algorithms(False)


def test_numbers_are_those_of_the_cpu() -> None:
    torch.manual_seed(0)
    layer = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).eval()
    x = torch.randn(2, 5, 16)
    with torch.no_grad():
        expected = layer(x)
        with stand_in_gpu():
            found = layer.to("cuda:0")(x.to("cuda:0"))
            assert found.is_cuda
            assert torch.equal(found.cpu(), expected)


def test_autocast_is_the_dispatchers_own() -> None:
    with stand_in_gpu(), torch.autocast("cuda", torch.bfloat16):
        there = HERE.to("cuda")
        assert (there @ there.T).dtype == torch.bfloat16
        assert F.scaled_dot_product_attention(*[there[None, None]] * 3).dtype == torch.bfloat16
        assert F.layer_norm(there.bfloat16(), (3,)).dtype == torch.float32
        assert there.softmax(1).dtype == torch.float32
