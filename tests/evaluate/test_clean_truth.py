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
from gramloop.evaluate.clean_truth import as_truth, moved
from gramloop.evaluate.predicting import CleanTruth
from gramloop.evaluate.evaluation import evaluate
from gramloop.evaluate.plan import Plan, read_plan
from gramloop.evaluate.predicting import deterministic
from gramloop.evaluate.rows import counts_of, picture_of
from gramloop.models.dense_detect import boxes_of
from gramloop.evaluate.session import Session
from gramloop.metrics.miou import count_pixels
from gramloop.shifts.geometry import warp_labels
from gramloop.tasks.depth import Depth
from gramloop.tasks.detection import Detection
from gramloop.tasks.semantic import Segmentation
from small_runs import small_plan


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
    session = Session(plan_of(model_folder, photos))
    unit = session.plan.units[0]
    finished = session.run(unit)
    shown, clean = session.data(unit.condition)[unit.start : unit.stop], session.opened.clean
    with deterministic(1):
        plain = [
            session.predictor.predict(clean[place].image()).labels for place in range(unit.start, unit.stop)
        ]
        for method in session.plan.methods:
            found = [session.predictor.predict(record.image(), method.replay).labels for record in shown]
            direct = [count_pixels(one, truth, 15) for one, truth in zip(found, plain, strict=True)]
            assert np.array_equal(counts_of([finished.table], method.name), np.stack(direct))
    kept = finished.table.to_pylist()[0]
    assert np.array_equal(picture_of(kept, "clean_picture"), plain[0])
    assert not np.array_equal(picture_of(kept), plain[0])


def test_a_clean_image_is_predicted_once_however_many_conditions_show_it(model_folder, photos, monkeypatch):
    session = Session(plan_of(model_folder, photos, methods=["gramloop"]))
    calls = Counter()
    predict = session.predictor.predict

    def counted(image, replay=None, **more):
        calls["plain" if replay is None else "replayed"] += 1
        return predict(image, replay, **more)

    monkeypatch.setattr(session.predictor, "predict", counted)
    for unit in session.plan.units:
        session.run(unit)
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


def test_the_plan_says_so_and_plans_with_labels_stay_what_they_were(
    model_folder, scene_folder, photos, tmp_path
):
    labelled = small_plan(model_folder, scene_folder)
    assert not {"truth", "truth_score"} & set(labelled.as_json())
    blind = plan_of(model_folder, photos, "detection", truth_score=0.3)
    assert (blind.as_json()["truth"], blind.as_json()["truth_score"]) == ("clean", 0.3)
    (tmp_path / "plan.json").write_text(blind.text())
    assert read_plan(tmp_path / "plan.json").hash == blind.hash
    assert replace(blind, truth_score=0.4).hash != blind.hash


def test_boxes_of_the_clean_prediction_count_from_their_score_on(model_folder, photos):
    session = Session(plan_of(model_folder, photos, "detection"))
    with deterministic(1):
        scores = session.predictor.predict(session.opened.clean[0].image()).scores
    score = float(np.median(scores))
    session = Session(plan_of(model_folder, photos, "detection", truth_score=score))
    unit = session.plan.units[0]
    truth, _ = boxes_of([session.run(unit).table], "baseline", list(session.plan.categories))
    with deterministic(1):
        found = session.predictor.predict(session.opened.clean[0].image())
    sure = found.scores >= score
    assert 0 < sure.sum() < len(sure)
    left_top, size = found.boxes[sure, :2], found.boxes[sure, 2:] - found.boxes[sure, :2]
    assert np.allclose(truth.boxes[truth.image_ids == 0], np.hstack([left_top, size]), atol=1e-3)


def test_clean_predictions_move_with_the_pixels(model_folder, photos):
    opened = open_suite(
        "photos-p",
        photos,
        conditions=["translate"],
        severities=[1],
        options=ReadOptions(task="semantic", labels=False),
    )
    record = opened.open(Condition("translate", 1))[0]
    affine = record.shift.affine(record)
    predictor = Session(plan_of(model_folder, photos)).predictor
    still = as_truth(predictor.predict(opened.clean[0].image()))
    found = CleanTruth(predictor).of(opened.clean[0], record)
    assert np.array_equal(found.indices, warp_labels(still.indices, affine, still.ignored))
    assert 0 < (found.indices == still.ignored).mean() < 0.9
    boxes = np.array([[24, 20, 40, 44]], dtype=np.float32)
    box = as_truth(Detection(boxes, np.array([0.9], dtype=np.float32), np.array([3])))
    at = moved(box, record, record.shift).boxes[0]
    expected = [24 + affine[0][2], 20 + affine[1][2], 16, 24]
    assert np.abs(at - expected).max() <= 1.5
    assert np.abs(at[:2] - [24, 20]).max() > 1.5
    depth = moved(as_truth(Depth(still.indices + np.float32(1))), record, record.shift)
    assert np.array_equal(depth.metres == 0, found.indices == still.ignored)


def test_predictions_as_truth():
    labels = np.array([[0, 300], [1, 2]], dtype=np.int32)
    assert np.array_equal(as_truth(Segmentation(labels)).indices, labels)
    boxes = np.array([[1, 2, 4, 8], [0, 0, 2, 2]], dtype=np.float32)
    found = as_truth(Detection(boxes, np.array([0.5, 0.49], dtype=np.float32), np.array([3, 4])))
    assert found.boxes.tolist() == [[1, 2, 3, 6]]
    assert (found.areas.tolist(), found.categories.tolist()) == ([18.0], [3])
    metres = np.array([[2.0, 0.0], [np.inf, 4.0]], dtype=np.float32)
    assert as_truth(Depth(metres)).metres.tolist() == [[2.0, 0.0], [0.0, 4.0]]
    assert as_truth(Depth(metres, disparity=True)).metres.tolist() == [[0.5, 0.0], [0.0, 0.25]]


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
    session = Session(plan_of(model_folder, tmp_path))
    finished = session.run(session.plan.units[0])
    assert [failure.position for failure in finished.failures] == [0]
    assert "cannot decode" in finished.failures[0].reason
