"""The paper's own recipe on a miniature of its files: every table and figure comes out, and a kill changes no byte."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from miniature_world import small_recipe, write_sets, write_weights

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


def write_world(folder: Path) -> Path:
    write_weights(folder / "weights")
    write_sets(folder / "data", ("impulse", "fog"))
    recipe = small_recipe(("fog", "impulse_noise"), ("impulse", "fog"))
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    return folder


def begin(world: Path, out: str, *words: str, **environment: str) -> subprocess.Popen[bytes]:
    files = ["--weights", "weights", "--data", "data", "--out", out, "--device", "cpu"]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, "-c", CODE, "reproduce", "recipe.yaml", *files, *words]
    return subprocess.Popen(command, cwd=world, env=variables)


def made(world: Path, out: str) -> dict[str, bytes]:
    """Tables and figures; measured times differ from run to run, so that their table is compared elsewhere."""
    folder = world / out
    paths = [*folder.glob("report/*/*.*"), *folder.glob("*/results.csv")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths if path.stem != "compute"}


@pytest.mark.slow
def test_every_table_and_figure_comes_out_and_a_kill_changes_no_byte(tmp_path: Path) -> None:
    world = write_world(tmp_path)
    assert begin(world, "whole").wait() == 0
    assert {path.stem for path in (world / "whole/report/tables").glob("*.csv")} >= TABLES
    assert {path.stem for path in (world / "whole/report/figures").glob("*.png")} == FIGURES
    for stored in (5, 25):
        process = begin(world, "killed")
        while process.poll() is None and len(list(world.glob("killed/*/units/**/*.parquet"))) < stored:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert begin(world, "killed").wait() == 0
    assert made(world, "killed") == made(world, "whole")
