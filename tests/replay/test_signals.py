from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from gramloop import Adaptive, GramLoopError, ReplayConfig, attach, attached, counting
from gramloop.replay.adaptive import length_spread, patch_length, share


def tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_signals_in_closed_form() -> None:
    patches = torch.tensor([[[3.0, 4.0], [0.0, 1.0]]])  # lengths 5 and 1
    assert patch_length(patches).tolist() == [3.0]
    assert length_spread(patches).item() == pytest.approx(2.0 / 3.0, rel=1e-6)


def test_invalid_patches_do_not_count() -> None:
    patches = tokens(2, 9, 4)
    valid = torch.arange(9)[None] < torch.tensor([[9], [5]])
    spoiled = patches.clone()
    spoiled[1, 5:] = 1e6
    for measure in (patch_length, length_spread):
        alone = measure(patches[1:, :5])
        torch.testing.assert_close(measure(spoiled, valid)[1:], alone)


@given(st.floats(-5, 5), st.floats(-5, 5), st.floats(-10, 10))
def test_the_share_of_the_gate(off: float, full: float, signal: float) -> None:
    found = share(Adaptive("length", off, full), torch.tensor([signal], dtype=torch.float64)).item()
    if off == full:
        assert found == float(signal > off)
        return
    expected = min(1.0, max(0.0, (signal - off) / (full - off)))
    assert 0.0 <= found <= 1.0
    assert found == pytest.approx(expected, abs=1e-6)  # float32 keeps seven digits


def test_a_signal_that_is_not_finite_gets_nothing() -> None:
    assert share(Adaptive("length", 0.0, 1.0), torch.tensor([torch.nan, torch.inf])).tolist() == [0.0, 0.0]


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


@pytest.mark.parametrize("signal", ["length", "spread"])
def test_a_rule_that_always_replays_changes_nothing(signal: str) -> None:
    chain, x = Chain(), tokens(2, 9, 6)
    with torch.no_grad():
        with loop_on(chain, WINDOW):
            expected = chain(x)
        rule = Adaptive(signal, ALWAYS, ALWAYS)  # type: ignore[arg-type]
        with loop_on(chain, ReplayConfig(window=(2, 3), adaptive=rule)):
            torch.testing.assert_close(chain(x), expected, rtol=0, atol=0)


@pytest.mark.parametrize("signal", ["length", "spread"])
def test_passing_over_costs_no_block(signal: str) -> None:
    chain, x = Chain(), tokens(2, 9, 6)
    rule = Adaptive(signal, NEVER, NEVER)  # type: ignore[arg-type]
    with torch.no_grad():
        expected = chain(x)
        config = ReplayConfig(window=(2, 3), adaptive=rule)
        with loop_on(chain, config, trace=True, keep=[3, 5]) as loop, counting(chain.blocks) as counter:
            assert torch.equal(chain(x), expected)
    assert counter.blocks == loop.blocks_executed == 6
    trace = loop.trace
    assert trace is not None
    assert trace.signal is not None
    assert len(trace.drift) == len(trace.gate) == 2  # one per replay, as for any image
    assert all((gate == 0).all() for gate in trace.gate)
    assert trace.post_drift is not None
    assert (trace.post_drift == 0).all()
    assert torch.equal(chain.norm(loop.baseline[5]), expected)


def test_each_image_is_decided_for_itself() -> None:
    chain, x = Chain(), tokens(2, 9, 6)
    x[1] *= 5
    with torch.no_grad():
        ordinary, state = chain(x), x
        for block in chain.blocks[:4]:
            state = block(state)
        with loop_on(chain, WINDOW):
            replayed = chain(x)
        lengths = patch_length(state[:, 1:]).tolist()
        between = sum(lengths) / 2
        rule = Adaptive("length", between, between)
        with loop_on(chain, ReplayConfig(window=(2, 3), adaptive=rule)):
            found = chain(x)
        with loop_on(
            chain, ReplayConfig(window=(2, 3), adaptive=Adaptive("length", between, 0.99 * between))
        ):
            reverse = chain(x)
    assert lengths[0] < between < lengths[1]
    assert torch.equal(found[0], ordinary[0])
    assert torch.equal(found[1], replayed[1])
    assert torch.equal(reverse[1], ordinary[1])
    assert torch.equal(reverse[0], replayed[0])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"adaptive": "step"}, "adaptive is 'step'; it is an Adaptive"),
        (
            {"adaptive": Adaptive("spread", 0.1, 0.2), "update_at": "final"},
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
        Adaptive("spread", float("nan"), 1.0)


def test_the_scaled_window_says_that_it_is_a_guess() -> None:
    chain = Chain()
    with pytest.warns(UserWarning, match=r"window \[3, 3\] is the published one scaled to 6 blocks, a guess"):
        attach(chain, blocks=list(chain.blocks), norm=chain.norm, prefix=1).detach()
