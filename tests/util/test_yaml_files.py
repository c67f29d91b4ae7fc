"""YAML from outside: plain values alone."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from gramloop import GramLoopError
from gramloop.util.json_files import read_yaml

WHAT = "a file of settings"


def parse(text: str | bytes) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.yaml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return read_yaml(path, WHAT)


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
