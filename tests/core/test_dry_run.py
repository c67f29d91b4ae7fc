"""A run without values needs what the same run with values needs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gramloop.core.dry_run import needs_of
from gramloop.core.live_tensors import LiveTensors, bytes_of
from gramloop.errors import GramLoopError
from gramloop.models.tiny import load_tiny
from gramloop.replay.attach import attached
from gramloop.replay.config import ReplayConfig

WAYS = {
    "ordinary": None,
    "replayed": ReplayConfig((3, 4)),
    "at the last block": ReplayConfig((3, 4), update_at="final"),
}


def runner(model, replay, trace=False):
    def run():
        x = torch.zeros(1, 3, 192, 256)
        if replay is None:
            return model(x)
        with attached(model.backbone.model, replay, trace=trace):
            return model(x)

    return run


@pytest.mark.parametrize("trace", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_fake_tensors_live_as_real_ones_do(way, trace):
    model = load_tiny()
    run = runner(model, WAYS[way], trace)
    weights = [*model.parameters(), *model.buffers()]
    run()
    with torch.no_grad(), LiveTensors(weights) as live:
        run()
    found = needs_of([model], run)
    cached = 2 * 4 * 12 * 16  # positions, which a real run keeps from the one before
    assert live.peak <= found.activations <= live.peak + 2 * cached
    assert found.weights == bytes_of(weights)


@pytest.mark.parametrize("way", WAYS)
def test_blocks_that_are_alike_need_the_same(way):
    model = load_tiny()
    run = runner(model, WAYS[way])
    assert needs_of([model], run, model.backbone.blocks) == needs_of([model], run)


def test_blocks_that_differ_are_run_each():
    blocks = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 64), nn.Linear(64, 8)])
    blocks.requires_grad_(False)

    def run():
        x = torch.zeros(10, 8)
        for block in blocks:
            x = block(x)

    assert needs_of([blocks], run, blocks) == needs_of([blocks], run)


def test_the_model_is_itself_again_and_nothing_fake_is_left():
    model = load_tiny()
    x = torch.randn(1, 3, 64, 80)
    before, weights = model(x)[0], dict(model.named_parameters())
    needs_of([model], lambda: model(torch.zeros(1, 3, 64, 80)), model.backbone.blocks)
    assert all(value is weights[name] for name, value in model.named_parameters())
    assert torch.equal(model(x)[0], before)  # positions of a grid are remembered by transformers


def test_a_model_on_the_meta_device_needs_what_one_with_weights_does():
    real, empty = load_tiny(), load_tiny(device="meta")
    assert needs_of([empty], runner(empty, WAYS["replayed"])) == needs_of(
        [real], runner(real, WAYS["replayed"])
    )


@pytest.mark.parametrize("trained", [False, True])
def test_autocast_keeps_copies_of_weights_that_are_trained_alone(trained):
    """Frozen weights are cast anew at every use, one at a time; others stay until the region ends, also under no_grad."""
    layers = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(5))).requires_grad_(trained)

    def run():
        with torch.autocast("cpu", torch.bfloat16):
            layers(torch.zeros(2, 64))

    copy, state, given = 64 * 64 * 2, 2 * 64 * 2, 2 * 64 * 4
    copies = 5 if trained else 1
    needed = needs_of([layers], run, layers)
    # while the last product runs: its input and its output; the first is cast from float32
    assert needed.activations == pytest.approx(copies * copy + 2 * state + given, abs=state)
    with torch.no_grad(), LiveTensors(layers.parameters()) as live:
        run()
    assert needed.activations == live.peak


def test_no_scores_of_all_pairs_of_tokens_are_made():
    attention = nn.MultiheadAttention(64, 4, batch_first=True).requires_grad_(False).eval()
    tokens = 4096

    def run(x):
        return attention(x, x, x.clone(), need_weights=False)

    needed = needs_of([attention], lambda: run(torch.zeros(1, tokens, 64)))
    assert needed.activations < 4 * tokens * tokens  # of one head in a byte each


def test_a_model_that_decides_by_values_is_refused():
    class Picky(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    model = Picky()
    with pytest.raises(GramLoopError, match="Picky decides by values"):
        needs_of([model], lambda: model(torch.zeros(3)))
