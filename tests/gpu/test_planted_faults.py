"""The audit of the stand-in goes red where a fault is planted in what it runs; without one it is green, in the other files."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from device_models import Load
from gramloop.models import plain_detr
from gramloop.models.backbone import LinearHead
from gramloop.models.plain_detr import sine_code
from gramloop.replay.gram import GramAnchor
from stand_in_audit import audit_determined, audit_float32, audit_host

Loaders = Callable[[str], Load]


def test_a_tensor_left_on_the_cpu_in_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        GramAnchor, "_only_valid", lambda _, patches: patches * torch.ones(patches.shape[1], 1)
    )
    with pytest.raises(RuntimeError, match="mul: expected all tensors to be on the same device"):
        audit_host("DINOv3ViTModel", {})


def test_a_tensor_left_on_the_cpu_in_a_head(monkeypatch: pytest.MonkeyPatch, load_of: Loaders) -> None:
    right = LinearHead.forward
    monkeypatch.setattr(
        LinearHead,
        "forward",
        lambda head, maps: right(head, [each + torch.zeros(each.shape) for each in maps]),
    )
    for audit in (audit_float32, audit_determined):
        with pytest.raises(RuntimeError, match="add: expected all tensors to be on the same device"):
            audit(load_of("semantic"))


def in_floats(padding: Tensor, channels: int) -> Tensor:
    """The head's positions, with a mask that is counted in floats, as the reference counts it."""
    valid = ~padding
    rows, columns = (valid.cumsum(side, dtype=torch.float32) for side in (1, 2))
    y = (rows - 0.5) / (rows[:, -1:, :] + 1e-6) * (2 * math.pi)
    x = (columns - 0.5) / (columns[:, :, -1:] + 1e-6) * (2 * math.pi)
    return torch.cat((sine_code(y, channels // 2), sine_code(x, channels // 2)), dim=-1).flatten(1, 2)


def test_a_sum_of_floats_where_a_mask_is_counted(monkeypatch: pytest.MonkeyPatch, load_of: Loaders) -> None:
    padding = torch.zeros(1, 4, 6, dtype=torch.bool)
    assert torch.equal(
        in_floats(padding, 8), plain_detr.map_positions(padding, 8)
    )  # no other number, but red
    monkeypatch.setattr(plain_detr, "map_positions", in_floats)
    with pytest.raises(RuntimeError, match="cumsum_cuda does not have a deterministic implementation"):
        audit_determined(load_of("detector"))
