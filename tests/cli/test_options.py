"""Options of a call: from words, and from a file as ``@FILE``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gramloop.cli import command_parser, main
from gramloop.cli.options import parse
from gramloop.evaluate.options import EvaluateOptions
from gramloop.util.options import all_settings, flat_values, from_keywords

EVALUATE = ["evaluate", "--suite", "scenes-c", "--severity", "3", "--method", "baseline", "--workers", "1"]


def test_values_have_the_types_that_options_have() -> None:
    parser, wanted = command_parser("evaluate")
    words = ["--out", "a b", "--condition", "noise", "--condition", "fog", "--severity", "3", "--whole"]
    words += ["--truth-score", "1e-3", "--engine", "ray"]
    options, common = parse(parser, wanted.options, words)
    found = flat_values(options)
    assert found["out"] == Path("a b")
    assert (found["conditions"], found["severities"], found["whole"]) == (["noise", "fog"], [3], True)
    assert (found["truth_score"], found["diagnostics"], found["engine"]) == (1e-3, False, "ray")
    assert (found["threads"], found["pictures"], found["images"]) == (1, 4, None), "defaults stay"
    assert not common.json


def test_keywords_are_the_same_options() -> None:
    """A call from Python gives the dataclass that the words give."""
    parser, wanted = command_parser("evaluate")
    words = ["--out", "a", "--condition", "noise", "--short-side", "64", "--slurm", "partition=no"]
    typed = flat_values(parse(parser, wanted.options, words)[0])
    made = from_keywords(
        EvaluateOptions, {"out": "a", "conditions": ["noise"], "short_side": 64, "slurm": ["partition=no"]}
    )
    assert flat_values(made).items() <= typed.items()
    assert len({each.field for each in all_settings(EvaluateOptions)}) == len(flat_values(made))


def test_a_file_holds_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "run.txt", tmp_path / "an out"
    path.write_text(f"# two scenes\n--images 2 --condition fog\n--out '{out}'\n")
    assert main([*EVALUATE, f"@{path}", "--dry-run"]) == 0
    assert "1 conditions, 1 units, 2 images" in capsys.readouterr().out
    assert not out.exists()
    assert main([*EVALUATE, f"@{path}", "--images", "1", "--json"]) == 0, "the last one wins"
    document = json.loads(capsys.readouterr().out)
    assert list(document["scores"]) == ["fog/3"]
    [start] = json.loads((out / "manifest.json").read_text())["starts"]
    assert start["command"].startswith("gramloop evaluate --suite scenes-c --severity 3")
    assert start["command"].endswith(f"--out '{out}' --images 1 --json"), "without the file"
    assert main([*EVALUATE, f"@{tmp_path / 'none'}"]) == 2
    assert "cannot read options from" in capsys.readouterr().err
