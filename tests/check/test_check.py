"""``gramloop check`` agrees on a sound machine, and says so where something is wrong."""

from __future__ import annotations

import json
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gramloop import check
from gramloop.check import EXACT, VARIANTS, agreement, check_machine
from gramloop.cli import main
from gramloop.replay import gram
from gramloop.util.device import deterministic_algorithms
from stand_in_gpu import stand_in_gpu
from stand_in_mps import stand_in_mps


def test_digits_of_agreement() -> None:
    one = torch.tensor([1.0, 10.0])
    assert agreement(one, one) == EXACT
    assert math.isclose(agreement(one + 0.01, one), 3, abs_tol=1e-5)
    assert agreement(one[:1], one) < 0
    assert agreement(one * math.nan, one) < 0
    assert agreement(one, torch.zeros(2)) < 0


def test_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["passed"]
    assert found["verdict"] == "GramLoop computes on cpu in float32 what it should: all 12 comparisons agree."
    assert [case["name"] for case in found["comparisons"]][4:-1] == list(VARIANTS)
    assert found["comparisons"][-1]["digits"] == EXACT


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """One placement: what comes out is printed in the same way."""
    monkeypatch.setattr(check, "VARIANTS", {"Gram gate, as published": {}})


def test_a_wrong_machine_is_told(
    little: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = gram._squared_row_change
    monkeypatch.setattr(gram, "_squared_row_change", lambda *given: right(*given) * 1.00001)
    assert main(["check", "--device", "cpu"]) == 1
    told = capsys.readouterr().out
    assert "do not trust numbers of this machine" in " ".join(told.split())
    assert "NO" in told.split()


def in_tf32(value: Tensor) -> Tensor:
    """Ten bits of the fraction, as a GPU's fast float32 keeps them."""
    return value if value.dtype != torch.float32 else (value.view(torch.int32) & ~0x1FFF).view(torch.float32)


def test_products_in_tf32_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    right = F.linear
    monkeypatch.setattr(F, "linear", lambda x, weight, bias=None: right(in_tf32(x), in_tf32(weight), bias))
    found = [each for each in check_machine("cpu") if each.name in VARIANTS]
    assert len(found) == len(VARIANTS)
    assert not any(each.passed for each in found)
    assert all(2 < each.digits < 4 for each in found)


def test_what_a_device_cannot_do_is_a_line(little: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise NotImplementedError("\nno kernel for this [device]\nand much more")

    monkeypatch.setattr(check, "load_tiny", missing)
    found = [each for each in check_machine("cpu") if not each.passed]
    assert [each.note for each in found] == ["NotImplementedError: no kernel for this [device]"] * 2


def test_misuse(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--device", "cuda:7"]) == 2
    assert "cuda:7 is not on this machine" in capsys.readouterr().err


@pytest.mark.parametrize("autocast", [False, True])
def test_on_the_stand_in_for_a_gpu(autocast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if autocast:
        monkeypatch.setattr(check, "VARIANTS", {"Gram gate, as published": {}})
    with stand_in_gpu():
        assert [each for each in check_machine("cuda:0", autocast) if not each.passed] == []


def test_on_the_stand_in_for_mps(monkeypatch: pytest.MonkeyPatch) -> None:
    some = ("Gram gate, as published", "matched constant gate", "adaptive by noise")
    monkeypatch.setattr(check, "VARIANTS", {name: VARIANTS[name] for name in some})
    with stand_in_mps():
        assert [each for each in check_machine("mps") if not each.passed] == []


def test_cublas_that_was_not_told_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process that began without gramloop, products came before the setting."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    monkeypatch.setattr(check, "VARIANTS", {})
    with stand_in_gpu():
        [wrong] = [each for each in check_machine("cuda:0") if not each.passed]
    assert wrong.name == "two forwards of one image"
    assert "start Python with CUBLAS_WORKSPACE_CONFIG=:4096:8" in wrong.note


def test_settings_are_left_as_they_were(little: None) -> None:
    before = torch.backends.cudnn.allow_tf32
    with deterministic_algorithms():
        found = check_machine("cpu", autocast=True)
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.allow_tf32 == before
    assert all(0 < each.digits < 4 for each in found if each.name in VARIANTS)
