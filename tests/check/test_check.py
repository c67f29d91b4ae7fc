"""``gramloop check`` agrees on a sound machine, and says so where something is wrong."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gramloop.check import CheckResult, check_machine, checking
from gramloop.check.checking import EXACT, HEADS, VARIANTS, agreement, describe_machine
from gramloop.cli import main
from gramloop.replay import gram
from gramloop.util.device import deterministic_algorithms
from stand_in_gpu import stand_in_gpu
from stand_in_mps import stand_in_mps

GROUPS = {"drift", "placement", "head", "behaviour"}


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
    assert found["verdict"].startswith("GramLoop computes on cpu in float32 what it should")
    assert {case["group"] for case in found["cases"]} == GROUPS
    assert len(found["cases"]) == 4 + len(VARIANTS) + len(HEADS) + 2
    assert found["machine"]["packages"]["torch"].startswith(torch.__version__.split("+")[0])
    assert found["cases"][-1]["passed"]


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """One placement, one head and no compiler: what comes out is printed in the same way."""
    monkeypatch.setattr(checking, "VARIANTS", {"Gram gate, as published": {}})
    monkeypatch.setattr(checking, "HEADS", {"PMT": HEADS["PMT"]})
    monkeypatch.setattr(checking, "can_compile", lambda: False)


def test_what_people_see(little: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--device", "cpu"]) == 0
    told = capsys.readouterr().out
    assert "GramLoop computes on cpu in float32 what it should: 7 of 7 checks agree." in told
    assert "torch.compile" in told
    assert "not tried" in told
    assert "NO" not in told.split()


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
    monkeypatch.setattr(checking, "HEADS", {})
    found = [case for case in check_machine("cpu").cases if case.group == "placement"]
    assert len(found) == len(VARIANTS)
    assert not any(case.passed for case in found)
    assert all(case.digits is not None and 2 < case.digits < 4 for case in found)


def test_what_a_device_cannot_do_is_a_line(
    little: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> Any:
        raise NotImplementedError("\nno kernel for this [device]\nand much more")

    monkeypatch.setattr(checking, "HEADS", {"PMT": missing})
    assert main(["check", "--device", "cpu", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    [case] = [case for case in found["cases"] if case["group"] == "head"]
    assert case["note"] == "NotImplementedError: no kernel for this [device]"
    assert found["verdict"].startswith("1 of 7 checks on cpu in float32 do not agree (head: PMT)")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--device", "cuda:7"], "cuda:7 is not on this machine"),
        (["--device", "cpu", "--dtype", "bfloat16", "--autocast"], "leave out one of them"),
    ],
)
def test_misuse(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *words]) == 2
    assert message in capsys.readouterr().err


def sound(found: CheckResult) -> None:
    assert [case for case in found.cases if case.passed is False] == []
    assert {case.group for case in found.cases} == GROUPS
    assert [case.name for case in found.cases if case.passed is None] == ["torch.compile"]


PRECISIONS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16 autocast": {"autocast": True},
    "bfloat16 weights": {"dtype": "bfloat16"},
}


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows nothing of a stand-in."""
    monkeypatch.setattr(checking, "can_compile", lambda: False)


@pytest.mark.parametrize("name", PRECISIONS)
def test_on_the_stand_in_for_a_gpu(name: str, monkeypatch: pytest.MonkeyPatch, no_compiler: None) -> None:
    if name != "float32":
        monkeypatch.setattr(checking, "VARIANTS", {"Gram gate, as published": {}})
    with stand_in_gpu():
        found = check_machine("cuda:0", **PRECISIONS[name])
    sound(found)
    assert found.precision == name


def test_on_the_stand_in_for_mps(monkeypatch: pytest.MonkeyPatch, no_compiler: None) -> None:
    some = ("Gram gate, as published", "matched constant gate", "adaptive by noise")
    monkeypatch.setattr(checking, "VARIANTS", {name: VARIANTS[name] for name in some})
    with stand_in_mps():
        sound(check_machine("mps"))


def test_cublas_that_was_not_told_is_an_error(monkeypatch: pytest.MonkeyPatch, no_compiler: None) -> None:
    """In a process that began without gramloop, products came before the setting."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    monkeypatch.setattr(checking, "VARIANTS", {})
    monkeypatch.setattr(checking, "HEADS", {})
    with stand_in_gpu():
        [case] = check_machine("cuda:0").failed
    assert case.name == "deterministic algorithms"
    assert "start Python with CUBLAS_WORKSPACE_CONFIG=:4096:8" in case.note


@pytest.mark.parametrize("name", ["bfloat16 autocast", "bfloat16 weights"])
def test_python(name: str, little: None) -> None:
    seen: list[str] = []
    before = torch.backends.cudnn.allow_tf32
    found = check_machine("cpu", **PRECISIONS[name], on_case=lambda case: seen.append(case.name))
    assert torch.backends.cudnn.allow_tf32 == before
    assert len(seen) == len(found.cases)
    assert found.verdict.startswith(f"GramLoop computes on cpu in {name} what it should")
    assert all(0 < case.digits < 4 for case in found.cases if case.group == "placement" and case.digits)


def test_every_gpu_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = {0: SimpleNamespace(name="one", total_memory=2**34)}
    cards[1] = SimpleNamespace(name="other", total_memory=2**36)
    with stand_in_gpu():
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: cards[device.index])
        devices = describe_machine(torch.device("cuda:0"))["devices"]
    assert devices["cuda:0"] == "one, 16.0 GiB"
    assert devices["cuda:1"] == "other, 64.0 GiB"


def test_deterministic_mode_is_left_as_it_was(little: None) -> None:
    with deterministic_algorithms():
        assert not check_machine("cpu").failed
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
