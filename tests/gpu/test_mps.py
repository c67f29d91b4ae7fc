"""The core's hosts, predictors and an evaluation on the stand-in for MPS: nothing there is float64 or left on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import gramloop
from conftest import EMBEDDED, RELEASED, Load
from gramloop.mitigations import apply, calibrate
from gramloop.util.device import choose_device
from library_models import MODELS
from small_runs import runner_of, small_plan, write_model, write_scene_set
from stand_in_audit import (
    INDEXED_FROM_CPU,
    PIXELS,
    VARIANTS,
    alike,
    audit_float32,
    frozen,
    moved,
    parts,
    seen,
)
from stand_in_mps import stand_in_mps

Loaders = Callable[[str], Load]
HERE = torch.arange(6.0).reshape(2, 3)
REFUSED: dict[str, Callable[[Tensor], object]] = {
    "made there": lambda there: torch.zeros(3, dtype=torch.float64, device="mps"),
    "made like one": lambda there: torch.zeros_like(there, dtype=torch.float64),
    "moved there": lambda there: HERE.double().to("mps"),
    "converted": lambda there: there.double(),
    "converted on its way": lambda there: there.to("cpu", torch.float64),
    "summed": lambda there: there.sum(dtype=torch.float64),
    "promoted": lambda there: torch.mul(there.long(), torch.tensor(0.5, dtype=torch.float64)),
    "of Python's data": lambda there: torch.tensor([0.5], dtype=torch.float64, device="mps"),
    "of an array": lambda there: torch.as_tensor(np.zeros(2), device="mps"),
}


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.mark.parametrize("name", REFUSED)
def test_there_is_no_float64(name: str) -> None:
    with stand_in_mps(), pytest.raises(TypeError, match="doesn't support float64"):
        REFUSED[name](HERE.to("mps"))


def test_places_do_not_mix_and_numbers_are_the_cpus() -> None:
    with stand_in_mps():
        assert choose_device("auto").type == "mps"
        there = HERE.to("mps")
        assert there.device == torch.device("mps:0")
        with pytest.raises(RuntimeError, match="same device"):
            there + HERE
        assert torch.equal((there @ there.T).cpu().double(), (HERE @ HERE.T).double())


def check(name: str, variant: str) -> None:
    """Where the CPU has float64 for a few numbers, MPS has float32, so that the last digits of a drift differ."""
    model, x = frozen(name)
    expected = seen(model, x, VARIANTS[variant])
    with stand_in_mps(indices_from_cpu=name.startswith(INDEXED_FROM_CPU)):
        found = seen(moved(model, "mps"), x.to("mps"), VARIANTS[variant])
    assert len(found) == len(expected) > 3
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-3, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("name", MODELS)
def test_every_host(name: str) -> None:
    check(name, "published")


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant(variant: str) -> None:
    check("DINOv3ViTModel", variant)


@pytest.mark.parametrize(
    "name", [*EMBEDDED, *(pytest.param(name, marks=pytest.mark.slow) for name in RELEASED)]
)
def test_predictors(name: str, load_of: Loaders) -> None:
    audit_float32(load_of(name), "mps:0", apart=2e-2)


def test_calibration_and_recentring(load_of: Loaders) -> None:
    images = [PIXELS // number for number in range(1, 9)]
    here = load_of("panoptic")("cpu")
    source = calibrate(here, images)
    expected = parts(apply("recentre:c=0.5", here, source).predict(PIXELS))
    with stand_in_mps():
        there = load_of("panoptic")("mps")
        assert calibrate(there, images).images == source.images
        alike(parts(apply("recentre:c=0.5", there, source).predict(PIXELS)), expected)


def test_an_evaluation(tmp_path: Path) -> None:
    model, scenes = write_model(tmp_path / "model"), write_scene_set(tmp_path / "scenes", 2)
    methods = ["baseline", "gramloop", "matched", "flip"]
    plan = small_plan(
        model, scenes, "semantic", conditions=["fog"], shards=1, methods=methods, diagnostics=True
    )
    with stand_in_mps():
        runner = runner_of(plan, device="mps")
        done = [rows for part in plan.parts for rows in runner.run_one(part).rows.values()]
    assert sum(len(each.rows) for each in done) == 2 * len(plan.methods) * len(plan.conditions)
    assert not any(each.failures for each in done)


def test_calibrating_any_host() -> None:
    model, x = frozen("Dinov2Model")
    with stand_in_mps():
        stats = gramloop.calibrate(moved(model, "mps"), [x.to("mps")] * 4)
    assert stats.images == 8
    assert stats.at == "norm"
