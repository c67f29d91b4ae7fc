"""Help: every command in one group, examples that can be typed, defaults that are those of the settings, and no torch."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from typing import Any

import pytest

from gramloop.cli import COMMANDS, GROUPS, command_parser, main
from gramloop.cli.options import parse

Said = pytest.CaptureFixture[str]


def parsed(name: str, words: list[str]) -> Any:
    parser, wanted = command_parser(name)
    return parse(parser, name, wanted.options, words)[0]


def test_every_command_is_in_one_group() -> None:
    assert sum(map(len, GROUPS.values())) == len(COMMANDS)


def test_the_overview_and_the_list(capsys: Said) -> None:
    assert main([]) == 0
    overview = capsys.readouterr().out
    assert len(overview.splitlines()) < 12
    for line in re.findall(r"^  gramloop .*", overview, re.MULTILINE):
        words = shlex.split(re.split(r"  +", line.strip())[0])
        parsed(words[1], words[2:])
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    listed = capsys.readouterr().out
    places = [listed.index(f"\n  {name} ") for names in GROUPS.values() for name in names if name in COMMANDS]
    assert places == sorted(places), "in the order of a task"


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_can_be_typed(name: str) -> None:
    parser, _ = command_parser(name)
    _, _, lines = (parser.epilog or "").partition("Examples:\n")
    assert lines, f"gramloop {name} --help shows no example"
    for line in lines.replace("\\\n", "").splitlines():
        words = shlex.split(line.partition(" > ")[0])
        assert words[:2] == ["gramloop", name]
        if "--config" not in words:
            parsed(name, words[2:])


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_does(name: str) -> None:
    silent = [action.dest for action in command_parser(name)[0]._actions if not action.help]
    assert silent == []


def test_slips_of_the_pen(capsys: Said) -> None:
    assert main(["evalute"]) == 2
    assert "there is no command 'evalute'; did you mean evaluate? gramloop --help" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", "--out", "x", "--conditon", "fog"])
    assert ended.value.code == 2
    assert "there is no option --conditon; did you mean --condition? gramloop" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", "--out", "x", "--engine", "cloud"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1, "a sentence, and no page of usage"


def test_help_does_not_import_what_it_does_not_need() -> None:
    code = (
        "import sys; from gramloop.cli import COMMANDS, command_parser\n"
        "for name in COMMANDS: command_parser(name)[0].format_help()\n"
        "print([name for name in ('torch', 'numpy', 'yaml', 'msgspec', 'rich', 'gradio') if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"


def shown_default(command: str, option: str) -> str:
    parser, _ = command_parser(command)
    [action] = [action for action in parser._actions if option in action.option_strings]
    return str(action.help)


def test_sizes_in_help_are_those_of_the_settings() -> None:
    from gramloop.tasks.depth import DptDepthConfig
    from gramloop.tasks.detectors import DetectConfig
    from gramloop.tasks.mask_segmenters import PaddedConfig
    from gramloop.tasks.semantic import SegmentConfig

    said = shown_default("evaluate", "--short-side")
    assert f"{SegmentConfig.short_side} to segment" in said
    assert f"{DetectConfig.short_side} to detect" in said
    assert f"{DptDepthConfig.short_side} to Meta's depth head" in said
    assert f"({SegmentConfig.crop})" in shown_default("evaluate", "--crop")
    assert f"({SegmentConfig.stride})" in shown_default("evaluate", "--stride")
    assert f"({PaddedConfig.side})" in shown_default("evaluate", "--side")


def test_defaults_of_evaluate_are_those_of_a_request() -> None:
    from gramloop.data.scenes.files import COUNT
    from gramloop.evaluate.plan import DataSource
    from gramloop.evaluate.planning import SHARD, Request

    found = parsed("evaluate", ["--out", "x"])
    assert (found.work.threads, found.stored.pictures, found.stored.diagnostics) == (
        *(Request.threads, Request.pictures, Request.diagnostics),
    )
    data = found.data
    assert (data.split, data.origin, data.format) == (
        *(DataSource.split, DataSource.origin, DataSource.encoding),
    )
    assert f"of {SHARD} images" in shown_default("evaluate", "--shards")
    assert f"({COUNT})" in shown_default("evaluate", "--images")
    assert f"({Request.truth_score:g})" in shown_default("evaluate", "--truth-score")
    assert f"({Request.pictures})" in shown_default("evaluate", "--pictures")


def test_defaults_of_tune_are_those_of_its_options() -> None:
    from dataclasses import fields

    from gramloop.tune import SearchOptions as Options

    choice = parsed("tune", ["--out", "x", "--suite", "scenes-c"]).choice
    for field in fields(Options):
        if hasattr(choice, field.name):
            assert getattr(choice, field.name) == field.default, field.name


def test_a_typo_gets_the_nearest_name(capsys: Said) -> None:
    assert main(["predict", "x.jpg", "--task", "semantc", "--out", "x"]) == 2
    assert "did you mean semantic?" in capsys.readouterr().err
