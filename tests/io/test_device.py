"""One choice of a device: what is there is taken, what is not there is one sentence."""

import pytest
import torch

from gramloop.errors import GramLoopError
from gramloop.io.device import choose_device


def with_gpus(monkeypatch, count):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


def test_the_gpu_where_there_is_one(monkeypatch):
    with_gpus(monkeypatch, 2)
    assert choose_device(None) == torch.device("cuda")
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device("cuda").type == "cuda"
    assert choose_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(GramLoopError, match="--device cuda:2 is not on this machine; cpu always is"):
        choose_device("cuda:2")


def test_the_cpu_where_there_is_none(monkeypatch):
    with_gpus(monkeypatch, 0)
    assert choose_device(None) == torch.device("cpu")
    assert torch.zeros(2, device=choose_device("cpu")).sum() == 0


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:x", "abacus", "", "hpu", "xla", "meta"])
def test_what_is_not_there_is_one_sentence(monkeypatch, name):
    with_gpus(monkeypatch, 0)
    with pytest.raises(GramLoopError) as caught:
        choose_device(name)
    assert str(caught.value) == f"--device {name} is not on this machine; cpu always is"
