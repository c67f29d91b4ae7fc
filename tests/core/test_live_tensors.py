"""Live bytes against closed forms and against the CPU's allocator."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from allocations import allocated_peak
from gramloop.core.live_tensors import LiveTensors, bytes_of, peak_of
from gramloop.models.tiny import load_tiny
from gramloop.replay.attach import attached
from gramloop.replay.config import ReplayConfig

WIDTHS = (32, 256, 64, 512, 16)


def chain(**kwargs):
    pairs = pairwise(WIDTHS)
    return nn.Sequential(*(nn.Linear(*pair, **kwargs) for pair in pairs)).requires_grad_(False)


def test_a_chain_of_linear_layers_holds_the_input_and_the_output_of_one():
    model, x = chain(), torch.zeros(7, WIDTHS[0])
    made = (0, *WIDTHS[1:])  # the input was there before
    expected = max(a + b for a, b in pairwise(made)) * 7 * 4
    assert peak_of(lambda: model(x), [x, *model.parameters()]) == expected


def test_a_chain_of_linear_layers_reads_its_weights_once_and_every_state_twice():
    model, x = chain(bias=False), torch.zeros(7, WIDTHS[0])
    with LiveTensors([*model.parameters(), x]) as live:
        model(x)
    weights = sum(each.numel() for each in model.parameters())
    states = sum(7 * (a + b) for a, b in pairwise(WIDTHS))
    assert live.moved == (weights + states) * 4
    assert live.given_read == (weights + x.numel()) * 4


def test_views_take_nothing_and_what_is_gone_is_not_counted():
    with LiveTensors() as live:
        x = torch.zeros(1000)
        view = x.view(10, 100)[:, ::2].t()
        assert live.now == live.peak == 4000
        del x
        assert live.now == 4000
        del view
        assert live.now == 0
        torch.zeros(500)
    assert (live.now, live.peak) == (0, 4000)


def test_work_in_place_takes_nothing_and_moves_bytes():
    x = torch.zeros(1000)
    with LiveTensors([x]) as live:
        x.add_(1.0)
    assert (live.peak, live.moved) == (0, 8000)


def test_tied_weights_count_once():
    first = nn.Linear(10, 10, bias=False)
    assert bytes_of([first.weight, first.weight.T, first.weight[:3]]) == 400


@pytest.mark.parametrize("replay", [None, ReplayConfig((3, 4)), ReplayConfig((3, 4), update_at="final")])
def test_the_peak_is_what_the_allocator_gave(replay):
    model, x = load_tiny(), torch.randn(1, 3, 192, 256)

    def run():
        with torch.no_grad():
            model(x)

    def measure():
        run()  # positions are computed once
        given = [*model.parameters(), *model.buffers(), x]
        return peak_of(run, given), allocated_peak(run)

    if replay is None:
        counted, truth = measure()
    else:
        with attached(model.backbone.model, replay):
            counted, truth = measure()
    # kernels may take scratch memory that no tensor shows, and the allocator rounds up
    assert counted == pytest.approx(truth, rel=0.02)
