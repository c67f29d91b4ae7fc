"""Settings, traces, costs and sources show the numbers that they hold, in text, in HTML and as maps."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch

import gramloop
from gramloop import Adaptive, ReplayConfig, Trace
from gramloop.mitigations.features import Recentre
from html_tables import Reader
from library_models import build

matplotlib.use("Agg")


@pytest.fixture(scope="module")
def trace() -> Trace:  # of two images
    model, x = build("DINOv3ViTModel")
    with torch.no_grad(), gramloop.attached(model, window=(2, 3), trace=True) as loop:
        model(x)
        assert loop.trace is not None
        return loop.trace


def test_a_trace_shows_its_numbers(trace: Trace) -> None:
    rows = Reader(trace._repr_html_()).rows[1:]
    assert [row[:2] for row in rows] == [
        ["0", "1"],
        ["0", "2"],
        ["0", "accepted"],
        ["1", "1"],
        ["1", "2"],
        ["1", "accepted"],
    ]
    for row, (image, replay) in zip([rows[0], rows[4]], [(0, 0), (1, 1)], strict=True):
        drift = trace.drift[replay][image].double().flatten().quantile(0.5).item()
        assert float(row[2]) == pytest.approx(drift, rel=1e-3)  # four digits are shown
        assert float(row[3]) == pytest.approx(trace.gate[replay][image].mean().item(), rel=1e-3)
        assert float(row[4]) == pytest.approx(trace.displacement[replay][image].mean().item(), rel=1e-3)
    assert "median drift" in str(trace)
    assert repr(trace).startswith("Trace(grid=")


def test_padding_takes_no_part_in_what_a_trace_shows() -> None:
    shown = Trace(grid=(1, 4))
    valid = torch.tensor([[True, True, True, False]])
    shown.record(
        torch.tensor([[1.0, 2.0, 4.0, 0.0]]), torch.tensor([[0.5, 0.5, 0.5, 0.0]]), torch.ones(1, 4, 9), valid
    )
    row = Reader(shown._repr_html_()).rows[1]
    assert row == ["0", "1", "2", "0.5", "3", "0"]
    drift = maps_in(shown.plot())[0].get_array()
    assert np.ma.masked_invalid(drift).mask.tolist() == [[False, False, False, True]]


def maps_in(figure):
    """The maps of a figure, in reading order, without colour bars."""
    return [axes.images[0] for axes in figure.axes if axes.images]


def test_a_trace_is_drawn(trace: Trace) -> None:
    figure = trace.plot(image=1)
    shown = maps_in(figure)
    named = [each.axes.get_title().partition(",")[0] for each in shown]
    assert named == ["drift", "gate", "drift", "gate", "drift of what was accepted"]
    np.testing.assert_array_equal(shown[2].get_array(), trace.drift[1][1].numpy())
    np.testing.assert_array_equal(shown[1].get_array(), trace.gate[0][1].numpy())
    assert shown[1].get_clim() == (0.0, 1.0)
    assert len({shown[place].get_clim() for place in (0, 2, 4)}) == 1


@pytest.mark.parametrize(
    ("trace", "image", "words"),
    [
        (Trace(), 0, "does not reveal its grid"),
        (Trace(grid=(2, 2)), 0, "nothing was measured"),
        (Trace(grid=(1, 1), drift=[torch.zeros(2, 1, 1)]), 2, "there is no image 2; this forward had 2"),
    ],
    ids=["no grid", "nothing measured", "no such image"],
)
def test_a_trace_without_maps_says_so(trace: Trace, image: int, words: str) -> None:
    with pytest.raises(gramloop.GramLoopError, match=re.escape(words)):
        trace.plot(image)


def test_settings_and_costs_show_what_they_were_made_of() -> None:
    config = ReplayConfig(window=(2, 3), replays=1, adaptive=Adaptive("noise", 0.2, 0.4))
    assert eval(repr(config), {"ReplayConfig": ReplayConfig, "Adaptive": Adaptive}) == config
    assert repr(Recentre(0.5, 2)) == "Recentre(weight=0.5, beyond=2.0)"
    assert repr(gramloop.cost(40)) == "Cost(blocks=94, baseline=40, area=1.0)"


def test_tables_need_neither_rich_nor_matplotlib_and_plot_says_what_it_needs(tmp_path: Path) -> None:
    program = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("rich", "matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
import gramloop, torch
trace = gramloop.Trace((1, 1))
trace.record(torch.ones(1, 1), torch.ones(1, 1), torch.ones(1, 1, 2), None)
assert "<table>" in trace._repr_html_()
try:
    trace.plot()
except gramloop.GramLoopError as error:
    print(error)
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert run.returncode == 0, run.stderr
    assert (
        run.stdout.strip()
        == "plot needs matplotlib, which is not installed; pip install 'gramloop[eval]' brings it"
    )
