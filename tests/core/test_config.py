from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gramloop import GramLoopError, ReplayConfig
from gramloop.core.config import default_window, route


def test_the_default_window_of_the_paper() -> None:
    assert default_window(40) == (21, 23)


@pytest.mark.parametrize(
    ("depth", "window"), [(12, (6, 6)), (24, (13, 13)), (32, (17, 18)), (80, (42, 47)), (1, (0, 0))]
)
def test_scaled_windows(depth: int, window: tuple[int, int]) -> None:
    assert default_window(depth) == window


@given(st.integers(1, 500))
def test_a_default_window_always_fits(depth: int) -> None:
    start, end = default_window(depth)
    assert 0 <= start <= end < depth


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"window": (3, 2)}, r"window \[3, 2\] is reversed"),
        ({"window": (-1, 2)}, "pair .* of whole numbers from 0"),
        ({"window": 3}, "window is 3; it is a pair"),
        ({"window": (1, 2, 3)}, "it is a pair"),
        ({"replays": -1}, "replays is -1; it is a whole number, 0 or more"),
        ({"replays": 1.5}, "replays is 1.5"),
        ({"replays": True}, "replays is True"),
        ({"gate": "soft"}, 'gate is \'soft\'; it is "gram" or "uniform" or "none"'),
        ({"gate_at": "middle"}, 'gate_at is \'middle\'; it is "final" or "end" or the index of a block'),
        ({"update_at": "start"}, "update_at is 'start'"),
        ({"until": -1}, "until is -1; it is the index of a block"),
        ({"until": 5, "update_at": "final"}, 'update_at is "end" then'),
        ({"strength": 1.5}, "strength is 1.5; it is a number from 0 to 1"),
        ({"strength": float("nan")}, "strength is nan"),
        ({"strength": "matched"}, 'strength "matched" belongs to gate "uniform"'),
        ({"strength": "same"}, "strength is 'same'; it is \"matched\" or a number from 0 to 1"),
        ({"eps": 0.0}, "eps is 0.0"),
    ],
)
def test_settings_that_no_backbone_could_run(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(GramLoopError, match=sentence):
        ReplayConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"window": (5, 12)},
            r"window \[5, 12\] reaches past the last block: this backbone has 12 blocks, 0 to 11",
        ),
        (
            {"window": (5, 6), "gate_at": 4},
            "gate_at is block 4; it lies from the window's end, 6, to the last block, 11",
        ),
        ({"window": (5, 6), "gate_at": 12}, "gate_at is block 12"),
    ],
)
def test_settings_that_this_depth_cannot_run(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(GramLoopError, match=sentence):
        route(ReplayConfig(**settings), 12)


def test_a_list_is_as_good_as_a_tuple() -> None:
    assert ReplayConfig(window=[2, 3]) == ReplayConfig(window=(2, 3))  # type: ignore[arg-type]
