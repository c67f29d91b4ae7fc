"""Segments and masks of transformers' universal models: from queries that are known to what the processors make of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dense_folders import LABELS, save_model
from gramloop.data.truth import decode_mask
from gramloop.errors import GramLoopError
from gramloop.tasks import InstanceMasks, Panoptic, open_model
from gramloop.tasks.transformers_models import read_masks, read_segments, thing_numbers

NAMES = {0: "sky", 1: "car", 2: "road"}  # of these COCO counts cars
PIXELS = np.random.default_rng(0).integers(0, 256, (50, 70, 3), np.uint8)


def processors() -> dict[str, Any]:
    import transformers as t

    square = {"height": 64, "width": 64}
    return {
        "Mask2Former": t.Mask2FormerImageProcessorPil(size=square),
        "MaskFormer": t.MaskFormerImageProcessorPil(size=square),
        "Eomt": t.EomtImageProcessorPil(
            size={"shortest_edge": 64, "longest_edge": 64}, do_split_image=False, do_pad=True
        ),
    }


def queries(kinds: list[int], masks: list[np.ndarray], sure: list[float] | None = None) -> Any:
    """Outputs of a model that is sure of these classes and masks, (64, 64) each."""
    classes = torch.full((1, len(kinds), len(NAMES) + 1), -10.0)
    classes[..., -1] = 0.0  # no object
    for query, (kind, logit) in enumerate(zip(kinds, sure or [10.0] * len(kinds), strict=True)):
        classes[0, query, kind] = logit
    shapes = torch.tensor(np.array([np.where(mask, 20.0, -20.0) for mask in masks]), dtype=torch.float32)
    return SimpleNamespace(class_queries_logits=classes, masks_queries_logits=shapes[None])


def column(first: int, last: int) -> np.ndarray:
    mask = np.zeros((64, 64), np.bool_)
    mask[:, first:last] = True
    return mask


@pytest.mark.parametrize("kind", ["Mask2Former", "MaskFormer", "Eomt"])
def test_stuff_of_one_class_is_one_segment_and_things_stay_apart(kind: str) -> None:
    """Fused by the processors themselves, the third car would get the number of the second segment."""
    kinds = [0, 1, 0, 1, 2]
    columns = [column(0, 10), column(10, 20), column(20, 30), column(30, 44), column(44, 64)]
    found = read_segments(processors()[kind], queries(kinds, columns), (64, 64), NAMES)
    assert isinstance(found, Panoptic)
    assert [(info.category, info.is_thing) for info in found.infos] == [
        (0, False),
        (1, True),
        (1, True),
        (2, False),
    ]
    expected = np.zeros((64, 64), np.int32)
    for number, mask in zip([1, 2, 1, 3, 4], columns, strict=True):
        expected[mask] = number
    near = np.zeros(64, np.bool_)  # logits are resized on the way
    near[[9, 10, 19, 20, 29, 30, 43, 44]] = True
    np.testing.assert_array_equal(found.segments[:, ~near], expected[:, ~near])


@pytest.mark.parametrize("kind", ["Mask2Former", "MaskFormer", "Eomt"])
def test_masks_may_overlap_and_have_no_threshold(kind: str) -> None:
    kinds, shapes = [1, 1, 0], [column(0, 40), column(20, 64), column(5, 9)]
    found = read_masks(processors()[kind], queries(kinds, shapes, [4.0, 10.0, -7.0]), (64, 64))
    assert isinstance(found, InstanceMasks)
    assert (np.diff(found.scores) <= 0).all()
    assert found.scores[-1] < 0.5
    best = {}  # the surest pair of each mask
    for mask, label in zip(found.masks, found.labels.tolist(), strict=True):
        best.setdefault(mask["counts"], label)
    pixels = [decode_mask({"size": [64, 64], "counts": counts})[0] for counts in best]
    wanted = [column(20, 64)[0], column(0, 40)[0], column(5, 9)[0]]
    assert len(pixels) == 3
    for one, two in zip(pixels, wanted, strict=True):
        assert np.abs(one - two).sum() <= 2  # rims move by half a pixel where logits are resized


def test_the_padding_of_eomts_square_is_cut_off() -> None:
    """An image of 32 x 64 fills the upper half of the square; a mask of its first 8 rows is one of a quarter."""
    top = np.zeros((64, 64), np.bool_)
    top[:8] = True
    outputs = queries([1], [top])
    masks = read_masks(processors()["Eomt"], outputs, (32, 64))
    assert masks.size == (32, 64)
    assert np.abs(masks.mask(0).sum(axis=0) - 8).max() <= 1
    segments = read_segments(processors()["Eomt"], outputs, (32, 64), NAMES).segments
    assert np.abs((segments == 1).sum(axis=0) - 8).max() <= 1


def test_things_are_known_by_cocos_names() -> None:
    assert thing_numbers(NAMES) == {1}
    assert thing_numbers({0: "a", 1: None}) == {0, 1}


@pytest.mark.parametrize("name", ["Mask2Former", "MaskFormer"])
def test_a_folder_predicts_both(name: str, tmp_path: Path) -> None:
    folder = save_model(name, tmp_path)
    panoptic = open_model(f"hf:{folder}", "panoptic")
    assert (panoptic.task, panoptic.classes) == ("panoptic", LABELS)
    assert panoptic.things == {2}  # type: ignore[attr-defined]
    found = panoptic.predict(PIXELS)
    assert isinstance(found, Panoptic)
    assert found.segments.shape == (50, 70)
    masks = open_model(f"hf:{folder}", "instance").predict(PIXELS)
    assert isinstance(masks, InstanceMasks)
    assert masks.size == (50, 70)
    assert len(masks.scores) > 0
    assert open_model(f"hf:{folder}").task == "semantic"


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    windows = save_model("Eomt", tmp_path / "eomt")
    with pytest.raises(GramLoopError, match="cuts images into windows"):
        open_model(f"hf:{windows}", "panoptic").predict(PIXELS)
    other = save_model("Segformer", tmp_path / "segformer")
    with pytest.raises(GramLoopError, match="a model for semantic, not for panoptic"):
        open_model(f"hf:{other}", "panoptic")
