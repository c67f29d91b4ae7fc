"""Terminals without UTF-8, python -OO, few open files, little memory and a full disk: a message, never a traceback."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from small_stores import make_plan, write_store

COMMAND = "import sys; from gramloop.cli import main; sys.exit(main(sys.argv[1:]))"
PHOTO = Path(__file__).parents[2] / "docs" / "images" / "photo.jpg"
TERMINALS = {
    "ascii": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "latin-1": {"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"},
}


def gramloop(
    words: Sequence[object],
    flags: Sequence[str] = (),
    limit: Callable[[], None] | None = None,
    **environment: str,
) -> subprocess.CompletedProcess[bytes]:
    done = subprocess.run(
        [sys.executable, *flags, "-c", COMMAND, *map(str, words)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        preexec_fn=limit,
        capture_output=True,
        timeout=200,
    )
    assert b"Traceback" not in done.stderr, done.stderr.decode(errors="replace")
    return done


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store") / "run"
    write_store(folder, make_plan())
    return folder


@pytest.mark.parametrize(
    "command",
    [
        "report",
        pytest.param("diagnose", marks=pytest.mark.slow),
        pytest.param("export", marks=pytest.mark.slow),
        pytest.param("tune", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("encoding", TERMINALS)
def test_a_terminal_without_utf8(store: Path, tmp_path: Path, command: str, encoding: str) -> None:
    words = {
        "report": ["report", store, "--out", tmp_path / "out"],
        "diagnose": ["diagnose", PHOTO, "--short-side", "96", "--out", tmp_path / "out"],
        "export": ["export", "--method", "gramloop", "--out", tmp_path / "out.pt2"],
        "tune": [
            "tune",
            "--suite",
            "scenes-c",
            "--budget",
            "600",
            "--workers",
            "1",
            "--out",
            tmp_path / "out",
        ],
    }[command]
    done = gramloop(words, **TERMINALS[encoding])
    assert done.returncode == 0, done.stderr.decode(encoding)
    assert "â" not in (done.stdout + done.stderr).decode(encoding), "UTF-8 on a terminal that has none"


def test_python_without_docstrings_is_refused() -> None:
    done = gramloop(["list", "models"], ["-OO"])
    assert done.returncode == 2
    assert b"python -OO removes docstrings" in done.stderr


@pytest.mark.slow
def test_few_open_files(tmp_path: Path) -> None:
    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))

    words = ["evaluate", "--suite", "scenes-c", "--images", "2", "--severity", "3", "--condition", "fog"]
    done = gramloop([*words, "--workers", "2", "--out", tmp_path / "out"], limit=few)
    assert done.returncode in (0, 2)
    assert done.returncode == 2 or (tmp_path / "out" / "results.csv").is_file()


def test_a_report_that_runs_out_of_memory_ends(store: Path, tmp_path: Path) -> None:
    def little() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (1_200_000_000, 1_200_000_000))

    assert gramloop(["report", store, "--out", tmp_path / "out"], limit=little).returncode != 0


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small disk")
@pytest.mark.parametrize("name", ["model.pt2", "model.onnx", "tuned"])
def test_a_full_disk(tmp_path: Path, name: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", disk], check=False).returncode:
        pytest.skip("a disk cannot be mounted here")
    try:
        words = ["tune", "--suite", "scenes-c", "--budget", "600", "--workers", "1"]
        if name != "tuned":
            words = ["export", "--method", "gramloop"]
        done = gramloop([*words, "--out", disk / name])
        assert done.returncode == 2
        assert b"No space left on device" in done.stderr
        assert not (disk / name).is_file()
    finally:
        subprocess.run(["umount", disk], check=True)
