"""Searches over files and in one call: every task, with and without labels, resumed after kills."""

import json
import shutil
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from torch import nn

import gramloop
from dense_folders import save_model
from gramloop.data.records import LabelledImage
from gramloop.data.truth import DepthMap
from gramloop.errors import GramLoopError
from gramloop.evaluate.plan import AGREEMENT_NOTE
from gramloop.evaluate.planning import make_plan
from gramloop.metrics.segmentation import count_pixels, mean_iou
from gramloop.mitigations import calibrate
from gramloop.mitigations.calibration import CalibrationStats
from gramloop.mitigations.stack import replay_of
from gramloop.replay.config import Cost, read_replay
from gramloop.tasks import open_model
from gramloop.tasks.depth import Depth
from gramloop.tasks.prediction import Pair
from gramloop.tasks.segments import InstanceMasks, Panoptic, Segment, object_masks, segment_map
from gramloop.tune import Tuning
from gramloop.tune.options import SearchOptions
from gramloop.tune.planning import describe_search, plan_search, suite_target
from gramloop.tune.result import RESULT
from gramloop.tune.schedule import CLEAN
from gramloop.tune.space import Space, replay_values
from gramloop.tune.tuning import CALIBRATION, run_tuning
from gramloop.util.files import file_digest
from killing import hit, needs_proc
from memory_targets import memory_target, searched
from small_runs import small_request, write_scene_set
from small_sets import write_semantic

SPACE = Space({"window": [(2, 2), (3, 3), (4, 5), (5, 5)], "replays": [1], "strength": [0.5]})
MIXED = Space(
    {"window": [(2, 2), (4, 4)], "replays": [1], "strength": [0.5]}, ["recentre:c=1", "denoise", "flip"]
)


def records_of(target, key=CLEAN):
    images = target.workload.open_images()
    return images.records(key, range(len(target.images[key])))


@pytest.mark.parametrize("task", [pytest.param("semantic", marks=pytest.mark.slow), "detection"])
def test_one_and_two_workers_give_the_same_bytes(model_folder, scene_folder, tmp_path, task):
    target = suite_target(small_request(model_folder, scene_folder, task))
    assert list(target.images) == ["clean", "impulse_noise/3", "fog/3", "pixelate/3"]
    search = plan_search(target, SPACE, 170)
    found = [run_tuning(search, tmp_path / str(workers), workers=workers) for workers in (1, 2)]
    assert found[0].outcome.predictions == search.schedule.predictions <= 170
    files = [(tmp_path / str(workers) / RESULT).read_bytes() for workers in (1, 2)]
    assert files[0] == files[1]
    about = json.loads((tmp_path / "1" / RESULT).read_text())["about"]
    assert {"suite", "data", "model", "sizes", "device", "versions"} <= set(about["subject"])
    assert about["subject"]["model"]


def test_the_verdict_is_that_of_the_images(model_folder, scene_folder, tmp_path):
    target = suite_target(small_request(model_folder, scene_folder))
    search = plan_search(target, SPACE, 170)
    found = run_tuning(search, tmp_path)
    predictor, config = target.workload.load_predictor(None), replay_of(found.outcome.leader.stack)
    totals = np.zeros((2, 3, len(target.workload.categories.ids)), dtype=np.int64)
    for sample in search.split.images["verdict"]["clean"][: search.schedule.verdict.images]:
        record = records_of(target)[sample.position]
        for version, replay in enumerate((None, config)):
            labels = predictor.predict(record.image(), replay).labels
            totals[version] += count_pixels(labels, record.labels(), totals.shape[-1])
    part = found.outcome.leader.holdout["clean"]
    assert (part["baseline score"], part["mitigated score"]) == tuple(
        float(mean_iou(total)) for total in totals
    )


