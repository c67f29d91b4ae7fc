"""Every page says what it is for, then shows a command or a cell, which runs in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
BEGINNING = re.compile(
    r"\A# [^\n]+\n\n(?P<purpose>(?:(?!```)[^\n#][^\n]*\n)*)\n?```(?P<language>\w*)\n(?P<code>.*?)\n```\n",
    re.DOTALL,
)
SERVERS = ("app.md",)  # they run until they are stopped; tests/app starts and stops them
GIVEN = ("benchmarks", "docs", "examples", "src", "tools")  # of the clone, whose root a command is run in


def name_of(page: Path) -> str:
    return str(page.relative_to(DOCS))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_says_what_it_is_for_then_shows_code(page: Path) -> None:
    found = BEGINNING.search(page.read_text(encoding="utf-8"))
    assert found, "a title, one paragraph, then a block"
    assert page.parent.name == "reference" or 1 <= found["purpose"].count("\n") <= 5


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in SERVERS], ids=name_of)
def test_the_beginning_runs(page: Path, tmp_path: Path) -> None:
    found = BEGINNING.search(page.read_text(encoding="utf-8"))
    assert found is not None
    for folder in GIVEN:
        (tmp_path / folder).symlink_to(ROOT / folder)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-c"] if found["language"] == "python" else ["bash", "-ec"]
    done = subprocess.run(
        [*command, found["code"]], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
