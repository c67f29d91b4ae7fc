"""What runs on the stand-ins: hosts and predictors in every way, compared with the CPU. Planted faults run through it, too."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import gramloop
from dense_library_models import Called
from gramloop import Adaptive, ReplayConfig
from gramloop.replay.gram import Trace
from gramloop.tasks import Depth, Detection, InstanceMasks, Panoptic, Prediction, Predictor, Segmentation
from library_models import build, outputs
from stand_in_gpu import determined, stand_in_gpu
from stand_in_mps import stand_in_mps

VARIANTS: dict[str, dict[str, Any]] = {
    "published": {},
    "gate at the end": {"gate_at": "end"},
    "update at the last block": {"update_at": "final"},
    "constant": {"gate": "uniform", "strength": 0.3},
    "matched": {"gate": "uniform", "strength": "matched"},
    "ungated": {"gate": "none"},
    "noise": {"adaptive": Adaptive("noise", 0.0, 1e-6)},
}
# hosts that keep tables of indices on the CPU, which devices allow at the price of waiting for a copy
INDEXED_FROM_CPU = ("ZoeDepth", "Beit", "Data2Vec", "VitDet", "Sam")
STAND_INS: dict[str, Callable[..., AbstractContextManager[None]]] = {
    "cuda:0": stand_in_gpu,
    "mps:0": stand_in_mps,
}


def frozen(name: str) -> tuple[nn.Module, Tensor]:
    model, x = build(name)
    return model.requires_grad_(False), x  # gradients would ask for a real device


def moved(model: nn.Module, device: str = "cuda") -> nn.Module:
    if isinstance(model, Called):
        model.rest = {name: value.to(device) for name, value in model.rest.items()}
    return model.to(device)


def seen(model: nn.Module, x: Tensor, settings: dict[str, Any]) -> list[Tensor]:
    """What a forward returns and leaves, on the CPU."""
    config = ReplayConfig(window=(2, 3), **settings)
    with gramloop.attached(model, config, trace=True, keep=[1, 5]) as loop:
        found = outputs(model, x)
        maps = [getattr(loop.trace, field.name) for field in fields(Trace)]
        maps += loop.baseline.values()
        assert str(loop.trace)
    flat = [each for one in maps for each in (one if isinstance(one, list) else [one])]
    return [each.cpu() for each in (*found, *flat) if isinstance(each, Tensor)]


def audit_host(name: str, settings: dict[str, Any], has_kernels: bool = True, **allowed: bool) -> None:
    """Equal to the CPU to the bit; and close with deterministic kernels, since images are then resized in other steps.

    ``has_kernels``: whether the host can run with deterministic kernels alone.
    """
    model, x = frozen(name)
    expected = seen(model, x, settings)
    with stand_in_gpu(**allowed):
        model, x = moved(model), x.to("cuda")
        equal(seen(model, x, settings), expected)
        if has_kernels:
            with determined():
                again = seen(model, x, settings)
            for one, other in zip(again, expected, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)


def equal(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected) > 3
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


PIXELS = np.random.default_rng(0).integers(0, 256, (96, 130, 3), np.uint8)
REPLAY = ReplayConfig(window=(3, 4))
Load = Callable[[str], Predictor[Prediction]]


def parts(found: Prediction) -> list[np.ndarray]:
    """The numbers of a prediction."""
    if isinstance(found, Panoptic):
        infos = [(info.id, info.category, info.is_thing, info.score) for info in found.infos]
        return [found.segments, np.array(infos)]
    if isinstance(found, InstanceMasks):
        return [np.array(found.boxes), np.array(found.scores), np.array(found.labels)]
    names = {Segmentation: ["labels", "scores"], Detection: ["boxes", "scores", "labels"], Depth: ["values"]}
    values = [getattr(found, name) for name in names[type(found)]]
    return [value for value in values if value is not None]


def everything(predictor: Predictor[Prediction]) -> list[np.ndarray]:
    """Plain, replayed, traced and paired; where blocks are at hand."""
    found = [predictor.predict(PIXELS)]
    if predictor.blocks:
        pair = predictor.predict(PIXELS, REPLAY, paired=True, trace=True)
        found += [predictor.predict(PIXELS, REPLAY), pair.baseline, pair.replayed]
        assert pair.replayed.trace is not None
    return [each for one in found for each in parts(one)]


def in_float32(predictor: Predictor[Prediction]) -> Predictor[Prediction]:
    """On a GPU blocks run under autocast, unless told otherwise."""
    if hasattr(predictor, "backbone"):
        predictor.backbone.autocast_on = ()
    return predictor


def audit_float32(load: Load, device: str = "cuda:0", apart: float = 0.0) -> None:
    """The numbers of the CPU; ``apart`` is what two loaded models of the CPU differ by."""
    expected = everything(load("cpu"))
    with STAND_INS[device]():
        found = everything(in_float32(load(device)))
    alike(found, expected, apart)


def alike(found: list[np.ndarray], expected: list[np.ndarray], apart: float = 0.0) -> None:
    assert found
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=apart)


def audit_determined(load: Load) -> None:
    """As an evaluation runs it on a GPU, under autocast: nothing is left on the CPU, nothing has no deterministic kernel."""
    with stand_in_gpu(), determined():
        predictor = load("cuda:0")
        first, again = everything(predictor), everything(predictor)
    assert all(np.array_equal(*pair, equal_nan=False) for pair in zip(first, again, strict=True))
    assert all(np.isfinite(each).all() for each in first)
