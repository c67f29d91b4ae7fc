"""YAML from outside: plain values alone, with limits; what is written is read back as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gramloop import GramLoopError
from gramloop.util.yaml_files import MOST_NESTED, parse_yaml, read_yaml, write_yaml

WHAT = "a file of settings"
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8"), max_size=12)
    | st.sampled_from(
        ["no", "on", "1e-6", "0x1f", "1_000", "12:30", "~", "null", "True", ".5", "2026-01-01", "- a"]
    )
)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
)


def parse(text: str) -> Any:
    return parse_yaml(text.encode(), "run.yaml", WHAT)


@settings(deadline=None)
@given(PLAIN)
@example({"\x85": None})
@example("a\u2028b")
def test_what_is_written_is_read_back(value: Any) -> None:
    assert parse(write_yaml({"value": value})) == {"value": value}


def test_scalars_are_those_of_yaml_1_2() -> None:
    assert parse("[no, on, 1e-6, 5., .5, -3, 12:30, 1_000, 2026-01-01, true, ~, .inf]") == [
        *("no", "on", 1e-6, 5.0, 0.5, -3, "12:30", "1_000", "2026-01-01", True, None, float("inf"))
    ]
    assert [type(each) for each in parse("[1, 1.0, 1e0]")] == [int, float, float]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: &x [1]\nb: *x", "anchors (&) and aliases (*) are not accepted, line 1"),
        ("a: 1\nb: *x", "anchors (&) and aliases (*) are not accepted, line 2"),
        (
            "!!python/object/apply:os.system ['echo']",
            "the tag tag:yaml.org,2002:python/object/apply:os.system",
        ),
        ("a: 1\nb: 2\na: 3", "'a' occurs twice, line 3"),
        ("a: {b: 1, b: 2}", "'b' occurs twice, line 1"),
        ("1: 2", "the key 1 is not a text"),
        ("? [a]\n: 1", "the key ['a'] is not a text"),
        ("[" * (MOST_NESTED + 1), "nested deeper than 100"),
        ("a: [1", "it is not valid YAML (expected ',' or ']'"),
        ("a: 1\n---\nb: 2", "it is not valid YAML (but found another document, line 2)"),
        ("a: " + "9" * 5000, "it is not valid YAML (Exceeds the limit"),
        ("a: \x07", "it is not valid YAML (unacceptable character"),
    ],
)
def test_what_is_not_plain_is_told(text: str, sentence: str) -> None:
    with pytest.raises(GramLoopError) as told:
        parse(text)
    assert str(told.value).startswith("run.yaml is not a file of settings: ")
    assert sentence in str(told.value)
    assert "\n" not in str(told.value)


def test_a_bomb_is_refused_before_it_grows() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    with pytest.raises(GramLoopError, match="aliases"):
        parse("\n".join(lines))


def test_files_have_limits(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("a: 1\n")
    assert read_yaml(path, WHAT) == {"a": 1}
    with pytest.raises(GramLoopError, match=f"has 5 bytes; {WHAT} has at most 4"):
        read_yaml(path, WHAT, largest=4)
    path.write_bytes(b"a: \xff")
    with pytest.raises(GramLoopError, match="not valid YAML"):
        read_yaml(path, WHAT)
    with pytest.raises(GramLoopError, match=r"cannot read .*missing\.yaml"):
        read_yaml(tmp_path / "missing.yaml", WHAT)
