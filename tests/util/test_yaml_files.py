"""YAML from outside: plain values alone; what is written is read back as it was."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gramloop import GramLoopError
from gramloop.util.yaml_files import read_yaml, write_yaml

WHAT = "a file of settings"
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8"), max_size=12)
    | st.sampled_from(["no", "on", "1e-6", "0x1f", "12:30", "~", "null", "True", ".5", "2026-01-01", "- a"])
)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
)


def parse(text: str | bytes) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.yaml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return read_yaml(path, WHAT)


@settings(deadline=None)
@given(PLAIN)
@example({"\x85": "a\u2028b\u2029"})
def test_what_is_written_is_read_back(value: Any) -> None:
    assert parse(write_yaml({"value": value})) == {"value": value}


def test_numbers_with_an_exponent_are_numbers() -> None:
    assert parse("[1e-6, 1.5E3, 5., -3, true, ~]") == [1e-6, 1500.0, 5.0, -3, True, None]


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['echo']",
        "a: 1\nb: 2\na: 3",
        "? [a]\n: 1",
        "[" * 5000,
        "a: [1",
        "a: 1\n---\nb: 2",
        "a: " + "9" * 5000,
        b"a: \xff",
    ],
)
def test_what_is_not_plain_is_one_message(text: str | bytes) -> None:
    with pytest.raises(GramLoopError) as told:
        parse(text)
    assert "run.yaml is not a file of settings: it is not valid YAML" in str(told.value)
    assert "\n" not in str(told.value)


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(GramLoopError, match=r"cannot read .*missing\.yaml"):
        read_yaml(tmp_path / "missing.yaml", WHAT)