@pytest.mark.parametrize("task", ["semantic", pytest.param("detection", marks=pytest.mark.slow)])
def test_without_labels_a_change_of_clean_predictions_is_no_gain(model_folder, scene_folder, tmp_path, task):
    target = suite_target(small_request(model_folder, scene_folder, task, truth="clean"))
    assert target.subject["truth"] == "clean"
    search = plan_search(target, SPACE, 170)
    assert search.plan["options"]["clean_tolerance"] == 100.0
    assert "clean predictions may change by anything" in describe_search(search).text()
    found = run_tuning(search, tmp_path)
    assert found.answer.metric == ("agreement mIoU" if task == "semantic" else "agreement AP")
    assert AGREEMENT_NOTE in found.answer.notes[-1]
    assert "clean predictions change by" in found.answer.notes[-1]
    assert "clean" not in found.answer.sentence.replace("with the clean prediction", "")
    about = json.loads((tmp_path / RESULT).read_text())["about"]
    assert set(about["unseen images"]["clean"]) == {"images", "families", "agreement"}
    assert about["unseen images"]["clean"]["agreement"] < 100
    assert "clean gain" not in about["finalists"][0]
    assert about["finalists"][0]["clean change"] < 0


def test_a_limit_on_change_without_labels(model_folder, scene_folder):
    target = suite_target(small_request(model_folder, scene_folder, truth="clean"))
    found = searched(target, SPACE, 170, SearchOptions(clean_tolerance=0.0))
    assert not found.outcome.chosen  # every replay changes something


@pytest.mark.parametrize(
    ("task", "truth"), [pytest.param("semantic", "labels", marks=pytest.mark.slow), ("detection", "clean")]
)
def test_statistics_are_learnt_from_clean_images_of_the_search(model_folder, tmp_path, task, truth):
    folder = write_scene_set(tmp_path / "set", 22)
    target = suite_target(small_request(model_folder, folder, task, truth=truth))
    search = plan_search(target, MIXED, 230, SearchOptions(stacking=task == "semantic"))
    many = search.schedule.calibration
    assert 8 <= many <= 32
    seen = search.split.images["search"][CLEAN][:many]
    for part in ("decide", "verdict"):
        judged = {sample.image_id for sample in search.split.images[part][CLEAN]}
        assert not judged & {sample.image_id for sample in seen}
    found = run_tuning(search, tmp_path / "one")
    assert found.outcome.predictions <= search.schedule.predictions <= 230
    made = CalibrationStats.read(tmp_path / "one" / CALIBRATION)
    images = [records_of(target)[sample.position].image() for sample in seen]
    expected = calibrate(target.workload.load_predictor(None), images)
    assert (made.images, made.noise) == (expected.images, expected.noise)
    for tap, mean in expected.means.items():
        np.testing.assert_array_equal(made.means[tap], mean)
    if task == "detection":
        return
    before = [(tmp_path / "one" / name).read_bytes() for name in (RESULT, CALIBRATION)]
    (tmp_path / "one" / CALIBRATION).write_bytes(b"damaged")  # it is made again, and must come out the same
    for folder, workers in (("one", 1), ("two", 2)):
        run_tuning(search, tmp_path / folder, workers=workers)
        assert [(tmp_path / folder / name).read_bytes() for name in (RESULT, CALIBRATION)] == before


def test_a_choice_is_what_evaluate_runs(model_folder, tmp_path):
    """The file of a chosen stack, made by hand: whether something helps a random model is chance."""
    folder = write_scene_set(tmp_path / "set", 22)
    target = suite_target(small_request(model_folder, folder))
    space = Space(mitigations=["recentre:c=1", "denoise+recentre:c=1"])
    found = run_tuning(plan_search(target, space, 150), tmp_path)
    best = next(one for one in found.outcome.finalists if len(one.stack) == 2)
    best = replace(best, holdout=found.outcome.leader.holdout)
    replace(found, outcome=replace(found.outcome, leader=best, chosen=True)).write(tmp_path / RESULT)
    method = f"found:{tmp_path / RESULT}"
    plan = make_plan(small_request(model_folder, folder, methods=["baseline", method], images=2))
    assert plan.methods[1].stack == best.stack
    assert plan.methods[1].calibration == file_digest(tmp_path / CALIBRATION)


def test_given_statistics_are_used_and_kept_next_to_the_result(model_folder, scene_folder, tmp_path):
    plain = suite_target(small_request(model_folder, scene_folder))
    images = [record.image() for record in records_of(plain)[:8]]
    calibrate(plain.workload.load_predictor(None), images).save(tmp_path / "given")
    request = small_request(model_folder, scene_folder, calibration=str(tmp_path / "given"))
    search = plan_search(suite_target(request), Space(mitigations=["recentre:c=1", "median"]), 150)
    assert search.schedule.calibration == 0
    run_tuning(search, tmp_path / "out")
    assert (tmp_path / "out" / CALIBRATION).read_bytes() == (tmp_path / "given").read_bytes()


