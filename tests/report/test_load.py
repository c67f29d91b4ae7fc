from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gramloop.errors import GramLoopError
from gramloop.evaluate.plan import DataSource
from gramloop.evaluate.results import collect
from gramloop.evaluate.store import read_condition
from gramloop.metrics.segmentation import class_iou
from gramloop.mitigations.stack import Replay
from gramloop.report.load import load_runs
from small_runs import counts_of
from small_stores import CLASSES, CONDITIONS, make_plan, write_store


def test_scores_are_those_of_evaluate(tmp_path: Path) -> None:
    for task in ("semantic", "detection"):
        store = write_store(tmp_path / task, make_plan(task=task))
        results = collect(store)
        (run,) = load_runs([tmp_path / task]).runs
        assert run.complete
        for method in run.methods:
            assert run.score(method) == results.mean(method)
        for one, cell in zip(results.conditions, run.results, strict=True):
            assert one.condition == cell.condition.key
            assert repr(one.scores) == repr(cell.scores)  # where a score is nan on both sides


def test_classes_are_sums_of_their_images(tmp_path: Path) -> None:
    store = write_store(tmp_path / "r", make_plan(images=13))
    (run,) = load_runs([tmp_path / "r"]).runs
    stored = read_condition(store, "snow/3")
    assert stored is not None
    counts = counts_of(stored.methods["gramloop"])  # (images, 3, classes)
    cell = next(each for each in run.results if each.condition.key == "snow/3")
    np.testing.assert_allclose(cell.classes["gramloop"][:2], class_iou(counts.sum(axis=0))[:2], rtol=1e-12)
    assert run.unlabelled == (CLASSES[2],)


def test_detection_by_category(tmp_path: Path) -> None:
    """Dogs are always found. The baseline misses the cat of images 0, 3, 6 and 9, and all scores are equal.

    So its cats come at ranks 2, 3, 5, 6, 8, 9, 11 and 12 of 12: precision never exceeds 2/3 and recall ends at 8/12,
    which is reached by 67 of COCO's 101 recalls.
    """
    write_store(tmp_path / "r", make_plan(task="detection"))
    (run,) = load_runs([tmp_path / "r"]).runs
    cell = run.results[0]
    assert cell.classes["gramloop"].tolist() == pytest.approx([100, 100])
    cats, dogs = cell.classes["baseline"]
    assert dogs == pytest.approx(100)
    assert cats == pytest.approx((cell.scores["baseline"]["AP"] * 2 - 100), abs=1e-9)
    assert cats == pytest.approx(100 * 67 / 101 * 2 / 3, abs=1e-9)


def test_missing_conditions_are_named_and_leave_no_mean(tmp_path: Path) -> None:
    write_store(tmp_path / "r", make_plan(), skip=["snow/3"])
    found = load_runs([tmp_path / "r"])
    (run,) = found.runs
    assert not run.complete
    assert run.score("gramloop") is None
    assert any("snow/3 (0 of 4 units are stored)" in sentence for sentence in found.warnings)


def test_a_torn_unit_is_named_and_leaves_no_mean(tmp_path: Path) -> None:
    store = write_store(tmp_path / "r", make_plan())
    torn = store.path(store.plan.parts_of("fog/1")[0].units[0])
    torn.write_bytes(torn.read_bytes()[:-20])
    found = load_runs([tmp_path / "r"])
    assert found.runs[0].score("gramloop") is None
    assert any(torn.name in sentence and "3 of 4 units" in sentence for sentence in found.warnings)


def test_failures_and_unseen_classes_are_named(tmp_path: Path) -> None:
    write_store(tmp_path / "r", make_plan(), lost={"fog/1": [3, 4]})
    found = load_runs([tmp_path / "r"])
    assert found.runs[0].results[0].images == 10
    words = " ".join(found.warnings)
    assert "2 images count for no method: image-003 in fog/1 (cannot be decoded)" in words
    assert "the labels never hold road_way" in words
    assert "covers 6 of the suite's 75 conditions" in words


def test_a_condition_without_a_usable_image_leaves_no_mean(tmp_path: Path) -> None:
    write_store(tmp_path / "r", make_plan(), lost={"fog/1": range(12)})
    found = load_runs([tmp_path / "r"])
    assert found.runs[0].unscored == ("fog/1",)
    assert found.runs[0].score("gramloop") is None
    assert any("no score for fog/1" in sentence for sentence in found.warnings)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"versions": {"gramloop": "1", "torch": "3"}}, "torch 2 and 3"),
        ({"model": {"sha256": {"folder/model": "others"}}}, "other weights"),
        ({"model": {"threads": 2}}, "threads 1 and 2"),
        ({"data": DataSource("set", contents={"clean": "other images"})}, "other images"),
        ({"methods": "other"}, "the method gramloop has other settings"),
    ],
    ids=["versions", "weights", "threads", "images", "settings"],
)
def test_plans_that_cannot_be_compared_are_said_and_kept_apart(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    plan = make_plan()
    if isinstance(model := changes.get("model"), dict):
        changes = {"model": replace(plan.model, **model)}
    if "methods" in changes:
        ours = plan.methods[1]
        other = replace(ours, stack=(Replay(replace(ours.replay, replays=3)),))  # type: ignore[type-var]
        changes = {"methods": (plan.methods[0], other)}
    write_store(tmp_path / "a", plan)
    write_store(tmp_path / "b", replace(plan, **changes))  # type: ignore[arg-type]
    found = load_runs([tmp_path / "a", tmp_path / "b"])
    assert [len(group) for group in found.groups] == [1, 1]
    sentence = next(each for each in found.warnings if "cannot be compared" in each)
    assert words in sentence
    assert len({run.name for run in found.runs}) == 2


def test_suites_of_one_model_stand_together(tmp_path: Path) -> None:
    write_store(tmp_path / "c", make_plan())
    write_store(tmp_path / "clean", make_plan(suite="scenes", conditions=["clean"]))
    write_store(tmp_path / "detect", make_plan(task="detection"))
    found = load_runs([tmp_path])  # a folder of results folders
    assert [len(group) for group in found.groups] == [3]
    assert [run.name for run in found.runs] == [
        "scenes-c semantic",
        "scenes",
        "scenes-c detection",
    ]
    assert [run.score_title for run in found.runs] == ["mPC (mIoU)", "mIoU", "mPC (AP)"]


def test_what_is_no_result_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GramLoopError, match="holds no results of gramloop evaluate"):
        load_runs([tmp_path])
    write_store(tmp_path / "a", make_plan())
    write_store(tmp_path / "b", make_plan())
    with pytest.raises(GramLoopError, match="hold the same plan"):
        load_runs([tmp_path / "a", tmp_path / "b"])


def test_blocks_add_up_over_units(tmp_path: Path) -> None:
    write_store(tmp_path / "r", make_plan(methods=["baseline", "gramloop", "loop-loop"]))
    (run,) = load_runs([tmp_path / "r"]).runs
    images = 12 * len(CONDITIONS)
    assert run.images == images
    assert run.blocks == {"baseline": 6 * images, "gramloop": 11 * images, "loop-loop": 11 * images}
