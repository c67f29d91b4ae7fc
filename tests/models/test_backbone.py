"""Work is bounded by tokens: what no machine ends is refused before it begins, with what would do instead."""

import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from gramloop.cli import main
from gramloop.errors import GramLoopError
from gramloop.models.backbone import MOST_TOKENS, TooManyTokensError, largest_short_side, refuse_many_tokens
from gramloop.models.tiny import WEIGHTS
from gramloop.tasks.detect import DetectConfig, input_size
from gramloop.tasks.images import short_side_size
from gramloop.tasks.loading import load_predictor
from gramloop.tasks.module_predictor import ModulePredictor
from gramloop.tasks.semantic import Segmentation
from gramloop.tasks.transformers_models import _refuse_huge
from small_sets import write_semantic

pytest.importorskip("transformers")


@given(st.integers(2, 6000), st.integers(2, 6000), st.sampled_from([(8, 8), (16, 16), (16, 32), (14, 14)]))
def test_the_short_side_that_is_offered_is_the_largest_that_fits(height, width, sides):
    patch, multiple = sides
    short = largest_short_side(height, width, multiple, patch)

    def tokens(side: int) -> int:
        rows, columns = (each // patch for each in short_side_size(height, width, side, multiple=multiple))
        return rows * columns

    if short:
        assert tokens(short) <= MOST_TOKENS
    assert tokens(short + 2 * multiple) > MOST_TOKENS  # rounding to patches may spare the next one


TASKS = [("semantic", {"short_side": 64}), ("depth", {"short_side": 64}), ("detection", {})]


@pytest.mark.parametrize(("task", "sizes"), TASKS)
def test_a_strip_is_refused_in_no_time(task: str, sizes: dict[str, int]):
    predictor = load_predictor(task, {"folder": str(WEIGHTS)}, sizes)
    strip = np.zeros((2, 5000, 3) if task != "detection" else (1024, 5000, 3), np.uint8)
    began = time.process_time()
    with pytest.raises(TooManyTokensError, match=r"becomes .* tokens at once .* more than 32,768"):
        predictor.predict(strip)
    assert time.process_time() - began < 2


def test_the_sentence_says_what_would_do():
    predictor = load_predictor("semantic", {"folder": str(WEIGHTS)}, {"short_side": 64})
    with pytest.raises(TooManyTokensError) as told:
        predictor.check_size(2, 5000)
    assert "an image of 5000 x 2 at a short side of 64 becomes 160,000 tokens" in str(told.value)
    assert "102 GB" in str(told.value)
    assert "--whole --short-side 24" in str(told.value)
    load_predictor("semantic", {"folder": str(WEIGHTS)}, {"short_side": 24}).check_size(2, 5000)


def test_every_way_into_a_backbone_is_guarded():
    backbone = load_predictor("semantic", {"folder": str(WEIGHTS)}, {}).backbone
    with pytest.raises(TooManyTokensError):
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
    with pytest.raises(TooManyTokensError, match="as mine is shown it, becomes 160,000 tokens"):
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
    assert "strip.png: an image of 5000 x 2 at a short side of 64 becomes 160,000 tokens at once" in said
    assert not (tmp_path / "out").exists()
