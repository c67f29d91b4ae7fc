"""Readers of depth: the layouts of NYU and KITTI and one's own, on small made sets; moves; what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gramloop.data.folders import open_depth
from gramloop.data.opening import ReadOptions, open_set, open_suite
from gramloop.data.records import LabelledImage
from gramloop.data.scenes import CLASSES, FAR, SceneFiles, scene, write_scenes
from gramloop.data.truth import DepthFormat
from gramloop.data.writing import write_suite
from gramloop.errors import GramLoopError
from gramloop.tasks.base import read_labelled


def _image(path: Path, size: tuple[int, int], seed: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (*size, 3), dtype=np.uint8)).save(path)


def _depth(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values.astype(np.uint16)).save(path)


def _nyu(root: Path) -> np.ndarray:
    millimetres = np.random.default_rng(1).integers(500, 12_000, (480, 640))
    millimetres[100, 100] = 0
    _image(root / "bathroom" / "rgb_00045.jpg", (480, 640))
    _depth(root / "bathroom" / "sync_depth_00045.png", millimetres)
    (root / "nyu_test.txt").write_text("/bathroom/rgb_00045.jpg /bathroom/sync_depth_00045.png 518.8579\n")
    return millimetres


def test_nyu_is_a_list_of_millimetres_scored_inside_eigens_crop(tmp_path: Path) -> None:
    millimetres = _nyu(tmp_path)
    data = open_set("nyu", tmp_path, ReadOptions())
    assert data.task == "depth"
    depth = data[0].depth()
    inside = np.zeros((480, 640), bool)
    inside[45:471, 41:601] = True
    np.testing.assert_allclose(depth.metres[inside], millimetres[inside] / 1000, rtol=1e-6)
    assert not depth.metres[~inside].any()
    known = inside & (millimetres > 0) & (millimetres <= 10_000)
    assert (depth.known == known).all()


def test_kitti_pairs_image_with_groundtruth_depth_at_256_steps_to_the_metre(tmp_path: Path) -> None:
    name = "2011_09_26_drive_0002_sync_{}_0000000005_image_02.png"
    _image(tmp_path / "image" / name.format("image"), (40, 120))
    steps = np.zeros((40, 120))
    steps[20, 30:33] = (256, 256 * 79.5, 256 * 81)
    _depth(
        tmp_path
        / "groundtruth_depth"
        / name.format("groundtruth_depth").replace("image_02", "groundtruth_depth_02"),
        steps,
    )
    depth = open_set("kitti", tmp_path, ReadOptions())[0].depth()
    assert depth.known.sum() == 2  # 0 is not known, and 81 m is too far
    assert depth.metres[20, 30] == 1
    assert depth.metres[20, 31] == 79.5


@pytest.mark.parametrize("ending", ["png", "npy"])
def test_ones_own_set_says_how_depth_is_stored(tmp_path: Path, ending: str) -> None:
    values = np.arange(1, 40 * 50 + 1).reshape(40, 50)
    _image(tmp_path / "images" / "validation" / "a" / "one.jpg", (40, 50))
    path = tmp_path / "depth" / "validation" / "a" / f"one.{ending}"
    path.parent.mkdir(parents=True)
    if ending == "npy":
        np.save(path, values.astype(np.float64))
    else:
        _depth(path, values)
    (tmp_path / "depth.json").write_text(json.dumps({"scale": 100, "far": 15}))
    data = open_set("garden", tmp_path, ReadOptions())  # depth alone is there, so it is the task
    depth = data[0].depth()
    np.testing.assert_allclose(depth.metres, values / 100, rtol=1e-6)
    assert depth.known.sum() == 1500
    (tmp_path / "depth.json").write_text(json.dumps({"unit": "mm"}))
    with pytest.raises(
        GramLoopError,
        match=r"depth\.json is not a file that says how .* it has 'unit', which is none of scale, near",
    ):
        open_depth(tmp_path)


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    with pytest.raises(GramLoopError, match="needs images/ and depth/, or a list"):
        open_depth(tmp_path)
    _image(tmp_path / "images" / "one.png", (40, 50))
    _image(tmp_path / "images" / "two.png", (40, 50))
    _depth(tmp_path / "depth" / "one.png", np.ones((40, 51)))
    _depth(tmp_path / "depth" / "three.png", np.ones((40, 50)))
    with pytest.raises(GramLoopError) as caught:
        open_depth(tmp_path)
    assert "two.png has no depth depth/two.png" in str(caught.value)
    assert "three.png has no image" in str(caught.value)
    _depth(tmp_path / "depth" / "two.png", np.ones((40, 50)))
    (tmp_path / "depth" / "three.png").unlink()
    with pytest.raises(GramLoopError, match="is 51 x 40, but its image is 50 x 40"):
        open_depth(tmp_path)
    _image(tmp_path / "depth" / "one.png", (40, 50))
    with pytest.raises(GramLoopError, match="is a RGB picture; depth has one channel"):
        open_depth(tmp_path)
    with pytest.raises(GramLoopError, match="scale of stored depth is above 0, not 0"):
        DepthFormat(0)


def test_an_image_without_known_depth_is_told_not_scored(tmp_path: Path) -> None:
    _image(tmp_path / "images" / "one.png", (40, 50))
    _depth(tmp_path / "depth" / "one.png", np.zeros((40, 50)))
    found = read_labelled(open_depth(tmp_path)[0], "depth")
    assert isinstance(found, str)
    assert "one.png is known at no pixel between 0.001 and 1000 m" in found


def _moving_set(root: Path) -> None:
    """The image's red channel is its depth in centimetres, so that one can be checked by the other."""
    values = np.kron(np.arange(20, 220, 2).reshape(10, 10), np.ones((16, 16))).astype(np.uint8)
    (root / "images").mkdir(parents=True)
    Image.fromarray(np.repeat(values[..., None], 3, axis=2)).save(root / "images" / "one.png")
    _depth(root / "depth" / "one.png", values.astype(np.uint16) * 10)


