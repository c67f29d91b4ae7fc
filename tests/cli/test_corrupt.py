"""The corrupt command: killed at random, resumed, and used wrongly."""

import contextlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from multiprocessing.process import BaseProcess as Process
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gramloop.cli import main
from gramloop.data import scene
from gramloop.data.opening import ReadOptions, open_suite


def write_set(root: Path, count: int, side: int = 64) -> Path:
    """Coloured noise with one rectangle each, in COCO's layout."""
    (root / "val").mkdir(parents=True)
    (root / "annotations").mkdir()
    rng = np.random.default_rng(0)
    images, annotations = [], []
    for number in range(count):
        name = f"{number:05d}.png"
        Image.fromarray(rng.integers(0, 256, (side, side, 3)).astype(np.uint8)).save(root / "val" / name)
        images.append({"id": number, "file_name": name, "height": side, "width": side})
        annotations.append({"id": number + 1, "image_id": number, "category_id": 1, "bbox": [20, 20, 20, 20]})
    content = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "box"}]}
    (root / "annotations/instances_val.json").write_text(json.dumps(content))
    return root


def images_in(folder: Path) -> int:
    return sum(1 for _ in folder.glob("*/*/val/*.png"))


def children(process: int) -> list[int]:
    try:
        text = Path(f"/proc/{process}/task/{process}/children").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return []
    return [int(word) for word in text.split()]


