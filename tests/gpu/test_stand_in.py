"""The stand-in refuses what a GPU refuses; what runs on it has the CPU's numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stand_in_gpu import NOT_DETERMINISTIC, determined, stand_in_gpu

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
    "attention": lambda there: F.scaled_dot_product_attention(there[None], HERE[None], HERE[None]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_places_do_not_mix(name: str) -> None:
    with stand_in_gpu(), pytest.raises(RuntimeError, match="same device"):
        REFUSED[name](HERE.to("cuda"))


UNDETERMINED: dict[str, Callable[[Tensor], object]] = {
    "cumsum": lambda there: there.cumsum(1),
    "cumsum of a mask in floats": lambda there: (there > 1).cumsum(1, dtype=torch.float32),
    "median with indices": lambda there: there.median(1),
    "histc": lambda there: there.histc(4),
    "bincount with weights": lambda there: torch.bincount(there[0].long(), there[0]),
    "put_": lambda there: there.put_(torch.tensor([0], device="cuda"), torch.tensor([1.0], device="cuda")),
    "nll_loss": lambda there: F.nll_loss(there, torch.tensor([0, 1], device="cuda")),
    "max_unpool1d": lambda there: F.max_unpool1d(
        there[None], torch.tensor([[[0, 2, 4]] * 2], device="cuda"), 2
    ),
    "scatter_reduce of products": lambda there: there.scatter_reduce(
        1, torch.zeros(2, 3, dtype=torch.int64, device="cuda"), there, "prod"
    ),
}


@pytest.mark.parametrize("name", UNDETERMINED)
def test_what_has_no_deterministic_kernel(name: str) -> None:
    with determined(), stand_in_gpu(), pytest.raises(RuntimeError, match="deterministic"):
        UNDETERMINED[name](HERE.to("cuda"))
    with stand_in_gpu():
        UNDETERMINED[name](HERE.to("cuda"))


# what PyTorch lists, by the operators that arrive at a device
LISTED = {
    "MaxUnpool1d": ["max_unpool2d"],
    "MaxUnpool2d": ["max_unpool2d"],
    "MaxUnpool3d": ["max_unpool3d"],
    "NLLLoss": ["nll_loss_forward", "nll_loss2d_forward"],
    "put_": ["put_", "put"],
    "histc": ["histc"],
    "bincount": ["bincount"],
    "median": ["median", "nanmedian"],
    "cumsum": ["cumsum", "cumsum_"],
    "scatter_reduce": ["scatter_reduce", "scatter_reduce_"],
    "resize_": ["resize_"],
}


def test_pytorchs_list_is_covered_as_far_as_forwards_go() -> None:
    """The list stands in the documentation of the version that is installed, so a longer one is noticed."""
    told = torch.use_deterministic_algorithms.__doc__ or ""
    told = told[told.index("operations will throw a") : told.index("In addition, several operations")]
    entries = [" ".join(entry.split()) for entry in told.split("* :")[1:]]
    forward = [entry for entry in entries if "differentiate" not in entry]
    names = {entry.split("`")[1].rpartition(".")[2] for entry in forward}
    assert len(entries) > len(forward)
    assert names == LISTED.keys()
    assert {name for operators in LISTED.values() for name in operators} <= NOT_DETERMINISTIC.keys()


def test_autocast_is_the_dispatchers_own() -> None:
    with stand_in_gpu(), torch.autocast("cuda", torch.bfloat16):
        there = HERE.to("cuda")
        assert (there @ there.T).dtype == torch.bfloat16
        assert F.scaled_dot_product_attention(*[there[None, None]] * 3).dtype == torch.bfloat16
        assert F.layer_norm(there.bfloat16(), (3,)).dtype == torch.float32
        assert there.softmax(1).dtype == torch.float32
