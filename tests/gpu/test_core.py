"""Every host of the core's tests, in every variant of a replay, on the stand-in for a GPU."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch
from dense_library_models import Called
from torch import Tensor, nn

import gramloop
from gramloop import Adaptive, ReplayConfig
from gramloop.core.trace import Trace
from library_models import MODELS, build, outputs
from stand_in_gpu import stand_in_gpu

VARIANTS: dict[str, dict[str, Any]] = {
    "published": {},
    "gate at the end": {"gate_at": "end"},
    "update at the last block": {"update_at": "final"},
    "constant": {"gate": "uniform", "strength": 0.3},
    "matched": {"gate": "uniform", "strength": "matched"},
    "ungated": {"gate": "none"},
    "until": {"until": 4},
    "trust": {"trust": 1e-3},
    "length": {"adaptive": Adaptive("length", 0.0, 1e3)},
    "spread": {"adaptive": Adaptive("spread", 0.0, 2.0)},
    "step": {"adaptive": Adaptive("step", 0.0, 2.0)},
    "drift": {"adaptive": Adaptive("drift", 0.0, 2.0)},
}


# these keep tables of indices on the CPU, which CUDA allows
INDEXED_FROM_CPU = ("ZoeDepth", "Beit", "Data2Vec", "VitDet", "Sam")


# their own positions are float sums along a side, which have no deterministic kernel
UNDETERMINED = ("SamModel", "SamHQModel")


def frozen(name: str) -> tuple[nn.Module, Tensor]:
    model, x = build(name)
    return model.requires_grad_(False), x  # gradients would ask for a real device


def seen(model: nn.Module, x: Tensor, settings: dict[str, Any]) -> list[Tensor]:
    """What a forward returns and leaves, on the CPU."""
    config = ReplayConfig(window=(2, 3), **settings)
    with gramloop.attached(model, config, trace=True, keep=[1, 5]) as loop:
        found = outputs(model, x)
        maps = [getattr(trace, field.name) for trace in loop.traces for field in fields(Trace)]
        maps += loop.ordinary.values()
    flat = [each for one in maps for each in (one if isinstance(one, list) else [one])]
    return [each.cpu() for each in (*found, *flat) if isinstance(each, Tensor)]


def moved(model: nn.Module) -> nn.Module:
    if isinstance(model, Called):
        model.rest = {name: value.to("cuda") for name, value in model.rest.items()}
    return model.to("cuda")


def check(name: str, settings: dict[str, Any]) -> None:
    """Equal to the bit; and close where deterministic kernels are asked for, since images are then resized in other steps."""
    model, x = frozen(name)
    expected = seen(model, x, settings)
    with stand_in_gpu(indices_from_cpu=name.startswith(INDEXED_FROM_CPU)):
        model, x = moved(model), x.to("cuda")
        found = seen(model, x, settings)
        torch.use_deterministic_algorithms(True)
        try:
            determined = expected if name in UNDETERMINED else seen(model, x, settings)
        finally:
            torch.use_deterministic_algorithms(False)
    assert len(found) == len(expected) == len(determined) > 3
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    for one, other in zip(determined, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", MODELS)
def test_every_host(name: str) -> None:
    check(name, {})


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ["DINOv3ViTModel", "Sam3VisionModel"])
def test_every_variant(name: str, variant: str) -> None:
    check(name, VARIANTS[variant])


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", MODELS)
def test_every_host_in_every_variant(name: str, variant: str) -> None:
    check(name, VARIANTS[variant])


@pytest.mark.parametrize("variant", VARIANTS)
def test_under_autocast_drift_is_measured_in_full_precision(variant: str) -> None:
    model, x = frozen("DINOv3ViTModel")
    with stand_in_gpu(), torch.autocast("cuda", torch.bfloat16):
        loop = gramloop.attach(model.to("cuda"), window=(2, 3), trace=True, **VARIANTS[variant])
        found = outputs(model, x.to("cuda"))
    assert all(torch.isfinite(each.cpu()).all() for each in found)
    assert loop.trace is not None
    assert {each.dtype for each in (*loop.trace.drift, *loop.trace.gate)} <= {torch.float32}
    loop.detach()


def test_masks_must_be_where_the_model_is_or_are_brought_there() -> None:
    model, x = frozen("DINOv3ViTModel")
    mask = torch.ones(2, 4, 4, dtype=torch.bool)
    mask[:, 3] = False
    with stand_in_gpu(), gramloop.attached(model.to("cuda"), window=(2, 3), trace=True) as loop:
        for given in (mask, mask.to("cuda")):
            loop.set_valid(given)
            outputs(model, x.to("cuda"))
            assert not loop.trace.gate[0][:, 3].any()
