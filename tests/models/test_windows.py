from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gramloop.errors import GramLoopError
from gramloop.models.windows import Layout, window_spans

patches = st.integers(1, 200)


@pytest.mark.parametrize(
    ("side", "lengths"),
    [(2048, [688, 688, 672]), (144, [48, 48, 48]), (208, [80, 80, 48]), (2736, [912, 912, 912])],
)
def test_window_lengths_of_the_released_detector(side, lengths):
    assert [stop - start for start, stop in window_spans(side)] == lengths


@pytest.mark.parametrize(("side", "count"), [(16, 1), (32, 2), (48, 3), (64, 2), (80, 3)])
def test_a_side_too_short_for_three_windows_has_fewer(side, count):
    assert len(window_spans(side)) == count


@given(patches)
def test_windows_cover_a_side_exactly_once(count):
    side = 16 * count
    spans = window_spans(side)
    assert spans[0][0] == 0
    assert spans[-1][1] == side
    assert all(before[1] == after[0] for before, after in pairwise(spans))
    assert all(start % 16 == 0 and stop > start for start, stop in spans)
    assert len(spans) == 3 or count in (1, 2, 4)


@pytest.mark.parametrize("side", [0, 8, 100, -16])
def test_a_side_without_whole_patches_is_refused(side):
    with pytest.raises(GramLoopError, match=str(side)):
        window_spans(side)


@given(st.integers(1, 12), st.integers(1, 12))
def test_joining_the_crops_gives_the_image_back(rows, columns):
    layout = Layout.of(16 * rows, 16 * columns)
    pixels = torch.arange(16 * rows * 16 * columns).reshape(1, 16 * rows, 16 * columns)
    cells = torch.arange(rows * columns).reshape(1, rows, columns)
    assert torch.equal(layout.join(layout.crops(pixels)), pixels)
    assert torch.equal(layout.join(layout.crops(cells, stride=16)), cells)


def test_mask_and_pixels_are_cropped_alike():
    layout = Layout.of(144, 208)
    valid = torch.zeros(1, 9, 13, dtype=torch.bool)
    valid[:, :8, :10] = True
    pixels = valid.repeat_interleave(16, 1).repeat_interleave(16, 2)
    for crop, mask in zip(layout.crops(pixels), layout.crops(valid, stride=16), strict=True):
        assert torch.equal(crop[:, ::16, ::16], mask)


def test_the_overview_has_the_size_of_the_first_window_and_keeps_constants():
    layout = Layout.of(144, 208)
    overview = layout.overview(torch.full((1, 3, 144, 208), 2.5))
    assert overview.shape == (1, 3, 48, 80)
    torch.testing.assert_close(overview, torch.full_like(overview, 2.5))
    assert layout.enlarge(torch.zeros(1, 7, 3, 5)).shape == (1, 7, 9, 13)


def test_the_overview_mask_keeps_the_share_of_valid_patches():
    valid = torch.zeros(1, 12, 12, dtype=torch.bool)
    valid[:, :, :6] = True
    mask = Layout.of(192, 192).overview_mask(valid)
    assert mask.shape == (1, 4, 4)
    assert mask[:, :, :2].all()
    assert not mask[:, :, 2:].any()
