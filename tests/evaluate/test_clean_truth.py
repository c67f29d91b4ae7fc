"""Without labels: predictions compared with what the plain model says on the clean image."""

import csv
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gramloop.data.opening import ReadOptions, open_suite
from gramloop.data.suites import Condition
from gramloop.errors import GramLoopError
from gramloop.evaluate.evaluation import evaluate
from gramloop.evaluate.plan import Part, Plan
from gramloop.evaluate.runner import CleanTruth, LoopImage
from gramloop.metrics.segmentation import count_pixels
from gramloop.shifts.geometry import warp_labels
from gramloop.tasks.base import get_task
from gramloop.tasks.semantic import read_picture
from gramloop.util.device import deterministic
from small_runs import counts_of, rows_of, runner_of, small_plan


@pytest.fixture(scope="module")
def photos(scene_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The images of some scenes, and nothing else."""
    folder = tmp_path_factory.mktemp("photos")
    for path in sorted((scene_folder / "images" / "validation").iterdir())[:5]:
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def plan_of(model: Path, photos: Path, task: str = "semantic", **changes: object) -> Plan:
    wanted = {"suite": "photos-c", "truth": "clean", "shards": 2, **changes}
    return small_plan(model, photos, task, **wanted)


def test_counts_are_against_the_plain_prediction_of_the_clean_image(model_folder, photos):
    plan = plan_of(model_folder, photos)
    runner, part = runner_of(plan), plan.parts[0]
    finished = runner.run_one(part)
    shifted = runner.images.records(part.condition, part.images)
    clean = runner.images.clean_records(part.condition, part.images)
    with deterministic(1):
        plain = [runner.predictor.predict(record.image()).labels for record in clean]
        for method in plan.methods:
            found = [runner.predictor.predict(record.image(), method.replay).labels for record in shifted]
            direct = [count_pixels(one, truth, 15) for one, truth in zip(found, plain, strict=True)]
            assert np.array_equal(counts_of(rows_of(plan, finished, method.name)), np.stack(direct))
    kept = rows_of(plan, finished, "baseline").first(1)[0]
    assert np.array_equal(read_picture(kept["clean_picture"]), plain[0])
    assert not np.array_equal(read_picture(kept["picture"]), plain[0])


def test_a_clean_image_is_predicted_once_however_many_conditions_have_it(model_folder, photos, monkeypatch):
    plan = plan_of(model_folder, photos, methods=["gramloop"])
    runner, calls = runner_of(plan), Counter()
    predict = runner.predictor.predict

    def counted(image, replay=None, **more):
        calls["plain" if replay is None else "replayed"] += 1
        return predict(image, replay, **more)

    monkeypatch.setattr(runner.predictor, "predict", counted)
    for part in plan.parts:
        runner.run_one(part)
    assert calls == {"plain": 5, "replayed": 15}


def test_on_clean_images_the_plain_model_agrees_with_itself_and_no_change_is_a_gain(
    model_folder, photos, tmp_path
):
    for task, metric in (("semantic", "agreement mIoU"), ("detection", "agreement AP")):
        out = tmp_path / task
        plan = plan_of(model_folder, photos, task, suite="photos", conditions=[], severities=[])
        evaluate(plan, out, workers=1)
        rows = list(csv.DictReader((out / "results.csv").read_text().splitlines()))
        assert [row["method"] for row in rows] == ["baseline", "gramloop"]
        assert float(rows[0][metric]) == pytest.approx(100)
        assert float(rows[1][metric]) < 100
        assert {row[f"{metric} gain"] for row in rows} == {""}


def test_one_and_two_workers_give_the_same_bytes(model_folder, photos, tmp_path):
    plan = plan_of(model_folder, photos)
    for workers in (1, 2):
        evaluate(plan, tmp_path / str(workers), workers=workers)
    first, second = ((tmp_path / str(workers) / "results.csv").read_bytes() for workers in (1, 2))
    assert first == second
    assert first.startswith(b"condition,method,images,excluded,agreement mIoU,agreement mIoU gain\n")


def test_labels_of_a_labelled_set_are_not_read(model_folder, scene_folder, tmp_path):
    import shutil

    shutil.copytree(scene_folder, tmp_path / "set")
    with_labels = plan_of(model_folder, tmp_path / "set")
    for path in (tmp_path / "set" / "annotations" / "validation").iterdir():
        path.unlink()
    assert plan_of(model_folder, tmp_path / "set") == with_labels
    assert with_labels.categories[0] == "sky"


def test_boxes_of_the_clean_prediction_count_from_their_score_on(model_folder, photos):
    plan = plan_of(model_folder, photos, "detection")
    runner, part = runner_of(plan), plan.parts[0]
    image = runner.images.clean_records(part.condition, part.images)[0].image()
    with deterministic(1):
        found = runner.predictor.predict(image)
    score = float(np.median(found.scores))
    chosen = replace(plan, truth_score=score)
    rows = rows_of(chosen, runner_of(chosen).run_one(part), "baseline").rows
    sure = found.scores >= score
    assert 0 < sure.sum() < len(sure)
    expected = np.hstack([found.boxes[sure, :2], found.boxes[sure, 2:] - found.boxes[sure, :2]])
    stored = rows.values["truth_boxes"].reshape(-1, 4)[: rows.lengths["truth_labels"][0]]
    assert np.allclose(stored, expected, atol=1e-3)


def test_clean_predictions_move_with_the_pixels(model_folder, photos):
    options = ReadOptions(task="semantic", labels=False)
    opened = open_suite("photos-p", photos, conditions=["translate"], severities=[1], options=options)
    record = opened.open(Condition("translate", 1))[0]
    task, predictor = get_task("semantic"), runner_of(plan_of(model_folder, photos)).predictor
    still = task.as_truth(predictor.predict(opened.clean[0].image()), 0.5)
    image = LoopImage(Part("translate/1", (0,), ()), 0, record, opened.clean[0])
    CleanTruth(predictor, task, 0.5).add_to([image])
    found = image.truth
    assert np.array_equal(
        found.indices, warp_labels(still.indices, record.shift.affine(record), still.ignored)
    )
    assert 0 < (found.indices == still.ignored).mean() < 0.9


def test_what_cannot_be_compared_is_refused(model_folder, photos, tmp_path):
    with pytest.raises(GramLoopError, match="the truth is labels or clean, not 'mine'"):
        plan_of(model_folder, photos, truth="mine")
    with pytest.raises(GramLoopError, match=r"lies between 0 and 1, not at 1\.5"):
        plan_of(model_folder, photos, "detection", truth_score=1.5)
    with pytest.raises(GramLoopError, match="the domains of coco-o have no clean images"):
        plan_of(model_folder, photos, "detection", suite="coco-o", conditions=[], severities=[])
    (tmp_path / "fog" / "3").mkdir(parents=True)
    with pytest.raises(
        GramLoopError, match="holds shifted images alone; the truth clean needs the clean ones"
    ):
        plan_of(model_folder, tmp_path, conditions=["fog"])


def test_a_torn_photograph_counts_for_no_method(model_folder, photos, tmp_path):
    for path in photos.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    first = sorted(tmp_path.iterdir())[0]
    first.write_bytes(first.read_bytes()[:600])  # its header is whole
    plan = plan_of(model_folder, tmp_path)
    finished = runner_of(plan).run_one(plan.parts[0])
    for rows in finished.rows.values():
        assert [failure.position for failure in rows.failures] == [0]
        assert "cannot decode" in rows.failures[0].reason
