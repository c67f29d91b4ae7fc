from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
import torch

from gramloop.replay.gram import full_float32


@pytest.fixture(autouse=True)
def _restore():
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("outside", ["highest", "high", "medium"])
def test_products_are_full_float32_inside_and_as_before_outside(outside: str) -> None:
    torch.set_float32_matmul_precision(outside)
    with full_float32(torch.device("cpu")):
        assert torch.get_float32_matmul_precision() == "highest"
    assert torch.get_float32_matmul_precision() == outside


def test_autocast_is_off_inside_and_on_again_outside() -> None:
    a = torch.randn(4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        with full_float32(a.device):
            assert (a @ a).dtype == torch.float32
        assert (a @ a).dtype == torch.bfloat16


def test_one_thread_does_not_end_the_full_precision_of_another() -> None:
    torch.set_float32_matmul_precision("high")
    inside, left = Event(), Event()

    def other() -> str:
        with full_float32(torch.device("cpu")):
            inside.set()
            assert left.wait(10)
            return torch.get_float32_matmul_precision()

    with ThreadPoolExecutor(1) as pool:
        with full_float32(torch.device("cpu")):
            during = pool.submit(other)
            assert inside.wait(10)
        left.set()
        assert during.result() == "highest"
    assert torch.get_float32_matmul_precision() == "high"
