"""Bad use gets one clear sentence and leaves the model as it was."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import gramloop
from library_models import outputs

WINDOW = (2, 3)


@pytest.fixture(autouse=True)
def _model_is_left_as_it_was(vit: nn.Module, x: Tensor):
    before = outputs(copy.deepcopy(vit), x)
    yield
    assert all(torch.equal(a, b) for a, b in zip(before, outputs(vit.eval(), x), strict=True))


def test_window_out_of_range(vit: nn.Module) -> None:
    with pytest.raises(gramloop.GramLoopError, match=r"window \[4, 6\] reaches past the last block"):
        gramloop.attach(vit, window=(4, 6))


def test_training_mode(vit: nn.Module) -> None:
    vit.train()
    with pytest.raises(gramloop.GramLoopError, match=r"DINOv3ViTModel is in training mode.*model.eval\(\)"):
        gramloop.attach(vit)


def test_training_mode_later(vit: nn.Module, x: Tensor) -> None:
    with (
        gramloop.attached(vit),
        pytest.raises(gramloop.GramLoopError, match="was put into training mode"),
    ):
        vit.train()(x)


def test_attaching_twice(vit: nn.Module) -> None:
    with (
        gramloop.attached(vit, window=(1, 1)),
        pytest.raises(gramloop.GramLoopError, match="attached already"),
    ):
        gramloop.attach(vit, window=(3, 4))


def test_keep_out_of_range(vit: nn.Module) -> None:
    with pytest.raises(gramloop.GramLoopError, match="keep names block 6; the blocks are 0 to 5"):
        gramloop.attach(vit, keep=(1, 6))


@pytest.mark.parametrize(
    "mask",
    [torch.ones(2, 4, 5, dtype=torch.bool), torch.ones(1, 16, dtype=torch.bool), torch.ones(2, 16)],
)
def test_mask_of_the_wrong_shape_or_kind(vit: nn.Module, x: Tensor, mask: Tensor) -> None:
    with gramloop.attached(vit, window=WINDOW) as loop:
        loop.set_valid(mask)
        with pytest.raises(
            gramloop.GramLoopError, match=r"2 images of 16 patches, so it is bool of shape \(2, 16\)"
        ):
            outputs(vit, x)
        outputs(vit, x)  # the mask held for that forward only


def test_a_list_of_masks(vit: nn.Module) -> None:
    with (
        gramloop.attached(vit, window=WINDOW) as loop,
        pytest.raises(gramloop.GramLoopError, match="is a list, not a bool tensor"),
    ):
        loop.set_valid([torch.ones(2, 16, dtype=torch.bool)])  # type: ignore[arg-type]
