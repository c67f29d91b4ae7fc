"""One choice of a device: what is there is taken, what is not there is one sentence that lists what is."""

import pytest
import torch

from gramloop.errors import GramLoopError
from gramloop.io.device import choose_device, devices_here, gpus_of, placed


def with_devices(monkeypatch, gpus, mps=False):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


@pytest.mark.parametrize(
    ("gpus", "mps", "here", "best"),
    [
        (2, False, ("cpu", "cuda:0", "cuda:1"), "cuda"),
        (0, True, ("cpu", "mps"), "mps"),
        (0, False, ("cpu",), "cpu"),
    ],
)
@pytest.mark.parametrize("name", [None, "auto"])
def test_the_best_that_is_there(monkeypatch, gpus, mps, here, best, name):
    with_devices(monkeypatch, gpus, mps)
    assert devices_here() == here
    assert choose_device(name) == torch.device(best)
    assert choose_device("cpu") == torch.device("cpu")


def test_a_gpu_by_its_number(monkeypatch):
    with_devices(monkeypatch, 2)
    assert choose_device("cuda") == torch.device("cuda")
    assert choose_device("cuda:1") == torch.device("cuda", 1)
    assert [placed(name) for name in ("cuda:1", "cuda", "auto", "cpu", None)] == ["cuda:1", *[None] * 4]
    assert gpus_of(torch.device("cuda")) == ("cuda:0", "cuda:1")
    assert gpus_of(torch.device("cuda:1")) == ("cuda:1",)
    assert gpus_of(torch.device("cpu")) == gpus_of(torch.device("mps")) == ()
    with pytest.raises(GramLoopError) as caught:
        choose_device("cuda:2")
    assert str(caught.value) == "--device cuda:2 is not on this machine; cpu, cuda:0 and cuda:1 are"


def test_mps_by_both_its_names(monkeypatch):
    with_devices(monkeypatch, 0, mps=True)
    assert choose_device("mps").type == choose_device("mps:0").type == "mps"
    with pytest.raises(GramLoopError, match="--device mps:1 is not on this machine; cpu and mps are"):
        choose_device("mps:1")


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:x", "mps", "abacus", "", "hpu", "xla", "meta"])
def test_what_is_not_there_is_one_sentence(monkeypatch, name):
    with_devices(monkeypatch, 0)
    with pytest.raises(GramLoopError) as caught:
        choose_device(name)
    assert str(caught.value) == f"--device {name} is not on this machine; cpu alone is"
