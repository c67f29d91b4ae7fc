"""Every host of the core's tests, in every variant of a replay, on the stand-in for a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import gramloop
from library_models import MODELS, outputs
from stand_in_audit import INDEXED_FROM_CPU, VARIANTS, audit_host, frozen
from stand_in_gpu import stand_in_gpu

# their own positions are float sums along a side, which have no deterministic kernel
UNDETERMINED = ("SamModel", "SamHQModel")


def check(name: str, settings: dict[str, Any]) -> None:
    audit_host(name, settings, name not in UNDETERMINED, indices_from_cpu=name.startswith(INDEXED_FROM_CPU))


@pytest.mark.parametrize("name", MODELS)
def test_every_host(name: str) -> None:
    check(name, {})


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ["DINOv3ViTModel"])
def test_every_variant(name: str, variant: str) -> None:
    check(name, VARIANTS[variant])


@pytest.mark.parametrize("variant", VARIANTS)
def test_under_autocast_drift_is_measured_in_full_precision(variant: str) -> None:
    model, x = frozen("DINOv3ViTModel")
    with stand_in_gpu(), torch.autocast("cuda", torch.bfloat16):
        loop = gramloop.attach(model.to("cuda"), window=(2, 3), trace=True, **VARIANTS[variant])
        assert all(torch.isfinite(each.cpu()).all() for each in outputs(model, x.to("cuda")))
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
