"""``gramloop check`` agrees on a sound machine, and says so where something is wrong."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from gramloop.check import check_machine
from gramloop.check.arithmetic import VARIANTS, drift_cases, placement_cases
from gramloop.check.case import EXACT, agreement
from gramloop.check.heads import HEADS, head_cases
from gramloop.cli import main
from gramloop.core import drift
from stand_in_gpu import stand_in_gpu


def test_digits_of_agreement() -> None:
    one = torch.tensor([1.0, 10.0])
    assert agreement(one, one) == EXACT
    assert math.isclose(agreement(one + 0.01, one), 3, abs_tol=1e-5)
    assert agreement(one[:1], one) < 0
    assert agreement(one * math.nan, one) < 0
    assert agreement(one, torch.zeros(2)) < 0


def test_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--device", "cpu", "--json", str(tmp_path / "check.json")]) == 0
    told = capsys.readouterr().out
    assert "GramLoop computes on cpu in float32 what it should" in told
    found = json.loads((tmp_path / "check.json").read_text())
    assert found["passed"]
    assert {case["group"] for case in found["cases"]} == {"drift", "gate", "placement", "head", "behaviour"}
    assert len(found["cases"]) > len(VARIANTS) + len(HEADS) + 4
    assert found["machine"]["packages"]["torch"].startswith(torch.__version__.split("+")[0])


def test_a_wrong_machine_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    right = drift._squared_row_change
    monkeypatch.setattr(drift, "_squared_row_change", lambda *given: right(*given) * 1.0001)  # as TF32 would
    assert main(["check", "--device", "cpu"]) == 1
    told = capsys.readouterr().out
    assert "do not trust numbers of this machine" in told
    assert "NO" in told


def test_a_device_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--device", "cuda:7"]) == 2
    assert "cuda:7 is not on this machine" in capsys.readouterr().err


@pytest.mark.parametrize("autocast", [False, True])
def test_on_the_stand_in_for_a_gpu(autocast: bool) -> None:
    with stand_in_gpu():
        place = torch.device("cuda:0")
        cases = [*drift_cases(place), *placement_cases(place, autocast), *head_cases(place, autocast)]
    assert [case.name for case in cases if not case.passed] == []
    assert len(cases) > 20


def test_python() -> None:
    seen: list[str] = []
    found = check_machine("cpu", autocast=True, watch=lambda case: seen.append(case.name))
    assert len(seen) == len(found.cases)
    assert found.verdict.startswith("GramLoop computes on cpu in bfloat16 autocast what it should")
