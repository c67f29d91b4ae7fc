"""Methods by name and by settings."""

import pytest

from gramloop import ReplayConfig, cost
from gramloop.bench.methods import REPLAYS, Method, blocks_per_view, check_methods, parse_method
from gramloop.errors import GramLoopError


def test_names_of_the_table():
    assert parse_method("baseline") == Method("baseline")
    assert parse_method("gramloop").replay == ReplayConfig()
    assert parse_method("matched").replay == ReplayConfig(gate="uniform", strength="matched")


def test_settings_are_read_in_their_types():
    method = parse_method("mine:window=30-32,replays=3,gate=uniform,strength=0.25,gate-at=33,eps=1e-5")
    assert method == Method("mine", ReplayConfig((30, 32), 3, "uniform", 0.25, 33, "end", 1e-5))
    assert parse_method("m:gate=uniform,strength=matched,update_at=final").replay == ReplayConfig(
        gate="uniform", strength="matched", update_at="final"
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("gramlop", "there is no method 'gramlop'"),
        ("baseline:replays=2", "the baseline has no settings"),
        ("gramloop:replays=3", "another name"),
        ("m:replay=3", "'replay=3' is no setting"),
        ("m:window=21", "write window=21-23"),
        ("m:replays=two", "replays is 'two'"),
        ("m:strength=2", "strength is 2.0"),
        ("a b:replays=1", "is no name for a method"),
    ],
)
def test_slips_are_named(text, sentence):
    with pytest.raises(GramLoopError, match=sentence):
        parse_method(text)


def test_a_method_is_there_once():
    with pytest.raises(GramLoopError, match="gramloop is given twice"):
        check_methods([parse_method("gramloop"), parse_method("gramloop")])
    with pytest.raises(GramLoopError, match="at least one method"):
        check_methods([])


@pytest.mark.parametrize("name", REPLAYS)
def test_methods_survive_the_plan_file(name):
    method = parse_method(name).placed(40)
    assert method.replay is not None
    assert method.replay.window == (21, 23)
    assert Method.from_json(name, method.as_json()) == method


def test_a_pair_costs_what_the_replay_costs():
    baseline, gramloop = parse_method("baseline"), parse_method("gramloop")
    assert blocks_per_view([baseline], 40) == 40
    assert blocks_per_view([baseline, gramloop], 40) == cost(40).blocks == 94
    # the paper's cost table: 94 for the method, 46 for the endpoint gate, 78 for the final filter
    ablation = [baseline, gramloop, parse_method("loop-loop"), parse_method("final-final")]
    assert blocks_per_view(ablation, 40) == 94 + 46 + 78
