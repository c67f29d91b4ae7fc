"""A terminal of 80 columns is wide enough for what commands print; paths and addresses are not broken."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from gramloop.cli import COMMANDS, main

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
    "export --show exported.onnx",
]


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def too_long(text: str) -> list[str]:
    """Lines over 80 columns that would be so without their paths and addresses too."""
    return [line for line in text.splitlines() if len(re.sub(r"\S*/\S*|\S{60,}", "", line)) > 80]


@pytest.mark.parametrize("words", [[], ["--help"], *([name, "--help"] for name in COMMANDS)], ids=" ".join)
def test_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    if words:
        with pytest.raises(SystemExit):
            main(words)
    else:
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
