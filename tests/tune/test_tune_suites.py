"""Searches over files: the model and the suite are opened anew in every process."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from gramloop.data.opening import ReadOptions, open_suite
from gramloop.data.records import LabelledImage
from gramloop.data.suites import Condition
from gramloop.errors import GramLoopError
from gramloop.evaluate.planning import make_plan
from gramloop.metrics.miou import count_pixels, mean_iou
from gramloop.mitigations import CalibrationStats, calibrate
from gramloop.mitigations.calibration import sha256_of
from gramloop.mitigations.replay import Replay
from gramloop.replay.config import ReplayConfig, read_settings
from gramloop.tune.search.bench import Bench, Trial
from gramloop.tune.search.display import describe_plan, print_tuning
from gramloop.tune.search.plan import Options, plan_search
from gramloop.tune.search.space import Space
from gramloop.tune.search.subject import subject_of
from gramloop.tune.search.suites import suite_subject
from gramloop.tune.search.tuning import RESULT, SOURCE, run, tune
from small_runs import small_request, write_scene_set

SPACE = Space({"window": [(2, 2), (3, 3), (4, 5), (5, 5)], "replays": [1], "strength": [0.5]})

LABELLED = ReadOptions(task="semantic")


@pytest.mark.parametrize("task", ["semantic", "detection"])
def test_one_and_two_workers_give_the_same_bytes(model_folder, scene_folder, tmp_path, task):
    subject = suite_subject(small_request(model_folder, scene_folder, task))
    assert list(subject.images) == ["clean", "impulse_noise/3", "fog/3", "pixelate/3"]
    search = plan_search(subject, SPACE, 170)
    found = [run(search, tmp_path / str(workers), workers=workers) for workers in (1, 2)]
    assert found[0].outcome.predictions == search.schedule.predictions <= 170
    files = [(tmp_path / str(workers) / RESULT).read_bytes() for workers in (1, 2)]
    assert files[0] == files[1]
    about = read_settings(tmp_path / "1" / RESULT)[1]
    assert set(about["subject"]) == {"suite", "data", "model", "sizes", "device", "versions"}
    assert about["subject"]["model"]


def test_a_job_holds_what_the_predictor_says(model_folder, scene_folder):
    subject = suite_subject(small_request(model_folder, scene_folder))
    config = ReplayConfig(window=(3, 4), replays=1)
    bench = Bench(pickle.loads(pickle.dumps(subject)))  # as a worker gets it
    result = bench.run(
        Trial(
            "fog/3",
            2,
            subject.images["fog/3"][2],
            (7, 8),
            ((Replay(config),), (Replay(ReplayConfig(window=(5, 5))),)),
        )
    )
    record = open_suite("scenes-c", scene_folder, conditions=["fog"], severities=[3], options=LABELLED).open(
        Condition("fog", 3)
    )[2]
    for version, replay in (("ordinary", None), ("replayed", config)):
        labels = bench.predictor.predict(record.image(), replay).labels
        expected = count_pixels(labels, record.labels(), len(subject.categories))
        stored = result[version] if version == "ordinary" else result[version][0]
        assert np.array_equal(stored["counts"], expected)


def test_a_data_set_with_ones_own_predictor(model_folder, scene_folder):
    plain = suite_subject(small_request(model_folder, scene_folder))
    data = open_suite("scenes-c", scene_folder, options=LABELLED).clean
    conditions = [Condition(name, 3) for name in ("impulse_noise", "fog", "pixelate")]
    own = subject_of(plain.make_predictor(), data, conditions=conditions, suite="scenes-c")
    assert (own.depth, own.task, own.images) == (plain.depth, plain.task, plain.images)
    found = [tune(subject, space=SPACE, budget=170).outcome for subject in (plain, own)]
    assert found[0] == found[1]


def test_what_is_no_predictor_is_told_what_it_lacks(scene_folder):
    data = open_suite("scenes-c", scene_folder, options=LABELLED).clean
    for wrong in ("a model", lambda: "a model"):
        with pytest.raises(GramLoopError, match=r"str is no predictor .* it lacks predict, task, classes"):
            subject_of(wrong, data, conditions=[Condition("fog", 3)])


def test_a_set_of_another_task_is_refused(model_folder, scene_folder):
    plain = suite_subject(small_request(model_folder, scene_folder))
    boxes = open_suite("scenes-c", scene_folder, options=ReadOptions(task="detection")).clean
    with pytest.raises(GramLoopError, match="annotated for detection, but the predictor is for semantic"):
        subject_of(plain.make_predictor, boxes, conditions=[Condition("fog", 3)])


def test_the_verdict_is_that_of_the_images(model_folder, scene_folder, tmp_path):
    subject = suite_subject(small_request(model_folder, scene_folder))
    search = plan_search(subject, SPACE, 170)
    found = run(search, tmp_path)
    predictor, config = subject.make_predictor(), found.outcome.leader.config
    judged = search.split.images["verdict"]["clean"][: search.schedule.verdict.images]
    totals = {"ordinary": 0, "replayed": 0}
    for placed in judged:
        record = subject.open_records("clean")[placed.position]
        pair = predictor.predict(record.image(), config, paired=True)
        for version in totals:
            labels = getattr(pair, version).labels
            totals[version] = totals[version] + count_pixels(labels, record.labels(), len(subject.categories))
    part = found.outcome.parts[-1]
    assert part.name == "clean"
    assert (part.ordinary, part.mitigated) == tuple(float(mean_iou(total)) for total in totals.values())


def test_without_labels_the_truth_is_the_clean_prediction(model_folder, scene_folder, tmp_path):
    blind = suite_subject(small_request(model_folder, scene_folder, truth="clean"))
    assert blind.about["truth"] == "clean"
    bench = Bench(pickle.loads(pickle.dumps(blind)))
    config = ReplayConfig(window=(3, 4), replays=1)
    clean = bench.run(Trial("clean", 2, blind.images["clean"][2], (0,), ((Replay(config),),)))
    agreed, predicted, labelled = np.array(clean["ordinary"]["counts"])
    assert np.array_equal(agreed, predicted)
    assert np.array_equal(agreed, labelled)
    foggy = bench.run(Trial("fog/3", 2, blind.images["fog/3"][2], (0,), ((Replay(config),),)))
    assert np.array_equal(
        np.array(foggy["ordinary"]["counts"])[2], labelled
    )  # the same truth under every shift


@pytest.mark.parametrize("task", ["semantic", "detection"])
def test_tuning_without_labels_never_calls_a_change_of_clean_predictions_a_gain(
    model_folder, scene_folder, tmp_path, task
):
    subject = suite_subject(small_request(model_folder, scene_folder, task, truth="clean"))
    search = plan_search(subject, SPACE, 170)
    assert search.plan()["options"]["clean_tolerance"] == 100.0
    assert "no change of them is a gain" in describe_plan(search)
    found = run(search, tmp_path)
    assert "points of agreement with the clean prediction on" in found.sentence
    assert "clean predictions change by" in found.sentence
    assert "on clean images" not in found.sentence
    about = read_settings(tmp_path / RESULT)[1]
    assert set(about["unseen images"]["clean"]) == {"images", "families", "agreement"}
    assert about["unseen images"]["clean"]["agreement"] < 100
    assert "clean gain" not in about["finalists"][0]
    assert about["finalists"][0]["clean change"] < 0
    from rich.console import Console

    console = Console(record=True, width=200)
    print_tuning(found, console)
    told = console.export_text()
    assert "points changed" in told
    assert "agreement gain" in told


def test_a_limit_on_change_without_labels(model_folder, scene_folder):
    subject = suite_subject(small_request(model_folder, scene_folder, truth="clean"))
    found = tune(subject, space=SPACE, budget=170, options=Options(clean_tolerance=0.0)).outcome
    assert not found.chosen  # every replay changes something


def test_images_in_memory_without_labels_need_their_clean_versions(model_folder, scene_folder):
    plain = suite_subject(small_request(model_folder, scene_folder))
    shown = {key: [record.image() for record in plain.open_records(key)] for key in ("clean", "fog/3")}
    data = {
        key: [LabelledImage(number, pixels, None) for number, pixels in enumerate(each)]
        for key, each in shown.items()
    }
    own = subject_of(plain.make_predictor, data, truth="clean")
    bench = Bench(own)
    config = ReplayConfig(window=(3, 4), replays=1)
    blind = Bench(suite_subject(small_request(model_folder, scene_folder, truth="clean")))
    expected = blind.run(Trial("fog/3", 1, plain.images["fog/3"][1], (0,), ((Replay(config),),)))
    assert bench.run(Trial("fog/3", 1, "1", (0,), ((Replay(config),),)))["replayed"] == expected["replayed"]
    del data["clean"][0]
    with pytest.raises(GramLoopError, match=r"0 of fog/3 is not among the clean ones"):
        subject_of(plain.make_predictor, data, truth="clean")


MIXED = Space(
    {"window": [(2, 2), (4, 4)], "replays": [1], "strength": [0.5]}, ["recentre:c=1", "denoise", "flip"]
)


@pytest.mark.parametrize(("task", "truth"), [("semantic", "labels"), ("detection", "clean")])
def test_mitigations_are_searched_with_what_clean_images_of_the_search_tell(
    scene_folder, model_folder, tmp_path, task, truth
):
    folder = write_scene_set(tmp_path / "set", 22)
    subject = suite_subject(small_request(model_folder, folder, task, truth=truth))
    search = plan_search(subject, MIXED, 230, Options(stacking=task == "semantic"))
    assert 8 <= len(search.calibration) <= 32
    looked_at = {sample.image_id for sample in search.calibration}
    for part in ("decide", "verdict"):
        assert not looked_at & {sample.image_id for sample in search.split.images[part]["clean"]}
    found = run(search, tmp_path / "one")
    assert found.outcome.predictions <= search.schedule.predictions <= 230
    made = CalibrationStats.read(tmp_path / "one" / SOURCE)
    images = [subject.open_records("clean")[sample.position].image() for sample in search.calibration]
    expected = calibrate(subject.make_predictor(), images)
    assert (made.images, made.noise) == (expected.images, expected.noise)
    for tap, mean in expected.means.items():
        np.testing.assert_array_equal(made.means[tap], mean)
    if task == "detection":
        return
    before = [(tmp_path / "one" / name).read_bytes() for name in (RESULT, SOURCE)]
    (tmp_path / "one" / SOURCE).write_bytes(b"damaged")  # it is made again, and must come out the same
    for folder, workers in (("one", 1), ("two", 2)):
        run(search, tmp_path / folder, workers=workers)
        assert [(tmp_path / folder / name).read_bytes() for name in (RESULT, SOURCE)] == before


def test_a_choice_is_what_evaluate_runs_with_its_source(model_folder, scene_folder, tmp_path):
    """The file of a chosen stack, made by hand: whether something helps a random model is chance."""
    folder = write_scene_set(tmp_path / "set", 22)
    subject = suite_subject(small_request(model_folder, folder))
    found = run(
        plan_search(subject, Space(mitigations=["recentre:c=1", "denoise+recentre:c=1"]), 150), tmp_path
    )
    best = next(one for one in found.outcome.finalists if len(one.stack) == 2)
    replace(found, outcome=replace(found.outcome, leader=best, chosen=True)).write(tmp_path / RESULT)
    method = f"found:{tmp_path / RESULT}"
    plan = make_plan(small_request(model_folder, folder, methods=["baseline", method], images=2))
    assert plan.methods[1].mitigations == best.stack
    assert plan.methods[1].calibration == sha256_of(tmp_path / SOURCE)


def test_a_given_source_is_used_and_kept_beside_the_result(model_folder, scene_folder, tmp_path):
    plain = suite_subject(small_request(model_folder, scene_folder))
    images = [record.image() for record in plain.open_records("clean")[:8]]
    calibrate(plain.make_predictor(), images).save(tmp_path / "given")
    given = small_request(model_folder, scene_folder, calibration=str(tmp_path / "given"))
    subject = suite_subject(given)
    search = plan_search(subject, Space(mitigations=["recentre:c=1", "median"]), 150)
    assert search.calibration == ()
    run(search, tmp_path / "out")
    assert (tmp_path / "out" / SOURCE).read_bytes() == (tmp_path / "given").read_bytes()
