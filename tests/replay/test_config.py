from __future__ import annotations

import json
from dataclasses import fields
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gramloop import Adaptive, GramLoopError, ReplayConfig
from gramloop.replay.config import FIELDS, RULE, ReplaySettings, default_window, route


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
        ({"window": (3, 2)}, r"window is \[3, 2\]; it is a pair of blocks, such as"),
        ({"window": (-1, 2)}, r"window is \[-1, 2\]"),
        ({"window": 3}, "window is 3; it is a pair"),
        ({"window": (1, 2, 3)}, "it is a pair"),
        ({"replays": -1}, "replays is -1; it is a whole number from 0 to 1000"),
        ({"replays": 1.5}, "replays is 1.5"),
        ({"replays": True}, "replays is True"),
        ({"gate": "soft"}, 'gate is \'soft\'; it is "gram" or "uniform" or "none"'),
        ({"gate_at": "middle"}, 'gate_at is \'middle\'; it is "final" or "end" or the index of a block'),
        ({"update_at": "start"}, "update_at is 'start'"),
        ({"strength": 1.5}, 'strength is 1.5; it is "matched" or a number from 0 to 1'),
        ({"strength": float("nan")}, "strength is nan"),
        ({"strength": "matched"}, 'strength "matched" belongs to gate "uniform"'),
        ({"strength": "same"}, "strength is 'same'; it is \"matched\" or a number from 0 to 1"),
        ({"eps": 0.0}, "eps is 0.0"),
        ({"eps": None}, "eps is None; it is a small positive number, such as 1e-6"),
        ({"eps": 1e-40}, "eps is 1e-40; it is a small positive number"),
        ({"eps": 1e39}, r"eps is 1e\+39; it is a small positive number"),
        ({"eps": 10**400}, "eps is 10000.*…; it is a small positive number"),
        ({"gate": np.array(["gram", "none"])}, "gate is array"),
        ({"adaptive": {"signal": "noise"}}, r"it is an Adaptive\(signal, off, full\)"),
        (
            {"adaptive": {"signal": "noise", "off": True, "full": 1}},
            "adaptive off is True; it is a finite number",
        ),
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


def test_numpys_numbers_become_pythons() -> None:
    rule: Any = {"signal": np.str_("noise"), "off": np.float64(0.25), "full": np.int8(1)}
    given: dict[str, Any] = {
        "window": (np.int64(2), np.uint8(3)),
        "replays": np.int32(1),
        "strength": np.float32(0.5),
        "eps": Fraction(1, 8),
        "adaptive": rule,
    }
    config = ReplayConfig(**given)
    assert config == ReplayConfig((2, 3), 1, strength=0.5, eps=0.125, adaptive=Adaptive("noise", 0.25, 1))
    assert ReplayConfig.from_json(json.loads(json.dumps(config.as_json()))) == config
    assert {type(value) for value in (config.replays, config.strength, config.eps)} == {int, float}


def test_a_number_stays_as_it_was_given() -> None:
    """The hash of a plan tells 1 from 1.0."""
    assert json.dumps(ReplayConfig(strength=1, eps=2).as_json()) == (
        '{"window": null, "replays": 2, "gate": "gram", "strength": 1, "gate_at": "final", "update_at": "end", '
        '"eps": 2, "adaptive": null}'
    )


def test_every_setting_has_its_check_and_its_type() -> None:
    assert (
        list(FIELDS) == [field.name for field in fields(ReplayConfig)] == list(ReplaySettings.__annotations__)
    )
    assert list(RULE) == [field.name for field in fields(Adaptive)]
