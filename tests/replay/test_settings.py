from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gramloop import Adaptive, GramLoopError, ReplayConfig
from gramloop.replay.config import (
    FLOAT32_MAX,
    FLOAT32_MIN,
    parse_replay,
    read_replay,
    replay_text,
    write_replay,
)

CONFIGS = [
    ReplayConfig(),
    ReplayConfig(window=(3, 3), replays=1, strength=0.2, gate_at="end"),
    ReplayConfig(gate="uniform", strength="matched", adaptive=Adaptive("noise", 1.7, 1.8)),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_a_file_gives_back_what_was_written(tmp_path: Path, config: ReplayConfig) -> None:
    path = tmp_path / "inner" / "replay.json"
    write_replay(path, config, {"verdict": "helps"})
    assert read_replay(path) == config
    assert json.loads(path.read_text())["about"] == {"verdict": "helps"}
    assert [each.name for each in path.parent.iterdir()] == ["replay.json"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "it is not valid JSON"),
        ("[]", 'such a file says "kind": "gramloop replay"'),
        ('{"kind": "plan"}', 'such a file says "kind": "gramloop replay"'),
        ('{"kind": "gramloop replay", "replay": {"replays": -1}}', "replays is -1"),
        ('{"kind": "gramloop replay", "replay": {"speed": 1}}', "'speed' is no setting of a replay"),
        ('{"kind": "gramloop replay", "replay": {"adaptive": {"off": 1}}}', "Adaptive.signal, off, full"),
        ('{"kind": "gramloop replay", "replay": {"window": 5}}', "window is 5; it is a pair of blocks"),
        (
            '{"kind": "gramloop replay", "replay": {"eps": null}}',
            "eps is None; it is a small positive number",
        ),
        ('{"kind": "gramloop replay", "replay": {"eps": NaN}}', "eps is nan"),
        (
            '{"kind": "gramloop replay", "replay": [1]}',
            "the settings of a replay are .1.; they are values by name",
        ),
        ('{"kind": "gramloop replay"}', "the settings of a replay are None"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_files_that_hold_no_settings(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "some.json"
    path.write_text(text)
    with pytest.raises(GramLoopError, match=sentence) as caught:
        read_replay(path)
    assert str(path) in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(
        GramLoopError, match=r"cannot read .*none\.json, a file of replay settings: No such file"
    ):
        read_replay(tmp_path / "none.json")


def test_settings_are_plain_json(tmp_path: Path) -> None:
    for config in CONFIGS:
        assert ReplayConfig.from_json(json.loads(json.dumps(config.as_json()))) == config


SHARES = st.floats(0, 1)
POSITIVE = st.floats(FLOAT32_MIN, FLOAT32_MAX)
FINITE = st.floats(-FLOAT32_MAX, FLOAT32_MAX)
BLOCKS = st.integers(0, 10**6)


@st.composite
def settings(draw: st.DrawFn) -> dict[str, Any]:
    """The values of every field, as a backbone could run them."""
    gate = draw(st.sampled_from(["gram", "uniform", "none"]))
    matched = gate == "uniform" and draw(st.booleans())
    at_end = draw(st.booleans())
    rules = st.builds(Adaptive, st.just("noise"), FINITE, FINITE)
    return {
        "window": draw(st.none() | st.tuples(BLOCKS, BLOCKS).map(lambda ends: tuple(sorted(ends)))),
        "replays": draw(st.integers(0, 1000)),
        "gate": gate,
        "strength": "matched" if matched else draw(SHARES),
        "gate_at": draw(st.sampled_from(["final", "end"]) | BLOCKS),
        "update_at": "end" if at_end else "final",
        "eps": draw(POSITIVE),
        "adaptive": draw(st.none() | rules) if at_end else None,
    }


def written(value: object) -> str:
    """A value as the documentation writes it."""
    if isinstance(value, Adaptive):
        return f"{value.signal}:{value.off!r}:{value.full!r}"
    if isinstance(value, tuple):
        return f"{value[0]}-{value[1]}"
    return "none" if value is None else str(value)


@given(settings(), st.randoms(use_true_random=False))
def test_text_settings_json_settings_text(values: dict[str, Any], order: random.Random) -> None:
    config = ReplayConfig(**values)
    unusual = {name: value for name, value in values.items() if value != getattr(ReplayConfig(), name)}
    text = ",".join(f"{name}={written(value)}" for name, value in unusual.items())
    assert parse_replay(text) == config
    stored = ReplayConfig.from_json(json.loads(json.dumps(parse_replay(text).as_json())))
    assert stored == config
    assert replay_text(stored) == text
    everything = [f" {name.replace('_', '-')} = {written(value)}" for name, value in values.items()]
    order.shuffle(everything)
    assert parse_replay(",".join(everything)) == config


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("speed=1", "'speed' is no setting of a replay; settings are window, replays, gate"),
        ("strength", "strength is ''"),
        ("replays=2,", "'' is no setting of a replay"),
        ("replays=2,replays=3", "replays is given twice in 'replays=2,replays=3'"),
        ("window=21", "window is '21'; .* in text 21-23, or none"),
        ("window=5-x", r"window is \[5, 'x'\]"),
        ("replays=2.0", "replays is 2.0; it is a whole number"),
        ("replays=1001", "replays is 1001; it is a whole number from 0 to 1000"),
        ("replays=1_0", "replays is '1_0'"),
        ("eps=none", "eps is 'none'"),
        ("adaptive=spread", "adaptive is 'spread'; .* in text noise:0.2:0.3, or none"),
        ("adaptive=noise:x:1", "adaptive off is 'x'; it is a finite number"),
    ],
)
def test_texts_that_describe_no_replay(text: str, sentence: str) -> None:
    with pytest.raises(GramLoopError, match=sentence):
        parse_replay(text)
