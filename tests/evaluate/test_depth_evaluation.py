"""Depth from image to report: pairs, stored numbers, what is excluded, the bootstrap, and that other plans stay as they were."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gramloop.data.opening import ReadOptions, open_set
from gramloop.errors import GramLoopError
from gramloop.evaluate.evaluation import evaluate
from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.plan import DataSource, read_plan
from gramloop.evaluate.store import PLAN, Store, read_condition
from gramloop.metrics.scores import depth_scores
from gramloop.models.tiny import DenseDepthHead
from gramloop.replay.config import ReplayConfig
from gramloop.report.document import report_document
from gramloop.report.figures import draw_figures
from gramloop.report.load import load_runs
from gramloop.report.stats import compare_methods
from gramloop.tasks.base import get_task
from gramloop.tasks.depth import Depth
from gramloop.tasks.loading import load_predictor
from gramloop.tasks.semantic import read_picture
from small_runs import SIDE, runner_of, small_plan, write_model

SIZES = {"short_side": SIDE}
REPLAY = ReplayConfig(window=(2, 4), replays=2)


@pytest.fixture(scope="module")
def depth_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_model(tmp_path_factory.mktemp("deep"))
    torch.manual_seed(1)
    head = DenseDepthHead(32, 8, [2, 5])
    with torch.no_grad():
        head.out.bias.fill_(1.5)
    head.save(folder / "depth.safetensors")
    return folder


def test_a_head_reads_back_as_it_was_written(depth_model: Path) -> None:
    head = DenseDepthHead.load(depth_model / "depth.safetensors")
    assert (head.taps, head.channels, head.out.in_channels) == ((2, 5), 32, 8)
    maps = [torch.randn(1, 32, 4, 6) for _ in range(2)]
    assert head(maps).shape == (1, 1, 16, 24)
    assert head.depth(maps, (33, 47)).shape == (1, 33, 47)
    with pytest.raises(GramLoopError, match="is not a depth head on 2 taps"):
        DenseDepthHead.load(depth_model / "segment.safetensors")


def test_a_pair_is_two_predictions(depth_model: Path, scene_folder: Path) -> None:
    predictor = load_predictor("depth", {"folder": depth_model}, SIZES)
    image = open_set("scenes", scene_folder, ReadOptions(task="depth"))[0].image()
    pair = predictor.predict(image, REPLAY, paired=True)
    alone, ordinary = predictor.predict(image, REPLAY), predictor.predict(image)
    assert isinstance(ordinary, Depth)
    assert ordinary.values.shape == image.shape[:2]
    assert (pair.baseline.values == ordinary.values).all()
    assert (pair.replayed.values == alone.values).all()
    assert not (alone.values == ordinary.values).all()
    assert alone.trace is not None
    assert predictor.classes == {}
    with pytest.raises(GramLoopError, match="this model has no setting crop"):
        load_predictor("depth", {"folder": depth_model}, {"crop": 64})
    with pytest.raises(GramLoopError, match="does not exist; checkpoints are local files"):
        load_predictor("depth", {"head": "x.pth"})


def test_stored_rows_are_the_numbers_of_their_images(
    depth_model: Path, scene_folder: Path, tmp_path: Path
) -> None:
    plan = small_plan(depth_model, scene_folder, "depth", sizes=SIZES, alignment="median")
    assert plan.as_json()["alignment"] == "median"
    outcome = evaluate(plan, tmp_path, workers=1)
    assert read_plan(tmp_path / PLAN).hash == plan.hash
    stored, runner = read_condition(Store(tmp_path, plan), "fog/3"), runner_of(plan)
    [record] = runner.images.records("fog/3", range(4, 5))
    task, baseline = get_task("depth"), stored.methods[BASELINE]
    found = task.align(runner.predictor.predict(record.image()), record.depth(), "median")
    values = np.stack([baseline.rows.values[name] for name in task.metrics], axis=1)
    np.testing.assert_allclose(values[4], depth_scores(found.values, record.depth()), rtol=1e-6)
    assert read_picture(baseline.first(1)[0]["picture"]).shape == (SIDE, SIDE)
    means = values.mean(axis=0)
    scores = next(one for one in outcome.conditions if one.condition == "fog/3").scores[BASELINE]
    assert list(scores) == list(task.metrics)
    np.testing.assert_allclose(list(scores.values()), means)
    with (tmp_path / "results.csv").open() as stream:
        rows = [row for row in csv.DictReader(stream) if row["condition"] == "fog/3"]
    assert float(rows[0]["delta1"]) == means[0]
    assert float(rows[1]["delta1 gain"]) == float(rows[1]["delta1"]) - float(rows[0]["delta1"])


def test_a_report_of_depth(depth_model: Path, scene_folder: Path, tmp_path: Path) -> None:
    plan = small_plan(depth_model, scene_folder, "depth", sizes=SIZES)
    evaluate(plan, tmp_path, workers=1)
    loaded = load_runs([tmp_path])
    evidence = compare_methods(loaded.runs, ("images",), replicates=200)
    ((gain,),) = evidence[0].gains.values()
    assert gain.interval.estimate == pytest.approx(loaded.runs[0].gain("gramloop"))
    drawn = draw_figures(loaded, evidence, pdf=False)
    assert not drawn.remarks
    document = report_document(loaded, evidence, drawn.figures)
    picture = next(figure for figure in drawn.figures if figure.key.endswith("predictions"))
    assert "on one scale" in picture.caption
    assert "delta1 under shift" in document.answers[0].sentence


def test_what_cannot_be_scored_counts_for_no_method(
    depth_model: Path, scene_folder: Path, tmp_path: Path
) -> None:
    plan = small_plan(depth_model, scene_folder, "depth", sizes=SIZES, alignment="scale-shift", shards=1)
    runner = runner_of(plan)
    ordinary = runner.predictor.predict

    def flat(image, replay=None, **options):
        pair = ordinary(image, replay, **options)
        still = replace(pair.baseline, values=np.full_like(pair.baseline.values, 3))
        return replace(pair, baseline=still)

    runner.predictor.predict = flat  # a model that sees nothing
    runner.store = Store(tmp_path, plan)
    list(runner.run(plan.parts_of("fog/3")))
    stored = read_condition(runner.store, "fog/3")
    assert len(stored.failures) == plan.conditions["fog/3"]
    assert stored.image_ids == []
    assert "baseline: the prediction is 3 at every pixel of known depth" in stored.failures[0].reason


def test_other_tasks_do_not_know_the_depth_head(
    depth_model: Path, scene_folder: Path, tmp_path: Path
) -> None:
    before = small_plan(depth_model, scene_folder, "semantic")
    head = depth_model / "depth.safetensors"
    content = head.read_bytes()
    head.rename(tmp_path / "aside")
    try:
        assert small_plan(depth_model, scene_folder, "semantic").hash == before.hash
        with pytest.raises(GramLoopError, match=r"depth\.safetensors does not exist"):
            small_plan(depth_model, scene_folder, "depth", sizes=SIZES)
    finally:
        head.write_bytes(content)
    deep = small_plan(depth_model, scene_folder, "depth", sizes=SIZES)
    assert any("depth.safetensors" in name for name in deep.model.sha256)


def test_a_set_of_another_task_is_refused(depth_model: Path, tmp_path: Path) -> None:
    with pytest.raises(GramLoopError, match="not a set of images with depth"):
        small_plan(depth_model, tmp_path, "depth", suite="own-c", data=DataSource(str(tmp_path)), sizes=SIZES)
