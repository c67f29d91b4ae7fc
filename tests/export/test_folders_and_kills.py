"""A folder of transformers as a file, and what a killed export leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import gramloop
from dense_folders import save_model
from exported import read_export
from gramloop.tasks.loading import open_model


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["onnx", "pt2"])
def test_a_transformers_folder(tmp_path: Path, kind: str) -> None:
    folder = save_model("Segformer", tmp_path / "saved")
    out = gramloop.export(f"hf:{folder}", tmp_path / f"x.{kind}", height=64, width=96)
    assert out.about.model == "saved"
    assert out.about.task == "semantic"
    pixels = torch.randn(1, 3, 64, 96, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = open_model(f"hf:{folder}").model(pixels).logits.numpy()
    found = read_export(out.path)(pixels.numpy())["logits"]
    # float32 sums in another order; logits have a scale of 1
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_a_killed_export_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.onnx"
    path.write_bytes(b"an older file")
    program = f"import gramloop; gramloop.export('tiny', {str(path)!r}, task='depth', height=64, width=64)"
    with subprocess.Popen([sys.executable, "-c", program], start_new_session=True) as process:
        limit = time.monotonic() + 300
        while not list(tmp_path.glob(".gramloop-*")):  # the writing has begun
            assert process.poll() is None, "it ended before it could be killed"
            assert time.monotonic() < limit
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert path.read_bytes() == b"an older file"
