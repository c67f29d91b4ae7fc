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
from gramloop.mitigations.calibration import CalibrationStats
from gramloop.mitigations.features import Recentre
from html_tables import HOSTILE, Reader
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
    drift = shown.plot()[0, 0].images[0].get_array()
    assert np.ma.masked_invalid(drift).mask.tolist() == [[False, False, False, True]]


def test_a_trace_is_drawn(trace: Trace) -> None:
    axes = trace.plot(image=1)
    assert axes.shape == (2, 3)
    titles = [ax.get_title() for ax in axes[0]]
    assert titles == ["drift of replay 1", "drift of replay 2", "drift of what was accepted"]
    np.testing.assert_array_equal(axes[0, 1].images[0].get_array(), trace.drift[1][1].numpy())
    np.testing.assert_array_equal(axes[1, 0].images[0].get_array(), trace.gate[0][1].numpy())
    assert axes[1, 0].images[0].get_clim() == (0.0, 1.0)
    matplotlib.pyplot.close("all")


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


def test_settings_show_what_is_changed_and_what_is_published() -> None:
    config = ReplayConfig(window=(2, 3), replays=1, adaptive=Adaptive("noise", 0.2, 0.4))
    rows = {row[0]: row[1:] for row in Reader(config._repr_html_()).rows}
    assert rows["window"] == ["2-3", "none"]
    assert rows["replays"] == ["1", "2"]
    assert rows["adaptive"] == ["noise:0.2:0.4", "none"]
    assert rows["eps"] == ["1e-06", "1e-06"]
    given = ",".join(f"{name}={value}" for name, (value, _) in rows.items() if name != "setting")
    assert gramloop.parse_replay(given) == config, "what is shown can be given back"
    assert eval(repr(config), {"ReplayConfig": ReplayConfig, "Adaptive": Adaptive}) == config
    assert "blocks 2 to 3 once" in str(config)


def test_recentring_and_cost_show_their_fields() -> None:
    assert Reader(Recentre(0.5, 2)._repr_html_()).rows == [
        ["setting", "value"],
        ["weight", "0.5"],
        ["beyond", "2"],
    ]
    rows = Reader(gramloop.cost(40)._repr_html_()).rows
    assert rows[1:] == [["executed", "94"], ["of the baseline forward", "40"], ["per block of that", "2.35×"]]


def test_a_source_shows_its_taps_and_escapes_its_names() -> None:
    source = CalibrationStats(
        {3: torch.tensor([3.0, 4.0])},
        {3: torch.tensor([0.0, 2.0])},
        1.5,
        12,
        backbone=HOSTILE,
        pixels={HOSTILE: 1.0},
    )
    read = Reader(source._repr_html_())
    assert read.rows[1] == ["3", "2", "5", "2"]
    assert "script" not in read.tags
    assert any(HOSTILE in note for note in read.notes)
    assert "12 in-distribution images" in str(source)


def test_tables_need_neither_rich_nor_matplotlib_and_plot_says_what_it_needs(tmp_path: Path) -> None:
    program = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("rich", "matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
import gramloop, torch
config = gramloop.ReplayConfig()
assert "<table>" in config._repr_html_() and "published" in str(config)
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
