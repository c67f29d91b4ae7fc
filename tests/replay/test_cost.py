from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import gramloop


class Chain(nn.Module):
    """A chain of blocks with no image in front: enough of a ViT for counting."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize(
    ("settings", "blocks", "multiplier"),
    [
        ({"replays": 0}, 40, 1.00),
        ({"gate_at": "end"}, 46, 1.15),
        ({"update_at": "final"}, 78, 1.95),
        ({}, 94, 2.35),
    ],
)
def test_the_papers_table(settings: dict[str, Any], blocks: int, multiplier: float) -> None:
    cost = gramloop.cost(40, (21, 23), **settings)
    assert cost.blocks == blocks
    assert cost.multiplier == pytest.approx(multiplier)
    assert cost.baseline == 40


@st.composite
def replays(draw: st.DrawFn) -> tuple[int, dict[str, Any]]:
    depth = draw(st.integers(1, 9))
    start = draw(st.integers(0, depth - 1))
    end = draw(st.integers(start, depth - 1))
    gate = draw(st.sampled_from(["gram", "uniform", "none"]))
    update_at = draw(st.sampled_from(["end", "final"]))
    return depth, {
        "window": (start, end),
        "replays": draw(st.integers(0, 3)),
        "gate": gate,
        "strength": draw(st.sampled_from([1.0, 0.3, "matched"] if gate == "uniform" else [1.0, 0.3])),
        "gate_at": draw(st.sampled_from(["final", "end", draw(st.integers(end, depth - 1))])),
        "update_at": update_at,
    }


@given(replays())
@settings(max_examples=150, deadline=None)
def test_a_real_run_executes_what_the_formula_says(case: tuple[int, dict[str, Any]]) -> None:
    depth, config = case
    chain = Chain(depth).eval()
    x = torch.randn(2, 6, 4)
    with (
        torch.no_grad(),
        gramloop.attached(chain, blocks=chain.blocks, prefix=1, **config) as loop,
        gramloop.counting(chain.blocks) as counter,
    ):
        chain(x)
    assert counter.blocks == loop.blocks_executed == gramloop.cost(depth, **config).blocks


def test_counting_leaves_the_blocks_as_they_were() -> None:
    chain = Chain(3).eval()
    own = chain.blocks[0].forward
    vars(chain.blocks[1])["forward"] = own  # as accelerate does
    with gramloop.counting(chain.blocks) as counter:
        chain(torch.randn(1, 2, 4))
    assert counter.blocks == 3
    assert ["forward" in vars(block) for block in chain.blocks] == [False, True, False]
    assert vars(chain.blocks[1])["forward"] is own
