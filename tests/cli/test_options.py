"""``--config`` and ``--save-config``: a command's options in a file, and the same call again."""

from __future__ import annotations

import json
import tempfile
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given as with_examples
from hypothesis import settings
from hypothesis import strategies as st

from gramloop import GramLoopError
from gramloop.cli import COMMANDS, command_parser, main
from gramloop.cli.options import parse, save_settings
from gramloop.util.yaml_files import read_yaml, write_yaml


def given(command: str, words: list[str]) -> Any:
    """The options of a call, those of its groups in one namespace."""
    parser, wanted = command_parser(command)
    options, common = parse(parser, command, wanted.options, words)
    return SimpleNamespace(**flat(options), **flat(common))


def flat(options: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in fields(options):
        value = getattr(options, field.name)
        found |= flat(value) if is_dataclass(value) else {field.name: value}
    return found


def parsed(tmp_path: Path, command: str, text: str, *words: str, suffix: str = ".yaml") -> Any:
    path = tmp_path / f"run{suffix}"
    path.write_text(text)
    return given(command, ["--config", str(path), *words])


def test_values_have_the_types_that_options_have(tmp_path: Path) -> None:
    found = parsed(
        tmp_path,
        "evaluate",
        "out: out/run\nsuite: scenes-c\ncondition: [noise, fog]\nseverity: [1, 3]\nshort-side: 64\n"
        "truth-score: 1\ndiagnostics: true\nmodel: tiny\nengine: ray\n",
    )
    assert found.out == Path("out/run")
    assert (found.condition, found.severity, found.short_side) == (["noise", "fog"], [1, 3], 64)
    assert (found.truth_score, found.diagnostics, found.engine) == (1.0, True, "ray")
    assert (found.threads, found.pictures, found.images) == (1, 4, None), "defaults stay"


def test_json_is_read_too(tmp_path: Path) -> None:
    found = parsed(tmp_path, "scenes", '{"folder": "x", "count": 3}', suffix=".json")
    assert (found.folder, found.count, found.size) == (Path("x"), 3, 192)


def test_the_command_line_wins_option_by_option(tmp_path: Path) -> None:
    text = "out: a\nsuite: scenes-c\ncondition: [noise, fog]\nimages: 5\ndiagnostics: true\npartial: true\n"
    found = parsed(tmp_path, "evaluate", text, "--condition", "snow", "--out", "b", "--no-diagnostics")
    assert (found.out, found.condition) == (Path("b"), ["snow"]), "a list is replaced, not made longer"
    assert (found.images, found.diagnostics, found.partial) == (5, False, True)


def test_arguments_without_a_name_come_from_the_file_or_from_the_words(tmp_path: Path) -> None:
    text = "images: [a.jpg, b.jpg]\nout: out\nseverity: [1, 3]\nshift: fog\n"
    found = parsed(tmp_path, "diagnose", text)
    assert (found.images, found.severity) == (["a.jpg", "b.jpg"], [1, 3])
    assert parsed(tmp_path, "diagnose", text, "c.jpg").images == ["c.jpg"]
    text = "source: clean\ntarget: shifted\nsuite: mine-c\n"
    assert parsed(tmp_path, "corrupt", text).target == Path("shifted")
    assert parsed(tmp_path, "corrupt", text, "other").source == Path("other")


def test_one_value_of_a_repeatable_option_needs_no_list(tmp_path: Path) -> None:
    assert parsed(tmp_path, "evaluate", "out: a\ncondition: noise\n").condition == ["noise"]


def test_what_is_required_is_still_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(tmp_path, "tune", "out: a\n")
    assert ended.value.code == 2
    assert "--suite" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "text", "sentence"),
    [
        ("evaluate", "sute: scenes-c", "object contains unknown field `sute`"),
        ("evaluate", "command: tune\nsuite: x", "is for another command than gramloop evaluate"),
        ("evaluate", "severity: [1, two]", "severity[1]: expected `int`, got `str`"),
        ("evaluate", "images: 2.5", "images: expected `int`, got `float`"),
        ("evaluate", "images: [2]", "images: expected `int`, got `array`"),
        ("evaluate", "diagnostics: 1", "diagnostics: expected `bool`, got `int`"),
        ("evaluate", "suite: 3", "suite: expected `str`, got `int`"),
        ("evaluate", "engine: cloud", "engine: invalid enum value 'cloud'"),
        ("evaluate", "images:", "images: expected `int`, got `null`"),
        ("evaluate", "config: other.yaml", "unknown field `config`"),
        ("evaluate", "[1, 2]", "it holds no values by name"),
    ],
)
def test_what_is_wrong_is_told_with_its_path(tmp_path: Path, command: str, text: str, sentence: str) -> None:
    with pytest.raises(GramLoopError) as told:
        parsed(tmp_path, command, text)
    assert sentence in str(told.value)
    assert str(tmp_path / "run.yaml") in str(told.value)


