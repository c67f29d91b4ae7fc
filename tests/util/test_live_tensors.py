"""Bytes of tensors that are alive at once, against what a few lines of code hold."""

from __future__ import annotations

import gc

import pytest
import torch

from gramloop.util.live_tensors import LiveTensors

SIZE = 4 * 1000  # bytes of one tensor


def copies(given: torch.Tensor, held: int) -> None:
    """Make ten tensors one after the other, and keep the last few of them."""
    kept: list[torch.Tensor] = []
    for _ in range(10):
        kept = [*kept[-(held - 1) :], given + 1] if held > 1 else [given + 1]


@pytest.mark.parametrize("held", [1, 2, 5])
def test_the_peak_is_what_is_given_and_what_is_held(held: int) -> None:
    given = torch.zeros(1000)
    gc.collect()
    with LiveTensors() as live:
        copies(given, held)
    assert live.peak == SIZE * (1 + held + 1)  # a new one is made before an old one goes


def test_views_and_changes_in_place_take_no_memory() -> None:
    given = torch.zeros(10, 100)
    with LiveTensors() as live:
        given.T[2:].add_(1)
    assert live.peak == SIZE
