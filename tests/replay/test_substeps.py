"""K steps of 1/K through a window in place of one pass: against the recursion written out, and against nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import gramloop
from gramloop import Adaptive, GramLoopError, ReplayConfig
from library_models import build


def last(vit: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return vit(x).last_hidden_state


def written_out(vit: nn.Module, x: Tensor, window: tuple[int, int], steps: int) -> Tensor:
    """The host's blocks called one by one, the window in steps."""
    blocks = vit.model.layer
    with torch.no_grad():
        places = vit.rope_embeddings(x)
        state = vit.embeddings(x)

        def run(first: int, stop: int, z: Tensor) -> Tensor:
            for block in blocks[first:stop]:
                z = block(z, position_embeddings=places)
            return z

        state = run(0, window[0], state)
        for _ in range(steps):
            state = state + (run(window[0], window[1] + 1, state) - state) / steps
        return vit.norm(run(window[1] + 1, len(blocks), state))


@pytest.mark.parametrize("window", [(0, 0), (2, 3), (1, 5)])
@pytest.mark.parametrize("steps", [2, 5])
def test_they_are_the_recursion(vit: nn.Module, x: Tensor, window: tuple[int, int], steps: int) -> None:
    with gramloop.attached(vit, window=window, replays=1, gate="none", substeps=steps) as loop:
        with gramloop.counting(loop.vit.blocks) as counter:
            found = last(vit, x)
        assert counter.blocks == loop.blocks_executed == 6 + (steps - 1) * (window[1] - window[0] + 1)
    assert counter.blocks == gramloop.cost(6, window, 1, gate="none", substeps=steps).blocks
    # the same products and sums in float32, the step as a product with 1/K in place of a quotient
    torch.testing.assert_close(found, written_out(vit, x, window, steps), rtol=1e-5, atol=1e-5)
    assert not torch.equal(found, last(vit, x))


@pytest.mark.parametrize("settings", [{"gate": "none"}, {"gate": "uniform", "strength": 0.5}, {}])
def test_one_step_is_the_plain_model_to_the_bit(vit: nn.Module, x: Tensor, settings: dict) -> None:
    plain = last(vit, x)
    with gramloop.attached(vit, window=(2, 3), replays=1, substeps=1, **settings):
        assert torch.equal(last(vit, x), plain)
    assert torch.equal(last(vit, x), plain)


def test_a_gate_takes_a_share_of_them(vit: nn.Module, x: Tensor) -> None:
    """Between the ordinary state and that of the substeps, at the window's end."""
    ends: dict[float, Tensor] = {}
    for share in (0.0, 0.25, 1.0):
        settings = ReplayConfig((1, 2), 1, "uniform", share, substeps=3)
        with gramloop.attached(vit, settings), torch.no_grad():
            ends[share] = vit(x, output_hidden_states=True).hidden_states[3]
    # linear in the share; the sums are in float32
    torch.testing.assert_close(ends[0.25], ends[0.0] + 0.25 * (ends[1.0] - ends[0.0]), rtol=1e-5, atol=1e-5)


def test_kept_blocks_stay_ordinary_and_a_rule_may_pass_over_them(vit: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        states = vit(x, output_hidden_states=True).hidden_states
    settings = ReplayConfig(window=(1, 2), replays=1, gate="none", substeps=3)
    with gramloop.attached(vit, settings, keep=(0, 2, 4)) as loop:
        last(vit, x)
        assert all(torch.equal(loop.baseline[block], states[block + 1]) for block in (0, 2, 4))
    rule = Adaptive("length", 1e9, 1e9)
    with gramloop.attached(vit, settings, adaptive=rule) as loop:
        assert torch.equal(last(vit, x), vit(x).last_hidden_state)
        assert loop.blocks_executed == 6


@pytest.mark.parametrize("name", ["VitDetModel", "Dinov2WithRegistersModel"])
def test_other_hosts(name: str) -> None:
    model, pixels = build(name)
    model.eval()

    def run() -> Tensor:
        with torch.no_grad():
            return model(pixels).last_hidden_state

    plain = run()
    with gramloop.attached(model, window=(0, 0), replays=1, gate="none", substeps=1):
        assert torch.equal(run(), plain)
    with gramloop.attached(model, window=(0, 0), replays=1, gate="none", substeps=2) as loop:
        assert not torch.equal(run(), plain)
        assert loop.blocks_executed == loop.vit.depth + 1
    assert torch.equal(run(), plain)


def test_more_than_one_replay_is_refused() -> None:
    with pytest.raises(GramLoopError, match="substeps is 4 and replays 2; substeps are taken once"):
        gramloop.attach(build("DINOv3ViTModel")[0], window=(1, 1), replays=2, substeps=4)
