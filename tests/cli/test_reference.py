"""The site's page of all commands names what there is, and so do the pages about the command line and the data."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from gramloop.cli import COMMANDS, command_parser
from gramloop.cli.options import parse
from gramloop.cli.output import ENVELOPE
from gramloop.data.suites import SHIFT_GROUPS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "appendix" / "command-line.md").read_text(encoding="utf-8")
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


def test_the_pages_file_can_be_run(tmp_path: Path) -> None:
    [text] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    path = tmp_path / "run.yaml"
    path.write_text(text)
    parser, wanted = command_parser("evaluate")
    found, _ = parse(parser, "evaluate", wanted.options, ["--config", str(path)])
    assert (found.data.condition, found.model.short_side) == (["noise", "fog"], 192)


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


def test_the_page_names_the_keys_of_every_document() -> None:
    assert all(f"`{key}`" in PAGE for key in ENVELOPE)
