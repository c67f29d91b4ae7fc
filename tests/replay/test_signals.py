from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from gramloop import Adaptive, GramLoopError, ReplayConfig, attach, attached
from gramloop.replay.adaptive import share


def tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@given(st.floats(-5, 5), st.floats(-5, 5), st.floats(-10, 10))
def test_the_share_of_the_gate(off: float, full: float, signal: float) -> None:
    found = share(Adaptive("noise", off, full), torch.tensor([signal], dtype=torch.float64)).item()
    if off == full:
        assert found == float(signal > off)
        return
    expected = min(1.0, max(0.0, (signal - off) / (full - off)))
    assert 0.0 <= found <= 1.0
    assert found == pytest.approx(expected, abs=1e-6)  # float32 keeps seven digits


def test_a_signal_that_is_not_finite_gets_nothing() -> None:
    assert share(Adaptive("noise", 0.0, 1.0), torch.tensor([torch.nan, torch.inf])).tolist() == [0.0, 0.0]


class Block(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.3 * tokens(6, 6, seed=seed))

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(x @ self.weight)


class Chain(nn.Module):
    """Six blocks over one class token and eight patches."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(index) for index in range(6))
        self.norm = nn.LayerNorm(6)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


def loop_on(chain: Chain, config: ReplayConfig, **options: object):  # type: ignore[no-untyped-def]
    return attached(chain, config, blocks=list(chain.blocks), norm=chain.norm, prefix=1, **options)


WINDOW = ReplayConfig(window=(2, 3), replays=2)
ALWAYS, NEVER = -1e6, 1e6  # thresholds below and above any signal


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"adaptive": "step"}, "adaptive is 'step'; it is an Adaptive"),
        (
            {"adaptive": Adaptive("noise", 0.1, 0.2), "update_at": "final"},
            "adaptive acts at the window's end",
        ),
    ],
)
def test_misuse(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(GramLoopError, match=sentence):
        ReplayConfig(**settings)  # type: ignore[arg-type]


def test_a_rule_without_meaning() -> None:
    with pytest.raises(GramLoopError, match="signal is 'entropy'"):
        Adaptive("entropy", 0.0, 1.0)  # type: ignore[arg-type]
    with pytest.raises(GramLoopError, match="adaptive off is nan"):
        Adaptive("noise", float("nan"), 1.0)


def test_the_scaled_window_says_that_it_is_a_guess() -> None:
    chain = Chain()
    with pytest.warns(UserWarning, match=r"window \[3, 3\] is the published one scaled to 6 blocks, a guess"):
        attach(chain, blocks=list(chain.blocks), norm=chain.norm, prefix=1).detach()
