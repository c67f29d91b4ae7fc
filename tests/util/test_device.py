"""One choice of a device: what is there is taken, what is not there is one sentence that lists what is."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from gramloop.errors import GramLoopError
from gramloop.util.device import (
    available_devices,
    choose_device,
    deterministic_algorithms,
    gpus_of,
    numbered_device,
)
from stand_in_gpu import stand_in_gpu


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
    assert available_devices() == here
    assert choose_device(name) == torch.device(best)
    assert choose_device("cpu") == torch.device("cpu")


def test_a_gpu_by_its_number(monkeypatch):
    with_devices(monkeypatch, 2)
    assert choose_device("cuda") == torch.device("cuda")
    assert choose_device("cuda:1") == torch.device("cuda", 1)
    assert [numbered_device(name) for name in ("cuda:1", "cuda", "auto", "cpu", None)] == [
        "cuda:1",
        *[None] * 4,
    ]
    assert gpus_of(torch.device("cuda")) == ("cuda:0", "cuda:1")
    assert gpus_of(torch.device("cuda:1")) == ("cuda:1",)
    assert gpus_of(torch.device("cpu")) == gpus_of(torch.device("mps")) == ()
    with pytest.raises(GramLoopError) as caught:
        choose_device("cuda:2")
    assert str(caught.value) == "--device cuda:2 is not on this machine; there is cpu, cuda:0, cuda:1"


def test_mps_by_both_its_names(monkeypatch):
    with_devices(monkeypatch, 0, mps=True)
    assert choose_device("mps").type == choose_device("mps:0").type == "mps"
    with pytest.raises(GramLoopError, match="--device mps:1 is not on this machine; there is cpu, mps"):
        choose_device("mps:1")


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:x", "mps", "abacus", "", "hpu", "xla", "meta"])
def test_what_is_not_there_is_one_sentence(monkeypatch, name):
    with_devices(monkeypatch, 0)
    with pytest.raises(GramLoopError) as caught:
        choose_device(name)
    assert str(caught.value) == f"--device {name} is not on this machine; there is cpu"


CONFIG = "CUBLAS_WORKSPACE_CONFIG"


def test_importing_gramloop_tells_cublas_before_torch_is_there() -> None:
    code = f"import gramloop, os, sys; print(os.environ['{CONFIG}'], 'torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], env={}, capture_output=True, text=True, check=True)
    assert told.stdout.split() == [":4096:8", "False"]


def test_a_setting_of_the_user_stays() -> None:
    code = f"import gramloop, os; print(os.environ['{CONFIG}'])"
    told = subprocess.run(
        [sys.executable, "-c", code], env={CONFIG: ":16:8"}, capture_output=True, text=True, check=True
    )
    assert told.stdout.split() == [":16:8"]


def test_too_late_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONFIG)
    with torch.no_grad(), stand_in_gpu():
        matrix = torch.eye(3).to("cuda")
        assert torch.equal((matrix @ matrix).cpu(), torch.eye(3))
        told = pytest.raises(GramLoopError, match="start Python with CUBLAS_WORKSPACE_CONFIG=:4096:8")
        with told, deterministic_algorithms():
            matrix @ matrix
    assert not torch.are_deterministic_algorithms_enabled()


def test_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONFIG)
    with torch.no_grad(), stand_in_gpu(), deterministic_algorithms():
        matrix = torch.eye(3).to("cuda")
        assert torch.equal((matrix @ matrix).cpu(), torch.eye(3))


def test_other_errors_pass() -> None:
    with pytest.raises(RuntimeError, match="something else"), deterministic_algorithms():
        raise RuntimeError("something else")
    assert not torch.are_deterministic_algorithms_enabled()


COMPILER = "torch._inductor.config"
IMPORTED_BEFORE = f"""
import sys, torch
from gramloop.util.device import deterministic_algorithms
with deterministic_algorithms():
    assert torch.are_deterministic_algorithms_enabled()
    assert "{COMPILER}" not in sys.modules
import {COMPILER} as compiler
with deterministic_algorithms():
    assert compiler.deterministic
assert not compiler.deterministic
"""


def test_the_compiler_is_told_and_not_imported_for_it() -> None:
    subprocess.run([sys.executable, "-c", IMPORTED_BEFORE], check=True)


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_what_was_set_before_is_set_again(mode: int) -> None:
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode(mode)
    try:
        with deterministic_algorithms():
            assert torch.get_deterministic_debug_mode() == 2
        assert torch.get_deterministic_debug_mode() == mode
    finally:
        torch.set_deterministic_debug_mode(before)
