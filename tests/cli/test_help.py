"""Help and the reference page: every command in one group, examples that can be typed, 80 columns, and no torch."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gramloop.cli import COMMANDS, GROUPS, command_parser, main
from gramloop.cli.options import parse
from gramloop.data.suites import SHIFT_GROUPS

Said = pytest.CaptureFixture[str]


def parsed(name: str, words: list[str]) -> Any:
    parser, wanted = command_parser(name)
    return parse(parser, wanted.options, words)[0]


def test_every_command_is_in_one_group() -> None:
    assert sum(map(len, GROUPS.values())) == len(COMMANDS)


@pytest.mark.parametrize("words", [[], ["--help"]])
def test_the_list(capsys: Said, words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
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
        parsed(name, words[2:])


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_does(name: str) -> None:
    silent = [action.dest for action in command_parser(name)[0]._actions if not action.help]
    assert silent == []


def test_typos(capsys: Said) -> None:
    assert main(["evalute"]) == 2
    assert "there is no command 'evalute'; did you mean evaluate? gramloop --help" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", "--conditon", "fog"])  # before it says what else is missing
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
    from gramloop.tasks.released import DetectConfig, QueryConfig
    from gramloop.tasks.semantic import SegmentConfig

    said = shown_default("evaluate", "--short-side")
    assert f"{SegmentConfig.short_side} to segment" in said
    assert f"{DetectConfig.short_side} to detect" in said
    assert f"{DptDepthConfig.short_side} to Meta's depth head" in said
    assert f"({SegmentConfig.crop})" in shown_default("evaluate", "--crop")
    assert f"({SegmentConfig.stride})" in shown_default("evaluate", "--stride")
    assert f"({QueryConfig.side})" in shown_default("evaluate", "--side")


def test_defaults_in_help_are_those_of_the_settings() -> None:
    from gramloop.data.scenes import COUNT
    from gramloop.evaluate.plan import PICTURES, TRUTH_SCORE, DataSource
    from gramloop.evaluate.planning import SHARD, Request

    found = parsed("evaluate", ["--out", "x"])
    data = found.data
    assert (data.split, data.origin, data.encoding) == (
        *(DataSource.split, DataSource.origin, DataSource.encoding),
    )
    assert (found.stored.pictures, Request.pictures) == (PICTURES, PICTURES)
    assert f"of {SHARD} images" in shown_default("evaluate", "--shards")
    assert f"({COUNT})" in shown_default("evaluate", "--images")
    assert f"({TRUTH_SCORE:g})" in shown_default("evaluate", "--truth-score")
    assert f"({PICTURES})" in shown_default("evaluate", "--pictures")


def test_a_typo_gets_the_nearest_name(capsys: Said) -> None:
    assert main(["predict", "x.jpg", "--task", "semantc", "--out", "x"]) == 2
    assert "did you mean semantic?" in capsys.readouterr().err


LISTS = ("models", "suites", "shifts", "methods", "hosts")
SMALL = "--suite scenes-c --condition fog --condition impulse_noise --severity 3 --workers 1"
RUNS = [
    f"evaluate {SMALL} --images 2 --method baseline --method gramloop --method denoise --out out",
    "evaluate --out out --status",
    f"evaluate {SMALL} --images 2 --dry-run --out other",
    "report out --no-pdf --out page",
    'compare out out --gate "shift -1.0" --out compared',
    "reproduce --dry-run --out paper",
    "reproduce mini --status --out mini",
    "scenes drawn --count 8",
    "corrupt drawn shifted --suite my-c --task semantic --condition fog",
    "diagnose drawn/images/validation/*0.png --shift fog --out diagnosed",
    "export --model tiny --task semantic --out exported.onnx",
]


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def too_long(text: str) -> list[str]:
    """Lines over 80 columns that would be so without their paths and addresses too."""
    return [line for line in text.splitlines() if len(re.sub(r"\S*/\S*|\S{60,}", "", line)) > 80]


@pytest.mark.parametrize("words", [[], ["--help"], *([name, "--help"] for name in COMMANDS)], ids=" ".join)
def test_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(words)
    assert too_long(capsys.readouterr().out) == []


@pytest.mark.parametrize("what", LISTS)
def test_lists(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", what]) == 0
    assert too_long(capsys.readouterr().out) == []


@pytest.mark.slow
def test_small_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    wide = {}
    for line in RUNS:
        assert main(shlex.split(line)) == 0, line
        wide[line] = too_long(capsys.readouterr().out)
    assert [each for lines in wide.values() for each in lines] == []


@pytest.mark.slow
def test_tune(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = f"tune {SMALL} --images 16 --budget 200 --mitigation denoise median flip --out {tmp_path / 'out'}"
    assert main(shlex.split(words)) == 0
    assert too_long(capsys.readouterr().out) == []


ROOT = Path(__file__).parents[2]
DATA = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    path = ROOT / "tools" / "cli_reference.py"
    found = importlib.util.spec_from_file_location("cli_reference", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_the_reference_names_every_command_and_option(reference: ModuleType) -> None:
    text = reference.page()
    for name in COMMANDS:
        part = text.partition(f"### gramloop {name}\n")[2].partition("\n### ")[0]
        for action in command_parser(name)[0]._actions:
            assert (
                action.dest == "help" or not action.option_strings or f"`{action.option_strings[-1]}" in part
            )


def test_the_pages_groups_are_those_that_there_are() -> None:
    for place, kind in enumerate("cp", start=1):
        rows = [line.split("|")[1:-1] for line in DATA.splitlines() if line.startswith("| `")]
        listed = {
            cells[0].strip(" `"): [name.strip() for name in cells[place].split(",")]
            for cells in rows
            if len(cells) == 3
        }
        for name, members in SHIFT_GROUPS[kind].items():
            if name not in ("common", "validation", "all"):
                assert listed[name] == list(members)
