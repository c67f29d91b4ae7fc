from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from gramloop.replay.gram import GramAnchor


def textbook(anchor: Tensor, proposal: Tensor) -> Tensor:
    """Mean squared change of each Gram row, by two Gram matrices in float64."""
    Q0, Q1 = (F.normalize(p.double(), dim=-1) for p in (anchor, proposal))
    return (Q1 @ Q1.mT - Q0 @ Q0.mT).square().mean(-1)


def features(N: int, C: int, step: float, seed: int = 0, batch: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    common = 2 * torch.randn(batch, 1, C, generator=generator)  # patches of one image resemble each other
    anchor = common + torch.randn(batch, N, C, generator=generator)
    return anchor, anchor + step * torch.randn(batch, N, C, generator=generator)


# untiled, tiled with a ragged last tile, at and beyond N = 4 C
@pytest.mark.parametrize(
    ("N", "C"), [(196, 384), (521, 200), (1000, 256), (1024, 256), (1025, 256), (900, 64)]
)
@pytest.mark.parametrize("step", [1.0, 1e-2, 1e-3])
def test_against_float64_gram_matrices(N: int, C: int, step: float) -> None:
    anchor, proposal = features(N, C, step)
    expected = textbook(anchor, proposal)
    error = ((GramAnchor(anchor).drift(proposal) - expected).abs() / expected).max()
    # The quadratic forms add terms of both signs; elsewhere only float32 sums round.
    assert error <= (1e-5 if N > 4 * C else 1e-6)


@given(
    N=st.integers(1, 40),
    C=st.integers(1, 24),
    batch=st.integers(1, 3),
    seed=st.integers(0, 2**31),
    step=st.floats(0, 3),
)
@settings(max_examples=150, deadline=None)
def test_any_shape(N: int, C: int, batch: int, seed: int, step: float) -> None:
    anchor, proposal = (
        F.normalize(p, dim=-1) * 5 for p in features(N, C, step, seed, batch)
    )  # as after a norm
    drift = GramAnchor(anchor).drift(proposal)
    assert drift.shape == (batch, N)
    # 4e-7: a Gram entry lies in [-1, 1], so that is what float32 can lose where rows nearly cancel
    torch.testing.assert_close(drift.double(), textbook(anchor, proposal), rtol=1e-4, atol=4e-7)


def test_no_step_is_no_drift() -> None:
    anchor, _ = features(50, 20, 0)
    assert torch.equal(GramAnchor(anchor).drift(anchor), torch.zeros(1, 50))


def test_only_directions_count() -> None:
    anchor, proposal = features(50, 20, 0.1)
    lengths = torch.rand(1, 50, 1) + 0.5
    drift = GramAnchor(anchor).drift(proposal)
    torch.testing.assert_close(GramAnchor(anchor).drift(proposal * lengths), drift, rtol=1e-4, atol=1e-9)


def test_a_rotation_of_all_features_keeps_every_relation() -> None:
    anchor, _ = features(60, 30, 0)
    rotation, _ = torch.linalg.qr(torch.randn(30, 30, dtype=torch.float64))
    turned = (anchor.double() @ rotation).float()
    # Rounding the rotated features to float32 is all that is left.
    assert GramAnchor(anchor).drift(turned).max() < 1e-12


@pytest.mark.parametrize(("N", "C"), [(60, 40), (600, 200), (300, 40)])
def test_invalid_patches_take_no_part(N: int, C: int) -> None:
    anchor, proposal = features(N, C, 0.1, batch=2)
    valid = torch.rand(2, N) < 0.6
    anchor[~valid] = torch.nan
    proposal[~valid] = torch.inf
    drift = GramAnchor(anchor, valid).drift(proposal)
    for image in range(2):
        chosen = valid[image]
        expected = textbook(anchor[image, chosen], proposal[image, chosen])
        torch.testing.assert_close(drift[image, chosen].double(), expected, rtol=1e-5, atol=0)
        assert (drift[image, ~chosen] == 0).all()


@pytest.mark.parametrize(("N", "C"), [(196, 64), (700, 256), (1500, 64)])
def test_the_same_bits_alone_and_in_a_batch(N: int, C: int) -> None:
    anchor, proposal = features(N, C, 0.05, batch=3)
    together = GramAnchor(anchor).drift(proposal)
    for image in range(3):
        alone = GramAnchor(anchor[image : image + 1]).drift(proposal[image : image + 1])
        assert torch.equal(alone[0], together[image])


@pytest.mark.parametrize(("N", "C"), [(196, 384), (784, 384), (1536, 384), (1537, 384), (6000, 64)])
def test_nothing_larger_than_four_times_the_features_is_allocated(N: int, C: int) -> None:
    anchor, proposal = features(N, C, 0.05)
    with _Allocations() as seen:
        GramAnchor(anchor).drift(proposal)
    assert 0 < seen.largest <= 4 * N * C


class _Allocations(TorchDispatchMode):
    """The largest tensor that any operator returned."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(value, Tensor):
                self.largest = max(self.largest, value.untyped_storage().nbytes() // value.element_size())
        return result
