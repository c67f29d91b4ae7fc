"""A report shows no image that is not the one that was evaluated."""

from pathlib import Path

import pytest

from gramloop.evaluate.evaluation import evaluate
from gramloop.report.figures import draw_figures
from gramloop.report.load import load_runs
from small_runs import small_plan, write_model, write_scene_set

pytest.importorskip("transformers")


def test_an_image_of_other_pixels_is_not_shown(tmp_path: Path):
    plan = small_plan(
        write_model(tmp_path / "model"), write_scene_set(tmp_path / "set", 2), conditions=["fog"], shards=1
    )
    out = tmp_path / "out"
    evaluate(plan, out, workers=1)
    loaded = load_runs([out])
    whole = draw_figures(loaded, pdf=False)
    assert "scenes-c-predictions" in [figure.key for figure in whole.figures]
    assert whole.remarks == []
    victim = tmp_path / "set" / "images" / "validation" / "00000001.png"
    data = bytearray(victim.read_bytes())
    data[-5] ^= 1  # of the last checksum, which decoders pass over: the same size, and maybe the same picture
    victim.write_bytes(data)
    drawn = draw_figures(loaded, pdf=False)
    assert "scenes-c-predictions" not in [figure.key for figure in drawn.figures]
    assert any("changed since" in remark for remark in drawn.remarks)
