"""Products of matrices on a GPU are deterministic where cuBLAS was told so before the first of them."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from gramloop.errors import GramLoopError
from gramloop.io.determinism import deterministic_algorithms
from stand_in_gpu import stand_in_gpu

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
BEFORE_AND_WITHIN = f"""
import sys, torch
from gramloop.io.determinism import deterministic_algorithms
if sys.argv[1] == "before":
    import {COMPILER}
with deterministic_algorithms():
    assert torch.are_deterministic_algorithms_enabled()
    assert ("{COMPILER}" in sys.modules) is (sys.argv[1] == "before")
    if sys.argv[1] != "never":
        import {COMPILER} as compiler
        assert compiler.deterministic
assert not torch.are_deterministic_algorithms_enabled()
import {COMPILER} as compiler
assert not compiler.deterministic
"""


@pytest.mark.parametrize("imported", ["before", "within", "never"])
def test_the_compiler_is_told_and_not_imported_for_it(imported: str) -> None:
    subprocess.run([sys.executable, "-c", BEFORE_AND_WITHIN, imported], check=True)


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
