"""Every example that ``--help`` shows is typed, in a folder that holds the photographs and models that it names."""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from transformers import DINOv3ViTConfig, DINOv3ViTModel

from dense_folders import save_model
from gramloop.cli import COMMANDS, find_command, main
from gramloop.data import scene
from small_sets import coco_content, write_coco

FIRST = ("scenes", "calibrate", "export", "evaluate", "tune")  # whose files the others read
MISUSE = {
    "reproduce --weights": "files and folders are missing",
    "check --device cuda:1": "is not on this machine",
}
MINUTES = (
    "tune",
    "predict photos --method out/tune",
    "demo",
    "check",
    "reproduce mini",
)  # their own tests run smaller ones
SERVES = "app"  # until it is stopped: tests/app starts it


def examples() -> list[str]:
    names = [*FIRST, *(name for name in COMMANDS if name not in FIRST)]
    return [line.removeprefix("gramloop ") for name in names for line in find_command(name).examples]


def write_world(root: Path) -> None:
    (root / "photos").mkdir()
    for number in range(12):
        Image.fromarray(scene(number, 96, "val").image).save(root / "photos" / f"{number}.jpg")
    for name in ("photo.jpg", "street.jpg"):
        shutil.copy(root / "photos" / "0.jpg", root / name)
    save_model("DPT", root / "FOLDER")
    DINOv3ViTModel(
        DINOv3ViTConfig(
            hidden_size=32,
            num_hidden_layers=6,
            num_attention_heads=2,
            intermediate_size=64,
            num_register_tokens=4,
        )
    ).save_pretrained(root / "BACKBONE")
    write_coco(root / "coco", coco_content(3))


def prepare(root: Path, line: str) -> None:
    """What an earlier example made, under the name that this one reads."""
    if line.startswith("compare old.onnx"):
        for name in ("old.onnx", "new.onnx"):
            shutil.copy(root / "replayed.onnx", root / name)
    if line.startswith("compare out/old") and (root / "out" / "first").exists():
        for name in ("old", "new"):
            shutil.copytree(root / "out" / "first", root / "out" / name)


@pytest.mark.parametrize(
    "minutes", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["quick", "minutes"]
)
def test_every_example_runs(
    minutes: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    record_property: Callable[[str, object], None],
) -> None:
    write_world(tmp_path)
    monkeypatch.chdir(tmp_path)
    wrong = []
    for line in examples():
        takes_minutes = line.startswith(MINUTES) and not line.startswith(tuple(MISUSE))
        if line.startswith(SERVES) or takes_minutes is not minutes:
            continue
        prepare(tmp_path, line)
        begun = time.monotonic()
        code = main(shlex.split(line.partition(" > ")[0]))
        err = capfd.readouterr().err
        record_property("example", f"exit {code}, {time.monotonic() - begun:5.1f} s: gramloop {line}")
        reason = next((words for begin, words in MISUSE.items() if line.startswith(begin)), None)
        if code != (2 if reason else 0) or (reason and reason not in err):
            wrong.append(f"exit {code}: gramloop {line}\n{err[-1000:]}")
    assert not wrong, "\n".join(wrong)
