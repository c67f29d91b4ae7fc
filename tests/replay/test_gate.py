from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gramloop.replay.gram import gram_gate, interpolate, masked_median, mean_gate, token_gate

EPS = 1e-6


@given(
    st.lists(st.floats(0, 1e3, width=32), min_size=1, max_size=30),
    st.lists(st.booleans(), min_size=30, max_size=30),
)
@settings(max_examples=200, deadline=None)
def test_masked_median_is_numpys(values: list[float], mask: list[bool]) -> None:
    counted = mask[: len(values)]
    chosen = [v for v, keep in zip(values, counted, strict=True) if keep]
    expected = np.median(np.float32(chosen)) if chosen else 0.0
    got = masked_median(torch.tensor([values]), torch.tensor([counted]))
    assert got.shape == (1, 1)
    assert got.item() == pytest.approx(float(expected), rel=1e-6)


def test_each_image_has_its_own_median() -> None:
    drift = torch.tensor([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]])
    gate = gram_gate(drift, EPS)
    torch.testing.assert_close(gate[0], gate[1])
    torch.testing.assert_close(gate[0], torch.tensor([math.exp(-0.5), math.exp(-1), math.exp(-1.5)]))


def test_eps_opens_the_gate_where_nothing_drifts() -> None:
    assert torch.equal(gram_gate(torch.zeros(1, 4), EPS), torch.ones(1, 4))
    tiny = torch.full((1, 4), 1e-8)
    torch.testing.assert_close(gram_gate(tiny, EPS), torch.full((1, 4), math.exp(-1e-2)))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_drift_that_is_not_finite_closes_only_its_own_gate(bad: float) -> None:
    drift = torch.tensor([[1.0, bad, 3.0, 2.0]])
    expected = gram_gate(torch.tensor([[1.0, 3.0, 2.0]]), EPS)
    gate = gram_gate(drift, EPS)
    assert gate[0, 1] == 0
    assert torch.equal(gate[:, [0, 2, 3]], expected)


def test_all_gates_close_where_no_drift_is_finite() -> None:
    assert torch.equal(gram_gate(torch.full((2, 5), math.nan), EPS), torch.zeros(2, 5))


def test_prefix_tokens_get_the_mean_over_valid_patches() -> None:
    gate = torch.tensor([[0.2, 0.6, 0.0, 0.0]])
    valid = torch.tensor([[True, True, False, False]])
    assert mean_gate(gate, valid).item() == pytest.approx(0.4)
    assert token_gate(gate, 3, valid)[0, :3].tolist() == pytest.approx([0.4] * 3)
    assert torch.equal(token_gate(gate, 3, valid)[:, 3:], gate)
    assert token_gate(gate, 0) is gate


def test_interpolation_moves_each_token_by_its_own_step() -> None:
    state, proposal = torch.zeros(1, 2, 3), torch.tensor([[[1.0, 2, 3], [4, 5, 6]]])
    moved = interpolate(state, proposal, torch.tensor([[0.5, 0.25]]))
    assert torch.equal(moved, torch.tensor([[[0.5, 1, 1.5], [1, 1.25, 1.5]]]))


def test_a_closed_gate_keeps_the_state_to_the_bit_whatever_is_proposed() -> None:
    state = torch.randn(1, 3, 4)
    proposal = torch.tensor([math.nan, math.inf, 1.0]).view(1, 3, 1).expand(1, 3, 4)
    assert torch.equal(interpolate(state, proposal, torch.zeros(1, 3)), state)


def test_low_precision_states_are_interpolated_in_float32() -> None:
    state = torch.full((1, 1, 1), 256.0, dtype=torch.bfloat16)
    proposal = torch.full((1, 1, 1), 260.0, dtype=torch.bfloat16)
    moved = interpolate(state, proposal, torch.tensor([[0.26]]))  # 257.04: bfloat16 steps by 2 here
    assert moved.dtype == torch.bfloat16
    assert moved.item() == torch.tensor(257.04).bfloat16().item() == 258.0
