"""JSON from outside: limits, a schema, and the path of what is wrong."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gramloop.data.coco import open_coco
from gramloop.data.folders import read_format
from gramloop.data.opening import read_manifest
from gramloop.data.scenes import SceneFiles, write_scenes
from gramloop.data.truth import DepthFormat
from gramloop.errors import GramLoopError
from gramloop.evaluate.plan import read_plan
from gramloop.models.checkpoint import open_checkpoint
from gramloop.replay.config import read_replay
from gramloop.tasks.transformers_models import architecture
from gramloop.tune.planning import read_search_plan
from gramloop.util.json_files import (
    first_difference,
    parse_json,
    read_checked,
    read_json,
    refuse_unknown,
)

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)
BRACKETS = b"[" * 100_000


@given(PLAIN)
def test_what_was_written_is_given_back(value: object) -> None:
    data = json.dumps(value).encode()
    assert parse_json(data, "here", "a file") == value
    with without_msgspec():
        assert parse_json(data, "here", "a file") == value


@contextmanager
def without_msgspec() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "msgspec", None)
        yield


def refusal(data: bytes) -> str:
    try:
        parse_json(data, "here", "a file")
    except GramLoopError as error:
        return str(error)
    return "none"


@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_any_bytes_are_read_or_refused_in_a_sentence(data: bytes) -> None:
    assert refusal(data).startswith(("here is not a file: ", "none"))


@pytest.mark.parametrize("data", [BRACKETS, b'{"a":' * 100_000, b'{"a": ' + BRACKETS])
def test_brackets_in_brackets(data: bytes) -> None:
    with pytest.raises(GramLoopError, match="nested too deeply"):
        parse_json(data, "here", "a file")
    with without_msgspec(), pytest.raises(GramLoopError, match="nested too deeply"):
        parse_json(data, "here", "a file")


@pytest.mark.parametrize("data", [rb'["\ud800"]', rb'{"\udfff": 1}'])
def test_half_a_character_is_refused(data: bytes) -> None:
    with pytest.raises(
        GramLoopError, match=r"here is not a file: it is not valid JSON .*surrogates not allowed"
    ):
        parse_json(data, "here", "a file")
    assert parse_json(rb'"\ud83d\ude00"', "here", "a file") == "\U0001f600"


def test_brackets_in_texts_and_side_by_side_are_no_depth() -> None:
    value = {"text": "[" * 5000 + '\\"', "list": [[] for _ in range(5000)]}
    assert parse_json(json.dumps(value).encode(), "here", "a file") == value


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    path.write_text("[1, 2, 3]")
    assert read_json(path, "a list", largest=9) == [1, 2, 3]
    with pytest.raises(GramLoopError, match=r"large\.json has 9 bytes; a list has at most 8"):
        read_json(path, "a list", largest=8)


@dataclass(frozen=True)
class Wheel:
    spokes: int


@dataclass(frozen=True)
class Car:
    name: str
    wheels: list[Wheel]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"name": 5, "wheels": []}, "name: expected `str`, got `int`"),
        (
            {"name": "x", "wheels": [{"spokes": 5}, {"spokes": "6"}]},
            "wheels[1].spokes: expected `int`, got `str`",
        ),
        ({"name": "x", "wheels": [{}]}, "wheels[0]: object missing required field `spokes`"),
        ({"name": "x"}, "object missing required field `wheels`"),
        ([], "expected `object`, got `array`"),
    ],
)
def test_the_path_of_a_wrong_value_is_told(tmp_path: Path, content: object, sentence: str) -> None:
    path = tmp_path / "car.json"
    path.write_text(json.dumps(content))
    with pytest.raises(GramLoopError) as caught:
        read_checked(path, Car, "a car")
    assert str(caught.value) == f"{path} is not a car: {sentence}"


def test_a_misspelt_field() -> None:
    with pytest.raises(GramLoopError, match="x is not a car: it has 'colour', which is none of name, wheels"):
        refuse_unknown({"colour": 1}, {"name": 1, "wheels": 2}, "x", "a car")


@pytest.mark.parametrize(
    "data", [BRACKETS, b"", b"nonsense", b"[1, 2]", b"\xff\xfe", b'"text"', b"5", b"null"]
)
def test_every_file_that_is_read_is_refused_in_a_sentence(tmp_path: Path, data: bytes) -> None:
    readers = {
        "settings.json": read_replay,
        "annotations/instances_val.json": lambda path: open_coco(path.parent.parent),
        "depth.json": lambda path: read_format(path.parent, DepthFormat()),
        "manifest.json": lambda path: read_manifest(path.parent),
        "scenes.json": lambda path: write_scenes(path.parent, SceneFiles(1)),
        "evaluation.json": read_plan,
        "plan.json": lambda path: read_search_plan(path.parent),
        "model.safetensors.index.json": lambda path: open_checkpoint(path.parent),
        "config.json": lambda path: architecture(path.parent),
    }
    for name, read in readers.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        before = {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()}
        with pytest.raises(GramLoopError) as caught:
            read(path)
        assert path.name in str(caught.value) or str(path.parent) in str(caught.value)
        assert before == {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()}


def test_a_pipe_and_a_device_are_not_waited_for(tmp_path: Path) -> None:
    pipe, endless = tmp_path / "pipe.json", tmp_path / "endless.json"
    os.mkfifo(pipe)
    endless.symlink_to("/dev/zero")
    for path in (pipe, endless):
        with pytest.raises(GramLoopError, match=f"cannot read {path}, a plan: it is not a regular file"):
            read_json(path, "a plan")


RECORD = {"shards": 3, "versions": {"torch": "2", "numpy": "1"}, "window": [3, 4], "where": "here"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        ({"where": "there"}, ""),
        ({"window": (3, 4)}, ""),  # stored, a tuple is a list
        ({"shards": 4}, "shards 3, not 4"),
        ({"shards": None}, "shards 3, not none"),
        ({"shards": 4, "window": [3, 5]}, "shards 3, not 4"),
        ({"window": [3, 5]}, "window [3, 4], not [3, 5]"),
        ({"versions": {"torch": "3", "numpy": "1"}}, "versions: torch = 2, not 3"),
        ({"versions": {"torch": "2"}}, "versions: numpy = 1, not nothing"),
        ({"versions": {"torch": "2", "numpy": "1", "scipy": None}}, "versions: scipy = nothing, not none"),
        ({"versions": None}, "versions {'torch': '2', 'numpy': '1'}, not none"),
        ({"added": 1}, "added nothing, not 1"),
        ({"shards": "x" * 64}, f"shards 3, not {'x' * 64}"),
        ({"shards": "x" * 65}, f"shards 3, not {'x' * 63}…"),
    ],
)
def test_the_first_difference_in_words(change, words):
    assert first_difference(RECORD, {**RECORD, **change}, skip=["where"]) == words


def test_what_is_no_longer_asked_for_is_a_difference():
    assert (
        first_difference(RECORD, {"versions": RECORD["versions"]}, skip=["where"]) == "shards 3, not nothing"
    )
