"""Procedural scenes: the same bytes from the same index, labels that agree with masks and boxes, both layouts."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gramloop.cli import main
from gramloop.data.coco import open_coco
from gramloop.data.folders import open_semantic
from gramloop.data.scenes import (
    ANNOTATIONS,
    CLASSES,
    STUFF,
    THINGS,
    SceneFiles,
    draw_scenes,
    outlines,
    scene,
    write_scenes,
)
from gramloop.errors import GramLoopError
from gramloop.util.files import TEMPORARY


def fingerprint(index: int) -> str:
    one = scene(index, split="test")
    parts = (one.image, one.labels, one.boxes, one.categories, one.masks)
    return hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).hexdigest()


def test_index_alone_decides_the_bytes() -> None:
    forward = [fingerprint(index) for index in range(8)]
    backward = [fingerprint(index) for index in reversed(range(8))][::-1]
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        elsewhere = list(pool.map(fingerprint, range(8)))
    assert forward == backward == elsewhere
    assert len(set(forward)) == 8


def test_seed_and_split_make_other_scenes() -> None:
    images = [scene(3, split="a"), scene(3, split="b"), scene(3, split="a", seed=1)]
    assert len({one.image.tobytes() for one in images}) == 3


@settings(max_examples=40, deadline=None)
@given(index=st.integers(0, 10**12), size=st.sampled_from([64, 100, 192, 257]))
def test_labels_masks_and_boxes_agree(index: int, size: int) -> None:
    one = scene(index, size, split="property")
    assert one.image.shape == (size, size, 3)
    assert one.image.dtype == one.labels.dtype == np.uint8
    assert 1 <= one.labels.min() <= one.labels.max() <= len(CLASSES)
    assert len(one.boxes) == len(one.categories) == len(one.masks)
    covered = np.zeros((size, size), bool)
    for box, kind, mask in zip(one.boxes, one.categories, one.masks, strict=True):
        rows, columns = np.nonzero(mask)
        assert list(box) == [columns.min(), rows.min(), np.ptp(columns) + 1, np.ptp(rows) + 1]
        assert (one.labels[mask] == len(STUFF) + 1 + kind).all()
        assert not (covered & mask).any()
        covered |= mask
    assert np.array_equal(covered, one.labels > len(STUFF))


def test_every_class_appears_and_is_seen_often_enough_to_learn() -> None:
    seen = np.zeros(len(CLASSES) + 1)
    for index in range(60):
        seen += np.bincount(scene(index, 96).labels.ravel(), minlength=len(CLASSES) + 1)
    share = seen[1:] / seen.sum()
    assert len(STUFF) >= 5
    assert len(THINGS) >= 6
    assert share.min() > 0.004  # far from vanishing; the rarest, mushroom, has about 0.011


def test_a_scene_is_the_same_picture_at_another_size() -> None:
    for index in range(5):
        small, large = scene(index, 96), scene(index, 192)
        assert list(small.categories) == list(large.categories)
        agree = cv2.resize(large.labels, (96, 96), interpolation=cv2.INTER_NEAREST) == small.labels
        assert agree.mean() > 0.9  # the rest is rounding along the borders


@pytest.mark.parametrize(("index", "size"), [(-1, 192), (0, 63)])
def test_impossible_scenes_are_refused(index: int, size: int) -> None:
    with pytest.raises(GramLoopError, match=str(index if index < 0 else size)):
        scene(index, size)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_outlines_cover_the_mask_with_its_holes(seed: int) -> None:
    mask_api = pytest.importorskip("pycocotools.mask")
    rng = np.random.default_rng(seed)
    mask = cv2.resize(rng.random((9, 9)), (72, 72), interpolation=cv2.INTER_CUBIC) > 0.45
    polygons = outlines(mask)
    drawn = mask_api.decode(mask_api.merge(mask_api.frPyObjects(polygons, 72, 72))).astype(bool)
    wrong = (drawn != mask).sum()
    edge = cv2.morphologyEx(mask.astype(np.uint8), cv2.MORPH_GRADIENT, np.ones((3, 3), np.uint8)).sum()
    assert wrong <= 0.05 * edge  # COCO's own rounding of slanted edges; a hole filled in would be far more


def test_both_readers_read_what_was_written(tmp_path: Path) -> None:
    words = f"scenes {tmp_path / 'set'} --count 6 --start 40 --size 96 --workers 1"
    assert main(words.split()) == 0
    semantic, detection = open_semantic(tmp_path / "set"), open_coco(tmp_path / "set")
    assert tuple(semantic.categories.values()) == CLASSES
    assert tuple(detection.categories.values()) == THINGS
    content = json.loads((tmp_path / "set/annotations/instances_val.json").read_text())
    assert [entry["id"] for entry in content["annotations"]] == list(
        range(1, len(content["annotations"]) + 1)
    )
    for offset, (one, other) in enumerate(zip(semantic, detection, strict=True)):
        true = scene(40 + offset, 96, "val")
        assert np.array_equal(one.image(), true.image)
        assert np.array_equal(cv2.imread(str(one.label_path), cv2.IMREAD_UNCHANGED), true.labels)
        assert [entry["bbox"] for entry in other.annotations] == true.boxes.tolist()
        assert [entry["area"] for entry in other.annotations] == true.masks.sum((1, 2)).tolist()


def tree(folder: Path) -> dict[str, bytes]:
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if not name.startswith(TEMPORARY)}


def test_a_killed_run_leaves_nothing(tmp_path: Path) -> None:
    command = "import sys; from gramloop.cli import main; main(sys.argv[1:])"
    arguments = ["scenes", str(tmp_path / "killed"), "--count", "96", "--size", "192", "--workers", "1"]
    process = subprocess.Popen([sys.executable, "-c", command, *arguments], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(list((tmp_path / "killed").glob("*/images/validation/0*.png"))) < 3:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert tree(tmp_path / "killed") == {}
    assert main(arguments) == 0
    write_scenes(tmp_path / "whole", SceneFiles(96), workers=2)
    assert tree(tmp_path / "killed") == tree(tmp_path / "whole")


def test_other_scenes_in_the_folder_are_not_overwritten(tmp_path: Path) -> None:
    write_scenes(tmp_path, SceneFiles(2, size=64), workers=1)
    before = tree(tmp_path)
    with pytest.raises(GramLoopError, match="holds other scenes"):
        write_scenes(tmp_path, SceneFiles(3, size=64), workers=1)
    assert tree(tmp_path) == before


def test_scenes_are_drawn_once(tmp_path: Path) -> None:
    wanted = SceneFiles(2, size=64, split="tune")
    folder = draw_scenes(tmp_path / "scenes", wanted)
    write_scenes(tmp_path / "whole", wanted, workers=1)
    assert tree(folder) == tree(tmp_path / "whole")
    written = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    draw_scenes(folder, wanted)
    assert written == {path: path.stat().st_mtime_ns for path in written}


@pytest.mark.parametrize("other", [SceneFiles(3, size=64), SceneFiles(2, size=64, split="tune")], ids=str)
def test_other_scenes_are_not_taken_for_those_wanted(other: SceneFiles, tmp_path: Path) -> None:
    draw_scenes(tmp_path, SceneFiles(2, size=64))
    with pytest.raises(GramLoopError, match="holds other scenes"):
        draw_scenes(tmp_path, other)


def test_unfinished_scenes_are_refused(tmp_path: Path) -> None:
    draw_scenes(tmp_path, SceneFiles(2, size=64))
    (tmp_path / ANNOTATIONS).unlink()
    with pytest.raises(GramLoopError, match="not all of these"):
        draw_scenes(tmp_path, SceneFiles(2, size=64))


def test_a_foreign_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    assert main(["scenes", str(tmp_path), "--count", "2"]) == 2
    assert "choose a new folder" in capsys.readouterr().err
