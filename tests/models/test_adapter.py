from __future__ import annotations

import pytest
import torch
from transformers.models.deformable_detr.modeling_deformable_detr import MultiScaleDeformableAttention

from gramloop.errors import GramLoopError
from gramloop.models.backbone import Tap
from gramloop.models.mask2former import Adapter, DeformableAttention, cell_centres


def test_deformable_attention_is_that_of_transformers_where_both_exist():
    """transformers has no ratio; with ratio 1 and one level both compute the same."""
    torch.manual_seed(0)
    ours = DeformableAttention(64, heads=4, points=3, ratio=1.0)
    grid, queries, values = (5, 7), torch.randn(2, 11, 64), torch.randn(2, 35, 64)
    places = torch.rand(11, 2)
    with torch.no_grad():
        offsets = ours.sampling_offsets(queries).view(2, 11, 4, 1, 3, 2)
        weights = ours.attention_weights(queries).view(2, 11, 4, 3).softmax(-1).view(2, 11, 4, 1, 3)
        where = places[None, :, None, None, None] + offsets / torch.tensor([7.0, 5.0])
        sample = MultiScaleDeformableAttention()
        theirs = sample(
            ours.value_proj(values).view(2, 35, 4, 16),
            torch.tensor([grid]),
            [grid],
            torch.tensor([0]),
            where,
            weights,
            64,
        )
        expected = ours.output_proj(theirs)
        assert torch.allclose(ours(queries, places, values, grid), expected, atol=1e-5)


def test_without_offsets_every_query_reads_its_own_place():
    attention = DeformableAttention(8, heads=2, points=2, ratio=1.0)
    with torch.no_grad():
        for layer in (attention.sampling_offsets, attention.attention_weights):
            layer.weight.zero_()
            layer.bias.zero_()
        for layer in (attention.value_proj, attention.output_proj):
            layer.weight.copy_(torch.eye(8))
            layer.bias.zero_()
        values = torch.randn(1, 12, 8)
        read = attention(torch.randn(1, 12, 8), cell_centres([(3, 4)], values), values, (3, 4))
    assert torch.allclose(read, values, atol=1e-6)


def test_centres_run_row_by_row_and_grid_by_grid():
    centres = cell_centres([(1, 2), (2, 1)], torch.zeros(1))
    assert centres.tolist() == [[0.25, 0.5], [0.75, 0.5], [0.5, 0.25], [0.5, 0.75]]


def test_a_batch_is_its_images_one_by_one():
    torch.manual_seed(0)
    adapter = Adapter(32).eval()
    pixels, tokens = torch.randn(2, 3, 64, 96), [torch.randn(2, 5 + 24, 32) for _ in range(4)]
    with torch.no_grad():
        both = adapter.pyramid(adapter.prior(pixels), [Tap(each, (4, 6)) for each in tokens])
        alone = [
            adapter.pyramid(
                adapter.prior(pixels[i : i + 1]), [Tap(each[i : i + 1], (4, 6)) for each in tokens]
            )
            for i in range(2)
        ]
    for level, stride in enumerate((4, 8, 16, 32)):
        assert both[level].shape == (2, 32, 64 // stride, 96 // stride)
        assert torch.allclose(both[level], torch.cat([each[level] for each in alone]), atol=1e-4)


def test_sides_that_the_coarsest_map_cannot_hold_are_refused():
    with pytest.raises(GramLoopError, match="multiples of 32, not 80 x 96"):
        Adapter(32).prior(torch.zeros(1, 3, 80, 96))
