"""``gramloop evaluate`` as a process, with a model that takes as long as a test wants."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from small_runs import write_scene_set

MODEL = """
import os, time
import numpy as np
from gramloop.data.scenes import STUFF, THINGS

def make():
    def predict(image):
        if "SLURM_JOB_ID" in os.environ or "RAY_RAYLET_PID" in os.environ:
            time.sleep(float(os.environ.get("SECONDS_PER_IMAGE", "0")))
        return np.full(image.shape[:2], int(image.mean()) % 15, np.int32)
    predict.task = "semantic"
    predict.classes = [*STUFF, *THINGS]
    return predict
"""
IMAGES = 12
COMMAND = "import sys; from gramloop.cli import main; sys.exit(main(sys.argv[1:]))"


def write_given(folder: Path) -> Path:
    """A set of images and a model."""
    write_scene_set(folder / "set", IMAGES)
    (folder / "model.py").write_text(MODEL)
    return folder


class Command:
    """``gramloop evaluate`` as a process."""

    def __init__(
        self,
        folder: Path,
        out: Path,
        *words: str,
        slurm: Path | None = None,
        pause: float = 0,
        log: str = "",
    ):
        self.out, self._log = out, out.with_name(f"{log or out.name}.log")
        arguments = ["evaluate", "--suite", "mine-c", "--data", str(folder / "set"), "--severity", "3"]
        arguments += [
            "--condition",
            "fog",
            "--condition",
            "contrast",
            "--shards",
            str(IMAGES),
            "--out",
            str(out),
        ]
        arguments += ["--model", f"{folder / 'model.py'}:make"]
        arguments += ["--engine", "slurm"] if slurm else []
        environment = {**os.environ, "SECONDS_PER_IMAGE": str(pause)}
        if slurm:
            environment["SLURM_CONF"] = str(slurm)
        with self._log.open("w") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-c", COMMAND, *arguments, *words],
                env=environment, stdout=stream, stderr=stream,
            )  # fmt: skip

    def end(self, seconds: float = 240) -> tuple[int, str]:
        """Exit code and what was printed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        if self.process.poll() is None:
            self.process.kill()
            pytest.fail(f"it did not end: {self.said}")
        print(f"exit {self.process.returncode}\n{self.said}")
        assert "Traceback" not in self.said or "in predict" in self.said  # of the model's own code
        return self.process.returncode, self.said

    @property
    def results(self) -> bytes:
        return (self.out / "results.csv").read_bytes()

    @property
    def said(self) -> str:
        return " ".join(self._log.read_text().split())

    @property
    def stored(self) -> int:
        return len(list(self.out.glob("units/*/*/*.parquet")))

    def until(self, done: Callable[[], bool], seconds: float = 180) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.2)
