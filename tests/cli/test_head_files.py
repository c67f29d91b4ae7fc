"""Commands with a backbone and a head: the head's names decide the task."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from golden import write_golden_depther, write_golden_pmt
from gramloop import ReplayConfig
from gramloop.cli import main
from gramloop.mitigations import apply
from gramloop.tasks import DptDepthConfig, QueryConfig
from gramloop.tasks.loading import load_head

REPLAY = ["--method", "replay:window=3-4"]


@pytest.fixture(scope="module")
def photo(tmp_path_factory):
    pixels = np.random.default_rng(4).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    path = tmp_path_factory.mktemp("photos") / "7.png"
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture(scope="module")
def pmt(tmp_path_factory):
    return write_golden_pmt(tmp_path_factory.mktemp("pmt"))


@pytest.fixture(scope="module")
def depther(tmp_path_factory):
    return write_golden_depther(tmp_path_factory.mktemp("depther"))


def given(files):
    return ["--backbone", str(files[0]), "--head", str(files[1])]


def test_masks_of_a_pmt_head_are_written(pmt, photo, tmp_path):
    options = ["--task", "instance", "--side", "64", "--no-picture", *REPLAY]
    assert main(["predict", str(photo), "--out", str(tmp_path), *given(pmt), *options]) == 0
    found = load_head(*pmt, "instance", **vars(QueryConfig(64)))
    pair = found.predict(photo, ReplayConfig(window=(3, 4)), paired=True)
    for version, expected in (("baseline", pair.baseline), ("mitigated", pair.replayed)):
        rows = json.loads((tmp_path / f"7.{version}.json").read_text())
        assert [row["segmentation"]["counts"] for row in rows] == [mask["counts"] for mask in expected.masks]
        assert {row["image_id"] for row in rows} == {7}


def test_without_a_task_the_head_says_it(pmt, depther, photo, tmp_path):
    assert main(["predict", str(photo), "--out", str(tmp_path / "a"), *given(pmt), "--short-side", "64", "--method", "baseline", "--no-picture"]) == 0  # fmt: skip
    assert Image.open(tmp_path / "a" / "7.baseline.png").size == (70, 50)  # seven classes: it segments
    options = ["--short-side", "64", "--flip", "--no-picture", *REPLAY]
    assert main(["predict", str(photo), "--out", str(tmp_path / "b"), *given(depther), *options]) == 0
    estimator = load_head(*depther, **vars(DptDepthConfig(64, flip=True)))
    pair = estimator.predict(photo, ReplayConfig(window=(3, 4)), paired=True)
    assert np.array_equal(np.load(tmp_path / "b" / "7.baseline.npy"), pair.baseline.values)
    assert np.array_equal(np.load(tmp_path / "b" / "7.mitigated.npy"), pair.replayed.values)


def test_the_protocol_of_nyu_is_evaluated(depther, tmp_path):
    data = tmp_path / "nyu"
    for folder in ("images", "depth"):
        (data / folder).mkdir(parents=True)
    rng = np.random.default_rng(2)
    for index in range(2):
        pixels = rng.integers(0, 256, (48, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(data / "images" / f"{index}.png")
        depth = rng.integers(500, 9000, (48, 64)).astype(np.uint16)
        Image.fromarray(depth).save(data / "depth" / f"{index}.png")
    out = tmp_path / "out"
    options = ["--short-side", "64", "--flip", "--align", "scale-shift", "--workers", "1"]
    methods = ["--method", "baseline", "--method", "replayed:window=3-4"]
    command = ["evaluate", "--suite", "nyu", "--data", str(data), "--out", str(out)]
    assert main([*command, *given(depther), *options, *methods]) == 0
    plan = json.loads((out / "plan.json").read_text())
    assert plan["task"] == "depth"
    assert plan["model"]["sizes"] == {"short_side": 64, "flip": True}
    rows = (out / "results.csv").read_text().splitlines()
    assert rows[0].startswith("condition,method,images,excluded,delta1")
    assert len(rows) == 3


MISUSES = {
    "a side for depth": ("depth", ["--side", "64"], "--side belongs to --task panoptic or instance"),
    "a mirror for masks": ("instance", ["--flip"], "--flip belongs to --task depth"),
    "another task": ("detection", [], "is a PMT head, for the task semantic or panoptic or instance, not for detection"),
    "unknown things": ("panoptic", ["--side", "64"], "which of the 7 classes of this head are things is not known"),
    "a crooked side": ("instance", ["--side", "60"], "needs a side that is a multiple of 16, not 60"),
}  # fmt: skip


@pytest.mark.parametrize("misuse", MISUSES)
def test_misuse_is_one_sentence(misuse, pmt, photo, tmp_path, capsys):
    task, options, said = MISUSES[misuse]
    command = ["predict", str(photo), "--out", str(tmp_path / "out"), "--task", task]
    assert main([*command, *given(pmt), *options]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("mitigation", ["norms:0.5", "recentre:0.5"])
def test_norms_of_the_new_heads_know_the_images_of_training(mitigation, pmt, depther, photo):
    instance = load_head(*pmt, "instance", **vars(QueryConfig(64)))
    plain = instance.predict(photo).scores
    assert not np.array_equal(apply(mitigation, instance).predict(photo).scores, plain)
    assert np.array_equal(instance.predict(photo).scores, plain)
    estimator = load_head(*depther, **vars(DptDepthConfig(64)))
    moved = apply(mitigation, estimator).predict(photo).values
    assert not np.array_equal(moved, estimator.predict(photo).values)


def test_recentring_a_depth_head_is_what_its_norms_do(depther, photo):
    """Each norm of it sees the patches of one tap alone, so both mitigations are the same."""
    estimator = load_head(*depther, **vars(DptDepthConfig(64)))
    one, other = (apply(each, estimator).predict(photo).values for each in ("norms:0.5", "recentre:0.5"))
    assert np.abs(one - other).max() < 1e-3  # two ways to sum up in float32, at a depth of 60


def test_images_are_shown_to_the_new_heads_in_other_sizes(pmt, depther, photo):
    larger = apply("resize:1.5", load_head(*pmt, "instance", **vars(QueryConfig(64)))).predict(photo)
    direct = load_head(*pmt, "instance", **vars(QueryConfig(96))).predict(photo)
    assert larger.masks == direct.masks
    larger = apply("resize:1.5", load_head(*depther, **vars(DptDepthConfig(64)))).predict(photo)
    direct = load_head(*depther, **vars(DptDepthConfig(96))).predict(photo)
    assert np.array_equal(larger.values, direct.values)
