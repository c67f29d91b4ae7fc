from __future__ import annotations

import json
from pathlib import Path

import pytest

from gramloop import Adaptive, GramLoopError, ReplayConfig
from gramloop.core.settings import read_replay, read_settings, write_replay

CONFIGS = [
    ReplayConfig(),
    ReplayConfig(window=(3, 3), replays=1, strength=0.2, trust=1e-3, gate_at="end"),
    ReplayConfig(gate="uniform", strength="matched", adaptive=Adaptive("length", 1.7, 1.8)),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_a_file_gives_back_what_was_written(tmp_path: Path, config: ReplayConfig) -> None:
    path = tmp_path / "inner" / "replay.json"
    write_replay(path, config, {"verdict": "helps"})
    assert read_replay(path) == config
    assert read_settings(path) == (config, {"verdict": "helps"})
    assert [each.name for each in path.parent.iterdir()] == ["replay.json"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not JSON"),
        ("[]", 'such a file says "kind": "gramloop replay"'),
        ('{"kind": "plan"}', 'such a file says "kind": "gramloop replay"'),
        ('{"kind": "gramloop replay", "replay": {"replays": -1}}', "replays is -1"),
        ('{"kind": "gramloop replay", "replay": {"speed": 1}}', "'speed' is no setting of a replay"),
        ('{"kind": "gramloop replay", "replay": {"adaptive": {"off": 1}}}', "it has signal, off and full"),
    ],
)
def test_files_that_hold_no_settings(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "some.json"
    path.write_text(text)
    with pytest.raises(GramLoopError, match=sentence) as caught:
        read_replay(path)
    assert str(path) in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(GramLoopError, match=r"cannot read the replay settings .*none\.json"):
        read_replay(tmp_path / "none.json")


def test_settings_are_plain_json(tmp_path: Path) -> None:
    for config in CONFIGS:
        assert ReplayConfig.from_json(json.loads(json.dumps(config.as_json()))) == config
