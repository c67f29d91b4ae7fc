"""A replay's settings from Python, text, files and options: one check, and one sentence for one wrong value."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gramloop import Adaptive, GramLoopError, ReplayConfig, cost
from gramloop.cli import main
from gramloop.cli.replay_options import add_replay_options, replay_of
from gramloop.evaluate.methods import Method, parse_method
from gramloop.replay.config import FIELDS, parse_replay, read_replay, write_replay
from gramloop.tune.search.space import Space, read_values

WHOLE = st.integers(-3, 60)
FLOATS = st.floats(allow_nan=True, allow_infinity=True) | st.floats(-2, 2)
LIKELY = [
    "gram",
    "uniform",
    "none",
    "matched",
    "final",
    "end",
    "tap",
    "length",
    "1",
    "0.5",
    "5-7",
    "True",
    "",
]
WORDS = st.sampled_from(LIKELY) | st.text(max_size=8)
SCALARS = st.none() | st.booleans() | WHOLE | FLOATS | WORDS
RULES = st.fixed_dictionaries({}, optional=dict.fromkeys(("signal", "off", "full", "more"), SCALARS | WHOLE))
JSON_VALUES = (
    SCALARS | st.lists(SCALARS | WHOLE, max_size=3) | RULES | st.dictionaries(WORDS, SCALARS, max_size=2)
)
ODD = st.sampled_from(
    [
        object(),
        b"gram",
        1j,
        np.array([1, 2]),
        np.bool_(True),
        np.float64("nan"),
        10**5000,
        Fraction(10**400),
        {1, 2},
    ]
)


def index(value: Any) -> bool:
    return type(value) is int and value >= 0


SMALLEST, LARGEST = 2.0**-126, (2 - 2.0**-23) * 2.0**127  # float32's


def real(value: Any, low: float, high: float = LARGEST) -> bool:
    return type(value) in (int, float) and low <= value <= high


# what is right, said once more and independently
RIGHT: dict[str, Callable[[Any], bool]] = {
    "window": lambda v: (
        v is None or (isinstance(v, list) and len(v) == 2 and all(map(index, v)) and v[0] <= v[1])
    ),
    "replays": index,
    "gate": lambda v: isinstance(v, str) and v in ("gram", "uniform", "none"),
    "strength": lambda v: real(v, 0, 1),  # "matched" belongs to a gate that is not the usual one
    "gate_at": lambda v: (isinstance(v, str) and v in ("final", "end")) or index(v),
    "update_at": lambda v: isinstance(v, str) and v in ("final", "end"),
    "eps": lambda v: real(v, SMALLEST),
    "adaptive": lambda v: (
        v is None
        or (
            isinstance(v, dict)
            and set(v) == {"signal", "off", "full"}
            and isinstance(v["signal"], str)
            and v["signal"] in ("length", "spread", "noise")
            and real(v["off"], -LARGEST)
            and real(v["full"], -LARGEST)
        )
    ),
    "until": lambda v: v is None or index(v),
    "substeps": lambda v: v is None,  # a number belongs to one replay, and two are usual
}


def options(*words: str) -> ReplayConfig:
    parser = argparse.ArgumentParser()
    add_replay_options(parser.add_argument_group("replay"))
    return replay_of(parser.parse_args(words))


def from_file(name: str, value: object) -> ReplayConfig:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "replay.json"
        path.write_text(json.dumps({"kind": "gramloop replay", "replay": {name: value}}))
        try:
            return read_replay(path)
        except GramLoopError as error:
            raise GramLoopError(str(error).removeprefix(f"{path}: ")) from None


def refusal(way: Callable[[], object]) -> str:
    """The sentence of a refusal, empty where the value was taken; any other exception is a failure."""
    try:
        way()
    except GramLoopError as error:
        return str(error)
    return ""


def by_value(name: str, value: Any) -> list[str]:
    """What Python, a settings file and a plan file say to a value."""
    plain = ReplayConfig()
    return [
        refusal(lambda: ReplayConfig(**{name: value})),
        refusal(lambda: replace(plain, **{name: value})),
        refusal(lambda: from_file(name, value)),
        refusal(lambda: Method.from_json("m", json.loads(json.dumps({name: value})))),
    ]


def by_text(name: str, text: str) -> list[str]:
    """What a list of settings, evaluate's methods, tune's values and the options say to a text."""
    said = [
        refusal(lambda: parse_replay(f"{name}={text}")),
        refusal(lambda: parse_method(f"m:{name}={text}")),
    ]
    if name != "until":  # tune knows one value more
        said.append(refusal(lambda: Space(read_values([f"{name}={text}"])).candidates(60)))
        said[-1] = said[-1].removeprefix("no combination of the values to try can run: ")
    if name != "window":
        said.append(refusal(lambda: options(f"--{name.replace('_', '-')}={text}")))
    elif text.count("-") == 1:
        said.append(refusal(lambda: options("--window", *text.split("-"))))
    return said


@given(st.sampled_from(sorted(FIELDS)), JSON_VALUES)
def test_a_value_is_right_or_refused_in_one_sentence(name: str, value: Any) -> None:
    said = by_value(name, value)
    assert len(set(said)) == 1, said
    assert (said[0] == "") == RIGHT[name](value)
    assert not said[0] or (name in said[0] and "\n" not in said[0] and len(said[0]) < 200)


@pytest.mark.parametrize("name", FIELDS)
@given(value=ODD)
def test_what_no_file_could_hold_is_refused_too(name: str, value: Any) -> None:
    said = refusal(lambda: ReplayConfig(**{name: value}))
    assert said.startswith(name)
    assert "\n" not in said


@given(st.sampled_from(sorted(FIELDS)), WORDS.filter(lambda text: "," not in text))
def test_any_text_is_right_or_refused(name: str, text: str) -> None:
    for said in by_text(name, text):
        assert not said or said.startswith(name) or name in said.partition(";")[0]


# a wrong value, and the text that means it
WRONG: list[tuple[str, Any, str]] = [
    ("window", [3, 2], "3-2"),
    ("window", [5, "x"], "5-x"),
    ("window", "all", "all"),
    ("replays", -1, "-1"),
    ("replays", 1.5, "1.5"),
    ("replays", "two", "two"),
    ("gate", "soft", "soft"),
    ("strength", 1.5, "1.5"),
    ("strength", float("nan"), "nan"),
    ("strength", "abc", "abc"),
    ("strength", "matched", "matched"),
    ("gate_at", "middle", "middle"),
    ("gate_at", -2, "-2"),
    ("update_at", "start", "start"),
    ("eps", 0.0, "0"),
    ("eps", "abc", "abc"),
    ("eps", float("inf"), "1e999"),
    ("adaptive", {"signal": "colour", "off": 0.0, "full": 1.0}, "colour:0:1"),
    ("adaptive", {"signal": "noise", "off": 0.0, "full": "x"}, "noise:0:x"),
    ("adaptive", {"signal": "noise", "off": float("inf"), "full": 1.0}, "noise:inf:1"),
    ("adaptive", "noise:0.5", "noise:0.5"),
    ("until", -1, "-1"),
    ("until", 2.5, "2.5"),
    ("until", "end", "end"),
]


@pytest.mark.parametrize(("name", "value", "text"), WRONG, ids=lambda each: str(each))
def test_the_sentence_is_the_same_whichever_way_a_value_comes(name: str, value: Any, text: str) -> None:
    said = {*by_value(name, value), *by_text(name, text)}
    assert len(said) == 1, said
    assert said.pop().startswith(name)


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, _, text in WRONG if name != "window"])
def test_a_command_ends_with_one_sentence(name: str, text: str, tmp_path: Path, capsys) -> None:
    words = ["predict", "x.png", "--task", "segment", "--out", str(tmp_path)]
    assert main([*words, f"--{name.replace('_', '-')}={text}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"gramloop predict: {name}")
    assert error.count("\n") == 1


def test_options_for_every_setting() -> None:
    words = "--window 3 4 --replays 3 --gate uniform --strength matched --gate-at 5 --eps 1e-5"
    found = options(*words.split(), *["--until", "6", "--adaptive", "noise:0.5:1"])
    assert found == ReplayConfig(
        (3, 4), 3, "uniform", "matched", 5, "end", 1e-5, Adaptive("noise", 0.5, 1.0), 6
    )
    assert options("--update-at", "final").update_at == "final"


def test_options_override_a_file(tmp_path: Path) -> None:
    stored = ReplayConfig((1, 2), 1, strength=0.5, until=7)
    write_replay(tmp_path / "replay.json", stored)
    given = ["--replay", str(tmp_path / "replay.json")]
    assert options(*given) == stored
    assert options(*given, "--until", "none", "--replays", "3") == replace(stored, until=None, replays=3)
    assert replay_of(argparse.Namespace(replay=None, **dict.fromkeys(FIELDS)), stored) == stored


def test_cost_checks_its_settings_too() -> None:
    with pytest.raises(GramLoopError, match="strength is 'x'"):
        cost(12, strength="x")  # type: ignore[arg-type]