KEYS = st.sampled_from(
    ["suite", "severity", "shift", "images", "diagnostics", "command", "method", "short-side", "x"]
)
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
)


@settings(deadline=None, max_examples=60)
@with_examples(
    st.dictionaries(KEYS, ANY, max_size=3).map(write_yaml).map(str.encode) | st.binary(max_size=40)
)
def test_any_file_is_taken_or_told(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.yaml"
        path.write_bytes(content)
        for command, words in (("evaluate", ["--out", "x"]), ("diagnose", ["a.jpg", "--out", "x"])):
            told = str(path)
            try:
                given(command, [*words, "--config", str(path)])
            except GramLoopError as error:
                told = str(error)
            assert str(path) in told
            assert "\n" not in told


def test_a_file_that_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "hosts", "--config", str(tmp_path / "missing.yaml")]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_every_command_takes_a_file_and_saves_one(tmp_path: Path) -> None:
    for name in COMMANDS:
        options = {text for action in command_parser(name)[0]._actions for text in action.option_strings}
        assert {"--config", "--save-config", "--quiet"} <= options, name


def test_a_saved_call_is_the_same_call(tmp_path: Path) -> None:
    words = [
        "--suite",
        "scenes-c",
        "--out",
        "a b",
        "--severity",
        "3",
        "--severity",
        "5",
        "--condition",
        "noise",
    ]
    words += ["--method", "baseline", "--method", "m:window=4-5,eps=1e-6", "--truth-score", "1e-3", "--whole"]
    words += ["--slurm", "slurm_partition=no", "--dry-run", "--quiet", "--origin", "auto"]
    parser, wanted = command_parser("evaluate")
    first, _ = parse(parser, "evaluate", wanted.options, words)
    path = tmp_path / "run.yaml"
    save_settings(path, "evaluate", first)
    stored = read_yaml(path, "it")
    assert stored["command"] == "evaluate"
    kept = {"dry-run", "quiet", "config", "save-config", "origin"}
    assert not kept & set(stored), "of one call, or the default"
    again, _ = parse(parser, "evaluate", wanted.options, ["--config", str(path)])
    assert again == replace(first, dry_run=False)


def test_a_target_that_cannot_be_written_is_told_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "scenes"
    assert main(["scenes", str(out), "--count", "1", "--save-config", str(tmp_path / "no" / "run.yaml")]) == 2
    assert "its folder does not exist" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_refused_call_saves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    assert (
        main(
            [
                "corrupt",
                str(tmp_path / "no"),
                str(tmp_path / "x"),
                "--suite",
                "a-c",
                "--save-config",
                str(path),
            ]
        )
        == 2
    )
    assert not path.exists()


def test_a_dry_run_can_be_saved_and_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "run.yaml", tmp_path / "out"
    words = ["evaluate", "--suite", "scenes-c", "--model", "tiny", "--condition", "fog", "--severity", "3"]
    words += ["--images", "2", "--workers", "1", "--method", "baseline", "--out", str(out)]
    assert main([*words, "--dry-run", "--save-config", str(path)]) == 0
    told = capsys.readouterr().out
    assert not out.exists()
    assert main(["evaluate", "--config", str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert f"plan {document['plan']}:" in told
    assert document["units"] == {"stored": 1, "missing": 0}
    assert main(["evaluate", "--config", str(path), "--images", "1", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"] != document["plan"], "the command line wins"
