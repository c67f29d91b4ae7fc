"""What the README and docs show works as it stands there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from gramloop.cli import COMMANDS, command_parser
from gramloop.data import scene

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
NEW = re.compile(r"^(?:\.venv/bin/)?gramloop (.*)$")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def commands_of(page: Path) -> list[list[str]]:
    """The arguments of every gramloop command in the page's blocks; one that is cut short by an ellipsis is none."""
    found = []
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    for block in (text for language, text in blocks if language in ("", "sh", "bash", "console")):
        for line in block.replace("\\\n", " ").splitlines():
            command = NEW.match(line.strip())
            if command and "…" not in line:
                found.append(shlex.split(re.split(r" (?:&&|[|>]) ", command[1])[0], comments=True))
    return found


def test_the_readmes_python_runs_from_top_to_bottom(tmp_path: Path) -> None:
    """As a newcomer runs it: a fresh interpreter that has nothing of the tests on its path."""
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 2
    program = tmp_path / "readme.py"
    program.write_text("\n".join([*blocks, "print(features.shape)"]))
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-P", "-s", program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "torch.Size([1, 197, 384])" in done.stdout


def test_the_readme_is_read_in_five_minutes() -> None:
    assert len(README.splitlines()) <= 120


def test_the_readme_names_every_command() -> None:
    assert set(re.findall(r"`gramloop (\w+)", README)) >= set(COMMANDS)


@pytest.mark.slow
def test_a_strangers_path_over_own_photographs(tmp_path: Path) -> None:
    """The README's commands between ``make demo`` and the page, on a folder called photos, as they stand there."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for number in range(2):
        Image.fromarray(scene(number, 96, "val").image).save(tmp_path / "photos" / f"{number}.jpg")
    path = [each for each in commands_of(ROOT / "README.md") if each[0] in ("evaluate", "report")]
    assert [each[0] for each in path] == ["evaluate", "report"]
    for arguments in path:
        done = subprocess.run(
            [Path(sys.executable).parent / "gramloop", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "report" / "index.html").exists()


@pytest.mark.parametrize("page", [page for page in PAGES if commands_of(page)], ids=name_of)
def test_commands_are_understood(page: Path) -> None:
    for name, *options in commands_of(page):
        if "--help" in options or any(
            each.startswith("@") for each in options
        ):  # it ends at once, or needs its file
            assert name in COMMANDS
        elif name in COMMANDS:  # the others begin with two hyphens
            parsed = command_parser(name)[0].parse_args(options)
            assert parsed is not None, f"gramloop {name} {shlex.join(options)}"
        else:
            assert name in ("--help", "--version")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_and_pictures_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_are_named_exist(page: Path) -> None:
    for name in re.findall(r"\b(?:benchmarks|docs|tests|tools)/[\w/-]+\.\w+", page.read_text()):
        assert (ROOT / name).exists(), f"{page.name} names {name}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_lines_are_wrapped(page: Path) -> None:
    """Tables cannot be broken."""
    long = [line for line in page.read_text().splitlines() if len(line) > 120 and not line.startswith("|")]
    assert not long