@pytest.mark.parametrize(
    ("place", "named"),
    [
        ("set/annotations/validation/00000003.png", "subject: data"),
        ("model/segment.safetensors", "subject: model"),
    ],
)
def test_labels_and_weights_that_changed_are_refused(model_folder, scene_folder, tmp_path, place, named):
    model = Path(shutil.copytree(model_folder, tmp_path / "model"))
    scenes = Path(shutil.copytree(scene_folder, tmp_path / "set"))

    def begin():
        target = suite_target(small_request(model, scenes, conditions=["fog", "pixelate"]))
        return run_tuning(plan_search(target, SPACE, 110), tmp_path / "out")

    begin()
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    data = bytearray((tmp_path / place).read_bytes())
    data[-5] ^= 1
    (tmp_path / place).write_bytes(data)
    with pytest.raises(GramLoopError, match=f"holds a search with {named}"):
        begin()
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before


# a hundred kills

KILLS = 100


def _killed(model: Path, scenes: Path, folder: Path) -> None:
    conditions = ["fog", "impulse_noise", "pixelate", "contrast", "snow", "frost"]
    values = {"window": [(2, 2), (3, 3), (4, 5), (5, 5)], "replays": [1], "strength": [0.5, 1.0]}
    target = suite_target(small_request(model, scenes, conditions=conditions))
    run_tuning(plan_search(target, Space(values, ["recentre:0.3"]), 900), folder)


def _units(folder: Path) -> int:
    return sum(1 for _ in folder.rglob("*.parquet"))


