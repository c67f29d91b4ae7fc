import itertools
import json
from dataclasses import replace

import pytest

from gramloop.errors import GramLoopError
from gramloop.replay.config import Adaptive, ReplayConfig
from gramloop.replay.cost import cost, route
from gramloop.tune.search.space import Space, multiplier, plain, read_values, windows


def test_every_window_up_to_a_length():
    assert windows(4, 2) == ((0, 0), (1, 1), (2, 2), (3, 3), (0, 1), (1, 2), (2, 3))
    assert len(windows(12, 12)) == 12 * 13 // 2


def test_candidates_are_the_combinations():
    space = Space({"window": [(1, 1), (2, 3)], "replays": [1, 2], "strength": [0.2, 1.0]})
    expected = {
        ReplayConfig(window=window, replays=replays, strength=strength)
        for window, replays, strength in itertools.product([(1, 1), (2, 3)], [1, 2], [0.2, 1.0])
    }
    found = space.candidates(6)
    assert set(found) == expected
    assert len(found) == len(expected)


def test_settings_of_equal_effect_are_tried_once():
    space = Space({"window": [(2, 2)], "gate": ["none"], "strength": [0.2, 1.0], "gate_at": ["end", "final"]})
    assert len(space.candidates(6)) == 1
    probes = Space({"window": [(5, 5)], "gate_at": ["end", "final", 5]})  # the last block: all the same
    assert len(probes.candidates(6)) == 1
    apart = Space({"window": [(2, 2)], "gate_at": ["end", "final", 2, 3, 5]})
    assert sorted(str(each.gate_at) for each in apart.candidates(6)) == ["3", "end", "final"]


@pytest.mark.parametrize("gate_at", ["end", "final", 3, 4])
def test_the_plain_form_does_the_same(gate_at):
    config = ReplayConfig(window=(1, 3), gate_at=gate_at)
    assert replace(route(plain(config, 6), 6), config=config) == route(config, 6)


def test_what_a_configuration_refuses_is_left_out():
    space = Space({"gate": ["gram", "uniform"], "strength": ["matched", 0.5], "window": [(1, 1), (4, 9)]})
    found = space.candidates(6)
    assert {(each.gate, each.strength) for each in found} == {
        ("gram", 0.5),
        ("uniform", "matched"),
        ("uniform", 0.5),
    }
    assert {each.window for each in found} == {(1, 1)}
    with pytest.raises(GramLoopError, match=r"window \[4, 9\] reaches past the last block"):
        Space({"window": [(4, 9)]}).candidates(6)


def test_a_maximal_cost_leaves_the_cheap_ones():
    offered = Space.default(12, longest=3, replays=(1, 2))
    cheap = offered.candidates(12, max_cost=1.5)
    by_formula = [
        config
        for config in offered.candidates(12)
        if cost(12, config.window, config.replays, strength=config.strength).multiplier <= 1.5
    ]
    assert list(cheap) == by_formula
    assert cheap
    assert multiplier(ReplayConfig(), 40) == 2.35  # the published one
    with pytest.raises(GramLoopError, match=r"no candidate costs at most 1\.01"):
        offered.candidates(12, max_cost=1.01)


def test_no_replay_is_no_candidate_of_its_own():
    assert [each.replays for each in Space({"window": [(1, 1)], "replays": [0, 1]}).candidates(6)] == [1]


def test_values_as_written_on_a_command_line():
    assert read_values(["window=3-3,2-4", "strength=0.2,1,matched", "gate=gram,none", "until=none,7"]) == {
        "window": ((3, 3), (2, 4)),
        "strength": (0.2, 1, "matched"),
        "gate": ("gram", "none"),
        "until": (None, 7),
    }
    assert read_values(["gate-at=end,7", "adaptive=none,noise:0.2:0.4"]) == {
        "gate_at": ("end", 7),
        "adaptive": (None, Adaptive("noise", 0.2, 0.4)),
    }


def test_a_search_that_was_begun_goes_on():
    """Candidates are in the plan's hash, and there a whole number is one."""
    found = Space(read_values(["window=2-3", "replays=1", "strength=0.2,1", "eps=1"])).candidates(6)
    assert json.dumps([config.as_json() for config in found]) == (
        '[{"window": [2, 3], "replays": 1, "gate": "gram", "strength": 0.2, "gate_at": "final", "update_at": "end", '
        '"eps": 1, "adaptive": null, "until": null, "substeps": null}, '
        '{"window": [2, 3], "replays": 1, "gate": "gram", "strength": 1, "gate_at": "final", "update_at": "end", '
        '"eps": 1, "adaptive": null, "until": null, "substeps": null}]'
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("colour=red", "'colour' is no setting of a replay"),
        ("strength", "strength is ''"),
        ("window=3", "window is '3'; it is a pair of blocks"),
        ("adaptive=noise:1", "in text length:1.7:1.8"),
        ("strength=abc,0.5", "strength is 'abc'"),
        ("until=end", "until is 'end'; it is \"tap\" or the index of a block, or none"),
    ],
)
def test_values_that_cannot_be_read(text, told):
    with pytest.raises(GramLoopError, match=told):
        read_values([text])


def test_a_space_of_nothing():
    with pytest.raises(GramLoopError, match="'colour' is no setting"):
        Space({"colour": [1]})
    with pytest.raises(GramLoopError, match="a list with at least one"):
        Space({"replays": []})
    with pytest.raises(GramLoopError, match="eps is None"):
        Space({"eps": [None, 1e-6]})


def test_a_replay_may_end_at_the_next_block_that_the_head_reads() -> None:
    space = Space({"window": [(1, 1), (2, 3), (7, 8), (9, 10)], "until": [None, "tap"]})
    found = {(one.window, one.until) for one in space.candidates(12, taps=(2, 5, 8, 11))}
    ends = {((1, 1), 2), ((2, 3), 5), ((7, 8), 8)}  # after block 8 only the last tap is left: to the end
    assert found == {(window, None) for window in space.values["window"]} | ends
    with pytest.raises(GramLoopError, match="a head that tells which blocks it reads"):
        Space({"until": ["tap"]}).candidates(12)


def test_a_head_on_several_blocks_has_more_to_choose() -> None:
    several = Space.default(12, taps=(2, 5, 8, 11))
    assert several.values["until"] == (None, "tap")
    assert "until" not in Space.default(12, taps=(11,)).values
    assert Space.default(12, taps=(2, 11), until=[4]).values["until"] == (4,)
    assert read_values(["until=none,tap,8"]) == {"until": (None, "tap", 8)}