def call(arguments: list[str]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background may ignore it
    sys.exit(main(["corrupt", *arguments]))


def start(arguments: list[str]) -> Process:
    """The command in a process of its own, from a server that has imported the package already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["gramloop.cli", "gramloop.data.writing"])
    process = context.Process(target=call, args=(arguments,))
    process.start()
    return process


def signal_after(process: Process, number: signal.Signals, target: Path, images: int) -> None:
    """Send a signal once so many images exist, and see all processes end."""
    while process.is_alive() and images_in(target) < images:
        time.sleep(0.01)
    workers = children(process.pid) if process.is_alive() else []
    with contextlib.suppress(ProcessLookupError):  # it may have come to its end meanwhile
        os.kill(process.pid, number)
    process.join(60)
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{worker}").exists() for worker in workers):  # orphans end by themselves
        assert time.monotonic() < deadline, f"workers {workers} outlived their parent"
        time.sleep(0.02)


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def check_kills(tmp_path: Path, images: int, side: int, conditions: list[str], kills: int) -> None:
    source = write_set(tmp_path / "clean", images, side)
    asked = ["--suite", "mine-p", *(word for name in conditions for word in ("--condition", name))]
    once, often = ([str(source), str(tmp_path / name), *asked] for name in ("once", "often"))
    assert main(["corrupt", *once, "--workers", "1"]) == 0
    total, target = images_in(tmp_path / "once"), tmp_path / "often"
    assert total == images * len(conditions) * 5

    def finish_and_compare() -> None:
        assert main(["corrupt", *often, "--workers", "1"]) == 0
        assert files_of(target) == files_of(tmp_path / "once")

    draw = random.Random(20261115)
    killed = 0
    while killed < kills:
        if images_in(target) > 0.9 * total:  # too little is left to hit: see this one through and begin again
            finish_and_compare()
            shutil.rmtree(target)
        present = images_in(target)
        process = start([*often, "--workers", "2" if killed % 5 == 0 else "1"])
        signal_after(process, signal.SIGKILL, target, present + draw.randint(1, (total - present) // 6 + 1))
        assert process.exitcode in (-signal.SIGKILL, 0)
        killed += process.exitcode != 0
    finish_and_compare()


needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for orphans in /proc")


@needs_proc
@pytest.mark.slow
def test_ten_kills_and_resumes_give_the_bytes_of_one_run(tmp_path):
    check_kills(tmp_path, images=24, side=64, conditions=["impulse", "pixelate", "rotate"], kills=10)


@needs_proc
def test_control_c_stops_and_the_next_run_goes_on(tmp_path, capsys):
    many = 60  # large enough to last until a busy machine has sent the signal
    source, target = write_set(tmp_path / "clean", many, 512), tmp_path / "out"
    asked = [str(source), str(target), "--suite", "mine-c", "--condition", "glass_blur"]
    process = start([*asked, "--workers", "2"])
    signal_after(process, signal.SIGINT, target, 5)
    assert process.exitcode == 130
    kept = images_in(target)
    assert 5 <= kept < 5 * many
    half_way = min(kept, many)
    assert main(["corrupt", *asked, "--severity", "1", "--workers", "1"]) == 0
    done = (
        "1 already there\n0 images written"
        if half_way == many
        else f"{many - half_way} images written, {half_way} already there"
    )
    assert done in capsys.readouterr().out


def test_the_summary_and_a_second_run(tmp_path, capsys):
    source = write_set(tmp_path / "clean", 3)
    call = [
        "corrupt",
        str(source),
        str(tmp_path / "out"),
        "--suite",
        "mine-c",
        "--severity",
        "2",
        "--workers",
        "1",
    ]
    assert main([*call, "--condition", "contrast", "--condition", "fog"]) == 0
    assert "2 conditions written" in capsys.readouterr().out
    assert main([*call, "--condition", "contrast", "--condition", "snow"]) == 0
    out = capsys.readouterr().out
    assert "1 condition written" in out
    assert "1 already there\n3 images written" in out


def test_a_broken_image_gives_exit_code_one(tmp_path, capsys):
    source = write_set(tmp_path / "clean", 3)
    victim = source / "val/00001.png"
    whole = victim.read_bytes()
    victim.write_bytes(whole[: len(whole) // 2] + bytes(len(whole) - len(whole) // 2))
    call = ["corrupt", str(source), str(tmp_path / "out"), "--suite", "mine-c", "--severity", "2"]
    call += ["--condition", "fog", "--workers", "1"]
    assert main(call) == 1
    assert "failed: fog/2: cannot decode the image" in capsys.readouterr().err
    victim.write_bytes(whole)
    assert main(call) == 2
    assert "was made with the checksum of the clean set" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["{clean}", "{out}", "--suite", "coco-q"], "there is no suite 'coco-q'; did you mean"),
        (["{clean}", "{out}", "--suite", "coco-o"], "'coco-o' is not made from clean images"),
        (["{clean}", "{out}", "--suite", "mine-c", "--condition", "rain"], "has no condition 'rain'"),
        (["{clean}", "{out}", "--suite", "mine-c", "--severity", "0"], "severity 0 does not exist"),
        (["{clean}", "{out}", "--suite", "mine-c", "--severity", "9"], "severity 9 of"),
        (["{clean}", "{out}", "--suite", "mine-c", "--workers", "0"], "--workers is 0; it is 1 to"),
        (["{clean}", "{clean}", "--suite", "mine-c"], "lies in the source"),
        (["{clean}/nowhere", "{out}", "--suite", "mine-c"], "nowhere does not exist"),
        (["{clean}/annotations", "{out}", "--suite", "mine-c"], "is not a data set"),
        (["{clean}", "{out}", "--suite", "coco-c"], "it holds 3 images, not 5000"),
        (["{clean}", "{out}", "--suite", "ade20k-c"], "is not a set of images and labels"),
        (["{clean}", "{out}", "--suite", "mine-c", "--frost-textures", "{clean}/none"], "none"),
    ],
)
def test_misuse_is_one_sentence_and_exit_code_two(tmp_path, capsys, arguments, sentence):
    source = write_set(tmp_path / "clean", 3)
    words = [word.format(clean=source, out=tmp_path / "out") for word in arguments]
    assert main(["corrupt", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("gramloop corrupt: ")
    assert sentence in error
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path, capsys):
    source = write_set(tmp_path / "clean", 1)
    (tmp_path / "shut").mkdir(mode=0o500)
    assert main(["corrupt", str(source), str(tmp_path / "shut/out"), "--suite", "mine-c"]) == 2
    assert "cannot write to" in capsys.readouterr().err


def test_photographs_need_no_labels(tmp_path: Path) -> None:
    """The files are the images that an evaluation without labels would make of the same folder."""
    photos, out = tmp_path / "photos", tmp_path / "out"
    photos.mkdir()
    for number in range(2):
        Image.fromarray(scene(number, 64, "val").image).save(photos / f"{number}.png")
    chosen = ["--condition", "fog", "--severity", "3", "--workers", "1"]
    assert main(["corrupt", str(photos), str(out), "--suite", "photos-c", *chosen]) == 0
    options = ReadOptions(labels=False)
    suite = open_suite("photos-c", photos, conditions=["fog"], severities=[3], options=options)
    [(condition, made)] = list(suite)
    written = sorted((out / condition.key).rglob("*.png"))
    assert len(written) == 2
    for path, record in zip(written, made, strict=True):
        with Image.open(path) as stored:
            assert np.array_equal(np.asarray(stored), record.image())