@pytest.mark.parametrize("name", ["rotate", "translate", "shear"])
def test_depth_moves_with_the_pixels(tmp_path: Path, name: str) -> None:
    _moving_set(tmp_path)
    opened = open_suite("moving-p", tmp_path, conditions=[name], severities=[2])
    record = opened.open(opened.conditions[0])[0]
    found = read_labelled(record, "depth")
    assert isinstance(found, LabelledImage)
    depth, grey = record.depth(), record.image()[..., 0].astype(float)
    assert 0 < (~depth.known).sum() < depth.known.size  # what comes in from outside is not known
    assert set(np.unique(depth.metres)) <= {0, *np.unique(open_depth(tmp_path)[0].depth().metres)}
    apart = np.abs(grey - 100 * depth.metres)[depth.known]
    assert np.mean(apart < 1) > 0.6  # inside a block; at its border an image blends, depth does not
    assert np.median(apart) < 0.5


def test_a_written_suite_reads_back_as_it_was_made(tmp_path: Path) -> None:
    _moving_set(tmp_path / "clean")
    for suite, condition in (("moving-p", "rotate"), ("moving-c", "fog")):
        opened = open_suite(suite, tmp_path / "clean", conditions=[condition], severities=[3])
        target = tmp_path / suite
        write_suite(opened, target, workers=1)
        made, written = (
            each.open(each.conditions[0])[0] for each in (opened, _again(suite, target, condition))
        )
        np.testing.assert_allclose(written.depth().metres, made.depth().metres, rtol=1e-6)
        assert (written.image() == made.image()).all()


def _again(suite: str, target: Path, condition: str):
    return open_suite(suite, target, conditions=[condition], severities=[3], origin="folders")


def test_depth_of_scenes_follows_from_how_they_are_drawn() -> None:
    for index in range(12):
        one = scene(index, split="val")
        sky = one.labels == CLASSES.index("sky") + 1
        assert ((one.depth == 0) == sky).all()
        known = one.depth[~sky]
        assert known.min() > 1.6
        assert known.max() <= FAR
        for mask in one.masks:
            assert len(np.unique(one.depth[mask])) == 1  # upright at its foot
        ground = ~sky & ~one.masks.any(axis=0) & np.isin(one.labels, [3, 4, 5, 7])
        rows = [np.unique(one.depth[row][ground[row]]) for row in range(len(sky))]
        assert all(len(values) <= 1 for values in rows)
        lines = np.array([values[0] for values in rows if len(values)])
        assert (np.diff(lines) <= 0).all()  # lower in the picture is nearer


def test_scenes_on_disk_have_their_depth_and_are_three_sets(tmp_path: Path) -> None:
    write_scenes(tmp_path, SceneFiles(2, split="val"), workers=1)
    data = open_set("scenes", tmp_path, ReadOptions(task="depth"))
    assert len(data) == 2
    drawn = scene(1, split="val").depth
    np.testing.assert_allclose(data[1].depth().metres, drawn, atol=5.1e-4)
    assert data[1].depth().far == FAR
    for task in ("semantic", "detection"):
        assert open_set("scenes", tmp_path, ReadOptions(task=task)).task == task
