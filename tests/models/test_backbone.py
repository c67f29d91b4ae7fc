"""Work is bounded by tokens: what no machine ends is refused before it begins, with what would do instead."""

import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from gramloop.cli import main
from gramloop.errors import GramLoopError
from gramloop.models.backbone import refuse_many_tokens
from gramloop.models.tiny import WEIGHTS
from gramloop.tasks.custom import ModulePredictor
from gramloop.tasks.loading import load_predictor
from gramloop.tasks.released import DetectConfig, input_size
from gramloop.tasks.semantic import Segmentation
from gramloop.tasks.transformers_models import _refuse_huge
from small_sets import write_semantic

pytest.importorskip("transformers")


TASKS = [("semantic", {"short_side": 64}), ("depth", {"short_side": 64}), ("detection", {})]


@pytest.mark.parametrize(("task", "sizes"), TASKS)
def test_a_strip_is_refused_in_no_time(task: str, sizes: dict[str, int]):
    predictor = load_predictor(task, {"folder": str(WEIGHTS)}, sizes)
    strip = np.zeros((2, 5000, 3) if task != "detection" else (1024, 5000, 3), np.uint8)
    began = time.process_time()
    with pytest.raises(GramLoopError, match=r"becomes .* tokens at once .* more than 32,768"):
        predictor.predict(strip)
    assert time.process_time() - began < 2


def test_the_sentence_says_what_would_do():
    predictor = load_predictor("semantic", {"folder": str(WEIGHTS)}, {"short_side": 64})
    with pytest.raises(GramLoopError, match="tokens at once") as told:
        predictor.check_size(2, 5000)
    assert "an image of 5000 x 2 becomes 160,000 tokens" in str(told.value)
    assert "2.6e+10 pairs" in str(told.value)
    assert "show it smaller" in str(told.value)


def test_every_way_into_a_backbone_is_guarded():
    backbone = load_predictor("semantic", {"folder": str(WEIGHTS)}, {}).backbone
    with pytest.raises(GramLoopError, match="tokens at once"):
        backbone(torch.zeros(1, 3, 64, 160000), [0])


def test_a_module_of_ones_own_is_guarded_where_its_patches_are_known():
    backbone = load_predictor("semantic", {"folder": str(WEIGHTS)}, {}).backbone.model
    predictor = ModulePredictor(
        backbone,
        lambda pixels: {"pixel_values": torch.zeros(1, 3, 64, 160000)},
        lambda outputs, size: Segmentation(np.zeros(size, np.int32)),
        "semantic",
        {0: "thing"},
        "mine",
    )
    with pytest.raises(GramLoopError, match="as mine is given it, becomes 160,000 tokens"):
        predictor.predict(np.zeros((2, 5000, 3), np.uint8))


def test_a_processor_that_would_enlarge_a_strip_is_not_asked_to():
    processor = SimpleNamespace(size={"shortest_edge": 518}, do_resize=True)
    with pytest.raises(GramLoopError, match="would enlarge it to 1,295,000 x 518 pixels"):
        _refuse_huge(processor, 2, 5000, "Dense")
    _refuse_huge(SimpleNamespace(size={"shortest_edge": 518, "longest_edge": 1333}), 2, 5000, "Dense")


def test_the_released_sizes_stay_within():
    refuse_many_tokens(896 // 16, 896 // 16, "a window of the segmentor")
    for ratio in (1, 2, 8, 100):
        rows, columns = (side // 16 for side in input_size(600, 600 * ratio, DetectConfig()))
        refuse_many_tokens(-(-rows // 3), -(-columns // 3), "a window of the detector")


def test_a_set_with_a_strip_is_refused_before_anything_is_written(tmp_path: Path, capsys):
    data = write_semantic(tmp_path / "set", 2)
    for name, kind in (("images", "RGB"), ("annotations", "L")):
        Image.new(kind, (5000, 2)).save(data / name / "validation" / "strip.png")
    (data / "classes.txt").write_text("".join(f"{index}\n" for index in range(20)))
    arguments = [
        "evaluate",
        "--suite",
        "mine",
        "--data",
        str(data),
        "--truth",
        "clean",
        "--out",
        str(tmp_path / "out"),
    ]
    assert main([*arguments, "--short-side", "64"]) == 2
    said = capsys.readouterr().err
    assert "strip.png: an image of 5000 x 2 becomes 160,000 tokens at once" in said
    assert not (tmp_path / "out").exists()
