"""A recipe of two small evaluations, from nothing to its page; killed in between and resumed, it gives the same bytes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

RECIPE = """
title: A small recipe
models: {segmenter: {task: semantic, model: tiny, depth: 12}}
data: {scenes: {scenes: 3}}
evaluations:
  shifted:
    suite: scenes-c
    data: scenes
    model: segmenter
    methods: [baseline, gramloop]
    conditions: [fog, contrast, gaussian_noise]
    severities: [3]
outputs:
  families: {layout: families, title: By corruption, evaluation: shifted, method: gramloop}
"""


def reproduce(folder: Path) -> subprocess.Popen[bytes]:
    (folder / "recipe.yaml").write_text(RECIPE)
    code = "import sys; from gramloop.cli import main; sys.exit(main(sys.argv[1:]))"
    words = ["reproduce", "recipe.yaml", "--workers", "1", "--out", "out", "--quiet"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-c", code, *words], cwd=folder, env=environment)


@pytest.mark.slow
def test_killed_and_resumed_it_gives_the_same_tables(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    assert reproduce(whole).wait() == 0
    for stored in (1, 2):
        process = reproduce(killed)
        while process.poll() is None and len(list(killed.glob("out/shifted/units/**/*.parquet"))) < stored:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert reproduce(killed).wait() == 0
    tables = sorted((whole / "out" / "report" / "tables").glob("*.csv"))
    assert tables
    for path in [*tables, whole / "out" / "shifted" / "results.csv"]:
        assert path.read_bytes() == (killed / path.relative_to(whole)).read_bytes()