@needs_proc
@pytest.mark.slow
def test_a_hundred_kills_leave_the_bytes_of_one_search(model_folder, tmp_path):
    scenes = write_scene_set(tmp_path / "set", 33)
    whole, out = tmp_path / "whole", tmp_path / "out"
    _killed(model_folder, scenes, whole)
    for _ in range(KILLS):
        present = _units(out)
        if present > _units(whole) - 20:
            shutil.rmtree(out)  # begin again rather than run through
            present = 0
        given = (model_folder, scenes, out)
        code = hit(_killed, given, signal.SIGKILL, lambda least=present + 1: _units(out) >= least)
        assert code == -signal.SIGKILL
        assert _units(out) > present
    _killed(model_folder, scenes, out)
    names = [{path.relative_to(folder) for path in folder.rglob("*.parquet")} for folder in (out, whole)]
    assert names[0] == names[1]
    for name in (RESULT, "plan.json"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()


# other tasks, with made-up predictors

SIZE, HALF = 24, 12
FAMILIES = ("fog", "snow", "frost", "contrast")


class Wrong:
    """Wrong by what the image's grey says; a replay of block 2 halves that."""

    classes = MappingProxyType[int, str]({1: "thing", 2: "stuff"})
    blocks: Sequence[nn.Module] = tuple(nn.Identity() for _ in range(6))
    host = None
    taps = ()

    def __init__(self, task: str) -> None:
        self.task = task

    def cost(self, replay=None, paired=False):
        return Cost(6 if replay is None else 8, 6)

    def predict(self, image, replay=None, paired=False, *, trace=None):
        wrong = int(image[0, 0, 0]) // 32
        baseline = predicted(self.task, wrong)
        if replay is None:
            return baseline
        found = predicted(self.task, wrong // 2 if replay.window == (2, 2) else wrong)
        return Pair(baseline, found) if paired else found


def predicted(task: str, wrong: int) -> Depth | Panoptic | InstanceMasks:
    """One object from the left to an edge that is wrong by so many pixels; or depth with such an error."""
    if task == "depth":
        true = np.linspace(2, 8, SIZE * SIZE).reshape(SIZE, SIZE)
        return Depth((true * (1 + wrong / 8 * np.linspace(0, 1, SIZE))).astype(np.float32))
    left = np.zeros((SIZE, SIZE), np.bool_)
    left[:, : HALF + wrong] = True
    if task == "instance":
        return InstanceMasks.from_masks(left[None], np.array([0.9]), np.array([1]))
    segments = np.where(left, 1, 2).astype(np.int32)
    return Panoptic(segments, (Segment(1, 1, True, 0.9), Segment(2, 2, False, 0.9)))


def true_images(task: str, grey: int) -> list[LabelledImage]:
    found = predicted(task, 0)
    if isinstance(found, Depth):
        truth = DepthMap(found.values)
    else:
        truth = segment_map(found) if isinstance(found, Panoptic) else object_masks(found)
    shape = (SIZE, SIZE, 3)
    return [LabelledImage(f"{each}", np.full(shape, grey + each, np.uint8), truth) for each in range(24)]


@pytest.mark.parametrize("task", ["depth", "panoptic", "instance"])
def test_the_better_window_is_found(task: str) -> None:
    shifted = {f"{name}/3": true_images(task, 100 + 20 * step) for step, name in enumerate(FAMILIES)}
    target = memory_target(Wrong(task), {"clean": true_images(task, 0), **shifted})
    space = Space(replay_values(6, window=[(block, block) for block in range(6)]))
    found = searched(target, space, 800, SearchOptions(clean_tolerance=3.0))
    assert found.config.window == (2, 2)
    assert found.outcome.chosen


def test_a_filter_is_tuned_on_depth() -> None:
    """A wrong depth of single dark pixels, which a median removes."""

    class Spotted(Wrong):
        def predict(self, image, replay=None, paired=False, *, trace=None):
            true = np.linspace(2, 8, SIZE * SIZE).reshape(SIZE, SIZE)
            return Depth((true * np.where(image[..., 0] > 200, 1.0, 3.0)).astype(np.float32))

    def images(spots: int) -> list[LabelledImage]:
        rng = np.random.default_rng(0)
        made = []
        for one in true_images("depth", 0):
            pixels = np.full((SIZE, SIZE, 3), 255, np.uint8)
            pixels[tuple(rng.integers(1, SIZE - 1, (2, spots)))] = 0
            made.append(LabelledImage(one.image_id, pixels, one.truth))
        return made

    shown = {"clean": images(0), **{f"{name}/3": images(6 + n) for n, name in enumerate(FAMILIES)}}
    space = Space(mitigations=["median", "gaussian:0.3"])
    found = searched(memory_target(Spotted("depth"), shown), space, 300)
    assert found.mitigations == "median"


# in one call


def test_a_model_in_memory_is_tuned(tmp_path: Path) -> None:
    data = write_semantic(tmp_path / "data", 12)
    model = open_model(f"hf:{save_model('UperNet on Dinov2', tmp_path / 'model')}")
    settings = {"conditions": ["fog", "contrast", "pixelate"], "budget": 200}
    space = Space({"window": [(2, 2), (3, 3)], "strength": [0.5]})
    found = gramloop.tune(model, data, suite="my-set-c", out=tmp_path / "out", space=space, **settings)
    assert isinstance(found, Tuning)
    assert found.answer.sentence in str(found)
    assert read_replay(tmp_path / "out" / RESULT) == found.config


def test_a_function_is_tuned_over_pixels_and_outputs(tmp_path: Path) -> None:
    data = write_semantic(tmp_path / "data", 22)

    def function(image: np.ndarray) -> np.ndarray:
        return image[..., 0].astype(np.int64) % 2

    settings = {"conditions": ["impulse_noise", "contrast", "pixelate"], "budget": 250, "suite": "my-set-c"}
    found = gramloop.tune(function, data, out=tmp_path / "out", **settings)
    names = {stack[0].name for stack in found.search.candidates}
    assert names == {"denoise", "median", "levels", "sharpen", "resize", "flip"}
    assert "only scores can be averaged" in dict(found.outcome.refused)["flip"]
    assert set(found.about()["tried"]["left out"]) >= {"flip", "replay", "recentre:0.3"}
    assert CalibrationStats.read(tmp_path / "out" / CALIBRATION).means == {}
    with pytest.raises(GramLoopError, match="no transformer blocks that could be replayed"):
        gramloop.tune(function, data, out=tmp_path / "no", space=Space({"window": [(1, 1)]}), **settings)
