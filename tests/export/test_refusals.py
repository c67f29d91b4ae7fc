"""What cannot be exported, in sentences; and the small parts that a file is made of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import gramloop
from gramloop import GramLoopError, ReplayConfig
from gramloop.export.formats import largest_difference
from gramloop.mitigations.stack import read_stack, stack_text
from gramloop.tasks.loading import open_model


@pytest.fixture(scope="module")
def segmenter():
    return open_model("tiny", "semantic")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"mitigations": "flip"}, "flip merges several predictions .* replays, recentre, norms and filters on pixels can be exported"),
        ({"mitigations": "levels"}, "levels needs calibration statistics of in-distribution images, with pixels"),
        ({"mitigations": "recentre:c=2"}, "needs calibration statistics of in-distribution images, with means"),
        ({"mitigations": "nonsense"}, "there is no mitigation 'nonsense'"),
        ({"mitigations": ReplayConfig(window=(20, 21))}, "reaches past the last block"),
        ({"height": 100}, "the height is 100; this model takes positive multiples of 8, such as 96"),
        ({"width": 0}, "the width is 0; this model takes positive multiples of 8, such as 8"),
        ({"height": 16 * 4000, "width": 16 * 4000}, "more than 32,768"),
        ({"batch": 0}, "a batch is 1 to 64 images, not 0"),
    ],
    ids=lambda each: str(each)[:40],
)  # fmt: skip
def test_a_wish_that_cannot_be_met(segmenter, tmp_path: Path, given: dict, words: str) -> None:
    with pytest.raises(GramLoopError, match=words):
        gramloop.export(segmenter, tmp_path / "x.onnx", **given)
    assert not list(tmp_path.iterdir())


def test_a_name_that_misleads(segmenter, tmp_path: Path) -> None:
    words = r"the format is pt2 \(.pt2\), onnx \(.onnx\), openvino \(.xml\); model.bin does not end so"
    with pytest.raises(GramLoopError, match=words):
        gramloop.export(segmenter, tmp_path / "model.bin")


def test_other_things_than_models(tmp_path: Path) -> None:
    with pytest.raises(GramLoopError, match="a list cannot be exported"):
        gramloop.export([], tmp_path / "x.pt2")  # type: ignore[arg-type]
    with pytest.raises(GramLoopError, match=r"training mode; call model\.eval"):
        gramloop.export(torch.nn.Linear(2, 2), tmp_path / "x.pt2")
    with pytest.raises(
        GramLoopError, match="Linear does not say how large its input is; give height and width"
    ):
        gramloop.export(torch.nn.Linear(2, 2).eval(), tmp_path / "x.pt2")


def test_a_folder_that_cannot_be_written(segmenter, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(GramLoopError, match="cannot write to the folder"):
        gramloop.export(torch.nn.Identity().eval(), tmp_path / "file" / "x.pt2", height=4, width=4)


def test_a_settings_file_and_objects_mean_the_same(tmp_path: Path) -> None:
    config = ReplayConfig(window=(2, 2))
    gramloop.write_replay(tmp_path / "best.json", config)
    texts = {
        stack_text(read_stack(each)[0]) for each in (config, "replay:window=2-2", str(tmp_path / "best.json"))
    }
    assert texts == {"replay:window=2-2"}


def test_what_counts_as_a_difference() -> None:
    logits = np.array([[[[3.0, 1.0]], [[0.0, 1.0 + 1e-6]]]])  # (1, 2, 1, 2): the second pixel is a tie
    expected = {"labels": np.array([[[0, 1]]]), "logits": logits}
    assert largest_difference(expected, expected) == 0
    assert largest_difference(expected, {"labels": np.array([[[0, 0]]]), "logits": logits}) == 0
    assert largest_difference(expected, {"labels": np.array([[[1, 1]]]), "logits": logits}) == 1
    off = {**expected, "logits": logits + 3e-4}
    assert largest_difference(expected, off) == pytest.approx(1e-4)  # relative to the largest value, 3
    assert (
        largest_difference({"depth": np.array([np.inf, np.nan, 2])}, {"depth": np.array([np.inf, np.nan, 2])})
        == 0
    )
    assert largest_difference({"depth": np.array([1.0])}, {"depth": np.array([np.nan])}) == np.inf
    with pytest.raises(GramLoopError, match="depth has the shape"):
        largest_difference({"depth": np.zeros(2)}, {"depth": np.zeros(3)})
