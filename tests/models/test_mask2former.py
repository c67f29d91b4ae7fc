from __future__ import annotations

import pytest
import torch

from golden import load_golden, released_shapes, segmentor_shapes
from gramloop.errors import GramLoopError
from gramloop.models.dino import SHAPES, meta_backbone
from gramloop.models.mask2former import (
    SEGMENTOR_BACKBONE,
    Mask2FormerSegmentor,
    class_scores,
    load_segmentor,
    mask2former_sizes,
)

LOGITS = 1e-4  # what the reference's own ports agree to


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """One released file with everything, one with the head alone, one with the backbone alone."""
    folder = tmp_path_factory.mktemp("segmentor")
    weights = load_golden("segmentor").weights
    parts = {
        "all": weights,
        "head": {name: value for name, value in weights.items() if not name.startswith(SEGMENTOR_BACKBONE)},
        "backbone": {
            name.removeprefix(SEGMENTOR_BACKBONE): value
            for name, value in weights.items()
            if name.startswith(SEGMENTOR_BACKBONE)
        },
    }
    for name, part in parts.items():
        torch.save(part, folder / f"{name}.pth")
    return {name: folder / f"{name}.pth" for name in parts}


@pytest.fixture(scope="module")
def segmentor(files):
    return load_segmentor(files["head"], files["backbone"])


def test_pyramid_logits_and_masks_are_the_reference(segmentor, golden):
    expected = golden("segmentor").values
    with torch.no_grad():
        taps = segmentor.backbone(expected["x"], segmentor.taps)
        pyramid = segmentor.head.adapter.pyramid(segmentor.prior(expected["x"]), taps)
        logits, masks = segmentor(expected["x"])
    for level, found in enumerate(pyramid, start=1):
        assert (found - expected[f"pyramid.{level}"]).abs().max() <= LOGITS
    assert (logits - expected["pred_logits"]).abs().max() <= LOGITS
    assert (masks - expected["pred_masks"]).abs().max() <= LOGITS


def test_a_file_that_repeats_the_backbone_needs_no_other(files, segmentor):
    whole = load_segmentor(files["all"])
    x = load_golden("segmentor").values["x"]
    with torch.no_grad():
        assert all(torch.equal(one, two) for one, two in zip(whole(x), segmentor(x), strict=True))
    both = load_segmentor(files["all"], files["backbone"])
    with torch.no_grad():
        assert all(torch.equal(one, two) for one, two in zip(both(x), segmentor(x), strict=True))


def test_names_and_shapes_are_the_released_ones():
    with torch.device("meta"):
        segmentor = Mask2FormerSegmentor(meta_backbone(SHAPES["vit7b16"]), 4096)
    expected = released_shapes("seg_7b")
    assert segmentor_shapes(segmentor) == expected
    assert sum(not name.startswith(SEGMENTOR_BACKBONE) for name in expected) == 479
    assert segmentor.taps == (9, 19, 29, 39)


def test_a_backbone_where_a_head_should_be(files):
    with pytest.raises(GramLoopError, match="is not a segmentation head: it lacks segmentation_model"):
        load_segmentor(files["backbone"], files["backbone"])
    with pytest.raises(GramLoopError, match="is not a DINOv3 backbone: it lacks cls_token"):
        load_segmentor(files["head"], files["head"])


def test_the_shape_of_a_head_is_inferred(files):
    from gramloop.models.checkpoint import open_checkpoint

    sizes = {"channels": 64, "hidden": 64, "classes": 7, "queries": 100, "feedforward": 4096}
    assert mask2former_sizes(open_checkpoint(files["head"])) == sizes


def test_class_scores_are_votes_weighted_by_masks():
    """One query that is sure of class 1 and covers the left half."""
    logits = torch.tensor([[[0.0, 50.0, 0.0]]])  # two classes and "no object"
    masks = torch.tensor([[[[50.0, -50.0]]]])
    scores = class_scores(logits, masks, (1, 2), product=torch.float32)
    assert torch.allclose(scores, torch.tensor([[[[0.0, 0.0]], [[1.0, 0.0]]]]), atol=1e-6)
