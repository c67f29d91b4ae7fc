"""The paper's own recipe on a miniature of its files: every table and figure comes out, and a kill changes no byte."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from gramloop.cli import main
from miniature_world import DOMAINS, small_recipe, write_sets, write_weights

TABLES = {
    "main",
    "intervals",
    "partitions",
    "placement",
    "compute",
    "corruptions",
    "perturbations",
    "classes",
}
FIGURES = {"severity", "consistency", "diagnostic", "diagnostic-last", "examples", "qualitative"}
CODE = "import sys; from gramloop.cli import main; sys.exit(main(sys.argv[1:]))"


def write_world(
    folder: Path, blocks: int, images: int, severities: Sequence[int], domains: Sequence[str] = DOMAINS
) -> Path:
    write_weights(folder / "weights", blocks)
    write_sets(folder / "data", ("impulse", "fog"), images)
    recipe = small_recipe(("fog", "impulse_noise"), ("impulse", "fog"), severities, domains, images)
    recipe["outputs"]["partitions"]["lists"] = [
        "first.txt",
        "second.txt",
    ]  # too few images to divide by a hash
    for number, name in enumerate(recipe["outputs"]["partitions"]["lists"], start=1):
        (folder / name).write_text(f"ADE_val_{number:08d}\n")
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    return folder


def begin(world: Path, out: str, *words: str) -> subprocess.Popen[bytes]:
    files = ["--weights", "weights", "--data", "data", "--out", out, "--device", "cpu"]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CODE, "reproduce", "recipe.yaml", *files, *words]
    return subprocess.Popen(command, cwd=world, env=variables)


def kill(process: subprocess.Popen[bytes], out: Path, stored: int) -> None:
    """Kill a run once so many units are stored."""
    while process.poll() is None and len(list(out.glob("*/units/**/*.parquet"))) < stored:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def made(world: Path, out: str) -> dict[str, bytes]:
    """Tables and figures; measured times differ from run to run, so that their table is compared elsewhere."""
    folder = world / out
    paths = [*folder.glob("report/*/*.*"), *folder.glob("*/results.csv")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths if path.stem != "compute"}


def check_whole(world: Path, out: str) -> None:
    assert {path.stem for path in (world / out / "report/tables").glob("*.csv")} >= TABLES
    assert {path.stem for path in (world / out / "report/figures").glob("*.png")} == FIGURES
    for name in TABLES - {"compute"}:
        rows = (world / out / f"report/tables/{name}.csv").read_text().splitlines()
        assert len(rows) > 1
        assert not any(",," in row for row in rows if name == "partitions")


@pytest.mark.slow
def test_every_table_and_figure_comes_out_and_a_kill_changes_no_byte(tmp_path: Path) -> None:
    world = write_world(tmp_path, blocks=40, images=2, severities=(3, 5))
    assert begin(world, "whole").wait() == 0
    check_whole(world, "whole")
    for stored in (5, 25):
        kill(begin(world, "killed"), world / "killed", stored)
    assert begin(world, "killed").wait() == 0
    assert made(world, "killed") == made(world, "whole")


def test_a_smaller_world_in_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with fewer blocks, images and conditions; only the killed runs are processes of their own."""
    world = write_world(tmp_path, blocks=8, images=1, severities=(3,), domains=("handmake", "sketch"))
    monkeypatch.chdir(world)
    words = ["reproduce", "recipe.yaml", "--weights", "weights", "--data", "data", "--workers", "1"]
    assert main([*words, "--out", "whole", "--device", "cpu"]) == 0
    check_whole(world, "whole")
    for stored in (3, 12):
        kill(begin(world, "killed", "--workers", "1"), world / "killed", stored)
    assert not (world / "killed/report").exists()
    assert main([*words, "--out", "killed", "--device", "cpu"]) == 0
    assert made(world, "killed") == made(world, "whole")
