"""The dense detector: boxes from distances, IoU and suppression against plain definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gramloop.models.tiny import (
    DenseDetectConfig,
    DenseDetectHead,
    boxes_from_sides,
    pairwise_iou,
    suppressed,
)


def random_boxes(rng: np.random.Generator, count: int) -> torch.Tensor:
    corner, size = rng.uniform(0, 60, (count, 2)), rng.uniform(1, 50, (count, 2))
    return torch.from_numpy(np.concatenate([corner, corner + size], axis=1))


def test_iou_equals_the_reference_evaluator() -> None:
    mask_api = pytest.importorskip("pycocotools.mask")
    rng = np.random.default_rng(0)
    first, second = random_boxes(rng, 20), random_boxes(rng, 30)

    def as_coco(boxes: torch.Tensor) -> np.ndarray:
        return np.concatenate([boxes[:, :2].numpy(), (boxes[:, 2:] - boxes[:, :2]).numpy()], axis=1)

    expected = mask_api.iou(as_coco(first), as_coco(second), [0] * 30)
    assert np.allclose(pairwise_iou(first, second).numpy(), expected, atol=1e-12)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(0, 40), overlap=st.floats(0.1, 0.9))
def test_suppression_keeps_a_box_unless_a_kept_better_one_of_its_class_covers_it(
    seed: int, count: int, overlap: float
) -> None:
    rng = np.random.default_rng(seed)
    boxes, classes = random_boxes(rng, count), torch.from_numpy(rng.integers(0, 3, count))
    kept: list[int] = []
    for row in range(count):
        rivals = [k for k in kept if classes[k] == classes[row]]
        if not any(pairwise_iou(boxes[row : row + 1], boxes[k : k + 1]) > overlap for k in rivals):
            kept.append(row)
    alive = suppressed(boxes[None], classes[None], torch.ones(1, count, dtype=torch.bool), overlap)
    assert alive[0].nonzero()[:, 0].tolist() == kept


def test_boxes_start_at_cell_centres_and_stay_in_the_image() -> None:
    sides = torch.tensor([3.0, 2.0, 5.0, 100.0])[None, :, None, None].expand(1, 4, 2, 3)
    boxes = boxes_from_sides(sides, 8)
    assert boxes[0, :, 0, 0].tolist() == [1, 2, 9, 16]
    assert boxes[0, :, 1, 2].tolist() == [17, 10, 24, 16]


def test_a_head_made_to_point_at_one_cell_finds_one_thing_there() -> None:
    head = DenseDetectHead(DenseDetectConfig(channels=4, classes=3, stride=8, width=8)).eval()
    scores = torch.full((1, 3, 6, 6), -20.0)
    scores[0, 2, 1, 4], scores[0, 2, 1, 3] = 2.0, 1.0
    sides = torch.full((1, 4, 6, 6), 10.0)
    sides[0, :, 1, 3] = torch.tensor([2.0, 10.0, 18.0, 10.0])  # the same box, seen from the next cell
    head.forward = lambda features: (scores, sides)  # type: ignore[method-assign]
    boxes, scores, classes = head.detect(torch.zeros(1, 4, 6, 6))
    assert boxes[0, 0].tolist() == [26, 2, 46, 22]
    assert scores[0, 0].item() == pytest.approx(torch.tensor(2.0).sigmoid().item())
    assert classes[0].tolist() == [2, *[-1] * 49]
