"""Methods by name and by settings."""

import json

import pytest

from gramloop import ReplayConfig, cost
from gramloop.errors import GramLoopError
from gramloop.evaluate.methods import (
    Method,
    blocks_per_view,
    check_methods,
    parse_method,
    read_methods,
)
from gramloop.mitigations import stack_text
from gramloop.mitigations.stack import REPLAYS, Replay
from gramloop.replay.config import Adaptive, write_replay


def test_names_of_the_table():
    assert parse_method("baseline") == Method("baseline")
    assert parse_method("gramloop").replay == ReplayConfig()
    assert parse_method("matched").replay == ReplayConfig(gate="uniform", strength="matched")


def test_settings_are_read_in_their_types():
    method = parse_method("mine:window=30-32,replays=3,gate=uniform,strength=0.25,gate-at=33,eps=1e-5")
    assert method == Method("mine", (Replay(ReplayConfig((30, 32), 3, "uniform", 0.25, 33, "end", 1e-5)),))
    assert parse_method("m:window=2-3,gate_at=8").replay == ReplayConfig(window=(2, 3), gate_at=8)
    assert parse_method("m:gate=uniform,strength=matched,update_at=final").replay == ReplayConfig(
        gate="uniform", strength="matched", update_at="final"
    )
    assert parse_method("m:gate=uniform,strength=matched,adaptive=none").replay == ReplayConfig(
        gate="uniform", strength="matched"
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("gramlop", "there is no method 'gramlop'"),
        ("baseline:replays=2", "the baseline has no settings"),
        ("gramloop:replays=3", "another name"),
        ("m:replay=3", "'replay' is no setting of a replay"),
        ("m:window=21", "in text 21-23"),
        ("m:eps=abc", "eps is 'abc'; it is a small positive number"),
        ("m:replays=two", "replays is 'two'"),
        ("m:strength=2", "strength is 2.0"),
        ("a b:replays=1", "is no name for a method"),
        ("m:adaptive=spread", "in text noise:0.2:0.3"),
        ("m:nowhere.json", "cannot read nowhere.json, a file of replay settings"),
    ],
)
def test_slips_are_named(text, sentence):
    with pytest.raises(GramLoopError, match=sentence):
        parse_method(text)


def test_a_method_is_there_once():
    with pytest.raises(GramLoopError, match="gramloop is given twice"):
        read_methods(["gramloop", "gramloop"])
    with pytest.raises(GramLoopError, match="at least one method"):
        check_methods([])


NESTED = ReplayConfig((5, 6), 1, eps=0.25, adaptive=Adaptive("noise", 0.1, 0.3))


def test_settings_files_are_read(tmp_path):
    path = tmp_path / "mine.json"
    write_replay(path, NESTED, {"found": "here"})
    assert parse_method(f"mine:{path}") == Method("mine", (Replay(NESTED),))
    assert parse_method("mine:window=5-6,replays=1,eps=0.25,adaptive=noise:0.1:0.3").replay == NESTED
    with pytest.raises(GramLoopError, match="gramloop has its settings already"):
        parse_method(f"gramloop:{path}")


def test_nested_settings_survive_the_plan_file():
    method = Method("mine", (Replay(NESTED),)).with_window(12)
    assert Method.from_json("mine", json.loads(json.dumps(method.as_json()))) == method
    assert method.replay == NESTED
    with pytest.raises(GramLoopError, match="mine is not a method: it has 'windows'"):
        Method.from_json("mine", {"windows": [1, 2]})


@pytest.mark.parametrize("name", REPLAYS)
def test_methods_survive_the_plan_file(name):
    method = parse_method(name).with_window(40)
    assert method.replay is not None
    assert method.replay.window == (21, 23)
    assert Method.from_json(name, json.loads(json.dumps(method.as_json()))) == method


def test_a_pair_costs_what_the_replay_costs():
    baseline, gramloop = parse_method("baseline"), parse_method("gramloop")
    assert blocks_per_view([baseline], 40) == 40
    assert blocks_per_view([baseline, gramloop], 40) == cost(40).blocks == 94
    # the paper's cost table: 94 for the method, 46 for the endpoint gate, 78 for the final filter
    # a trace probes what would need no probe: 40 + 2 (3 + 16) + 16 for the ungated loop too
    ungated = [baseline, parse_method("ungated")]
    assert blocks_per_view(ungated, 40) == 46
    assert blocks_per_view(ungated, 40, traced=True) == 94
    ablation = [baseline, gramloop, parse_method("loop-loop"), parse_method("final-final")]
    assert blocks_per_view(ablation, 40) == 94 + 46 + 78


@pytest.mark.parametrize(
    ("text", "name", "stack"),
    [
        ("recentre:0.3", "recentre-0.3", "recentre:0.3"),
        ("recentre:c=1", "recentre-c1", "recentre:c=1"),
        ("median", "median", "median"),
        ("gramloop+recentre:0.3+median", "gramloop-recentre-0.3-median", "median+gramloop+recentre:0.3"),
        ("both=recentre:0.3+gramloop", "both", "gramloop+recentre:0.3"),
        ("m=scales:0.75,1,1.25", "m", "scales:0.75,1,1.25"),
    ],
)
def test_mitigations_are_methods(text, name, stack):
    method = parse_method(text)
    assert (method.name, method.replay, stack_text(method.stack)) == (name, None, stack)
    placed = method.with_window(12)
    assert Method.from_json(name, json.loads(json.dumps(placed.as_json()))) == placed


def test_a_replay_among_mitigations_keeps_its_settings_whole():
    placed = parse_method("both=recentre:0.3+gramloop").with_window(40)
    assert placed.as_json() == {
        "mitigations": "recentre:0.3",
        **parse_method("gramloop").with_window(40).as_json(),
    }
    assert parse_method("one=replay:window=5-6") == parse_method("one:window=5-6")
    assert parse_method("median:window=5-6") == Method("median", (Replay(ReplayConfig((5, 6))),))


def test_mitigations_cost_their_looks():
    methods = [parse_method(text) for text in ("baseline", "flip", "median", "both=gramloop+flip")]
    assert blocks_per_view(methods, 40) == 40 + 80 + 40 + 188
    assert blocks_per_view([*methods, parse_method("gramloop")], 40) == 94 + 80 + 40 + 188
