"""The loop: rows are those of the predictors themselves, bad images count for no method, any subject can be run."""

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from gramloop.data.records import LabelledImage, Record
from gramloop.data.truth import PixelLabels
from gramloop.errors import GramLoopError
from gramloop.evaluate.engines import start_workers
from gramloop.evaluate.methods import Method, blocks_per_view, parse_method, prediction_calls
from gramloop.evaluate.plan import Part, Unit, Workload, read_plan
from gramloop.evaluate.provenance import plan_workload
from gramloop.evaluate.runner import Done, Runner, Stopped
from gramloop.evaluate.store import Store
from gramloop.metrics.segmentation import count_pixels
from gramloop.mitigations import apply, calibrate
from gramloop.models.tiny import WEIGHTS
from gramloop.tasks.base import Categories, get_task
from gramloop.tasks.loading import load_predictor
from gramloop.util.device import deterministic
from gramloop.util.forward_patch import counting
from small_runs import SIDE, counts_of, rows_of, runner_of, small_plan

METHODS = ["baseline", "gramloop", "ungated", "final-final", "late:window=4-5,replays=1"]


@pytest.fixture(scope="module")
def plan(model_folder: Path, scene_folder: Path):
    return small_plan(model_folder, scene_folder, methods=METHODS, diagnostics=True)


@pytest.fixture(scope="module")
def runner(plan) -> Runner:
    return runner_of(plan)


def direct_counts(found, records) -> np.ndarray:
    pairs = zip(found, records, strict=True)
    return np.stack([count_pixels(one.labels, record.labels(), 15) for one, record in pairs])


def test_stored_counts_are_those_of_separate_predictions(plan, runner: Runner):
    part = plan.parts[1]
    finished, records = runner.run_one(part), runner.images.records(part.condition, part.images)
    stored = {}
    for method in plan.methods:
        stored[method.name] = counts_of(rows_of(plan, finished, method.name))
        with deterministic(1):
            found = [runner.predictor.predict(record.image(), method.replay) for record in records]
        assert np.array_equal(stored[method.name], direct_counts(found, records)), method.name
    assert not np.array_equal(stored["baseline"], stored["gramloop"])
    assert not np.array_equal(stored["gramloop"], stored["late"])


def test_the_baseline_comes_with_the_first_replay(plan, runner: Runner):
    part = plan.parts[0]
    with counting(runner.predictor.blocks) as counter:
        finished = runner.run_one(part)
    facts = finished.facts
    assert counter.blocks == len(part) * blocks_per_view(plan.methods, 6, True)
    assert (facts["baseline"].seconds, facts["baseline"].paired_with) == (0, "gramloop")
    assert (facts["gramloop"].seconds > 0, facts["gramloop"].paired_with) == (True, "baseline")
    assert facts["ungated"].paired_with == ""
    assert 0 < sum(each.seconds for each in facts.values()) <= facts["late"].wall_seconds
    assert facts["late"].peak_memory > 10**7
    measured = {name: {len(row) for row in rows_of(plan, finished, name).column("drift")} for name in facts}
    assert measured == {
        "baseline": {0},
        "gramloop": {2},
        "ungated": {2},
        "final-final": {2},
        "late": {1},
        "gramloop-matched": {2},
    }


def test_a_method_is_the_same_with_and_without_the_others(plan, runner: Runner):
    """What is added later, or run again after damage, has the rows of a run with all methods."""
    part = plan.parts[1]
    together = runner.run_one(part)
    for method in plan.methods:
        alone = rows_of(plan, runner.run_one(replace(part, methods=(method,))), method.name)
        whole = rows_of(plan, together, method.name)
        for name in set(whole.table.column_names) - {"blocks"}:  # a pair may keep some for the baseline
            assert alone.table[name].equals(whole.table[name]), (method.name, name)


def test_which_methods_share_a_call(plan):
    names = [[method.name for method in call] for call in prediction_calls(plan.methods)]
    assert names == [["baseline", "gramloop"], ["ungated"], ["final-final"], ["late"], ["gramloop-matched"]]
    baseline, *replays = plan.methods
    assert prediction_calls([baseline]) == [(baseline,)]
    assert prediction_calls(replays) == [(method,) for method in replays]
    assert prediction_calls([replays[0], baseline]) == [(baseline, replays[0])]
    short, whole = parse_method("loop-loop"), replays[0]
    assert prediction_calls([baseline, short, whole]) == [(baseline, whole), (short,)]
    assert prediction_calls([baseline, short]) == [(baseline, short)]


def test_stored_boxes_are_those_of_separate_predictions(model_folder: Path, scene_folder: Path):
    plan = small_plan(model_folder, scene_folder, "detection")
    runner, part = runner_of(plan), plan.parts[2]
    finished, records = runner.run_one(part), runner.images.records(part.condition, part.images)
    for method in plan.methods:
        rows = rows_of(plan, finished, method.name).rows
        with deterministic(1):
            alone = [runner.predictor.predict(record.image(), method.replay) for record in records]
        for name in ("scores", "labels"):
            assert np.array_equal(rows.values[name], np.concatenate([getattr(one, name) for one in alone]))
        assert rows.lengths["truth_labels"].tolist() == [len(record.instances()) for record in records]


def test_a_run_leaves_the_model_and_torch_as_they_were(plan, runner: Runner):
    threads = torch.get_num_threads()
    runner.run_one(plan.parts[0])
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.get_num_threads() == threads
    assert all("forward" not in vars(block) and not block._forward_hooks for block in runner.predictor.blocks)
    assert not runner.predictor.model.training


def test_a_stop_is_heard_between_images(plan, runner: Runner):
    seen: list[int] = []
    with pytest.raises(Stopped):
        list(runner.run(plan.parts[:1], seen.append, lambda: len(seen) == 2))
    assert len(seen) == 2


def test_images_are_decoded_once_for_all_methods(plan, runner: Runner, monkeypatch):

    decoded: list[object] = []
    original = Record.image

    def image(record: Record) -> object:
        decoded.append(record.image_id)
        return original(record)

    monkeypatch.setattr(Record, "image", image)
    runner.run_one(plan.parts[1])
    assert decoded == [f"{position:08d}" for position in plan.parts[1].images]


def damaged_set(folder: Path, source: Path) -> Path:
    """Two images that cannot be used, each in its own way; headers are whole, so opening finds nothing."""
    shutil.copytree(source, folder)
    (folder / "annotations" / "instances_val.json").unlink()
    torn = folder / "images" / "validation" / "00000001.png"
    torn.write_bytes(torn.read_bytes()[:600])
    stranger = folder / "annotations" / "validation" / "00000002.png"
    Image.fromarray(np.full((SIDE, SIDE), 77, np.uint8)).save(stranger)
    return folder


def test_bad_images_are_recorded_and_count_for_no_method(model_folder, scene_folder, tmp_path):
    plan = small_plan(model_folder, damaged_set(tmp_path / "set", scene_folder), shards=1)
    runner, part = runner_of(plan, tmp_path / "out"), plan.parts[0]
    assert list(runner.run([part])) == [Done(part)]
    whole = small_plan(model_folder, scene_folder, shards=1)
    complete, kept = runner_of(whole).run_one(whole.parts[0]), [0, *range(3, 11)]
    for unit in part.units:
        stored = runner.store.rows([unit])
        reasons = {failure.image_id: failure.reason for failure in stored.failures}
        assert list(reasons) == ["00000001", "00000002"]
        assert "cannot decode the image" in reasons["00000001"]
        assert "label value 77" in reasons["00000002"]
        assert stored.positions == kept
        expected = counts_of(rows_of(whole, complete, unit.method.name))[kept]
        assert np.array_equal(counts_of(stored), expected)


# methods with mitigations

STACKS = [
    "baseline",
    "median",
    "gramloop",
    "recentre:0.3",
    "both=recentre:0.3+gramloop",
    "flip",
    "m=median+flip",
]


def test_counts_and_blocks_are_those_of_the_mitigated_predictors(model_folder, scene_folder, tmp_path):
    plan = small_plan(model_folder, scene_folder, methods=STACKS)
    runner, part = runner_of(plan), plan.parts[1]
    with counting(runner.predictor.blocks) as counter:
        finished = runner.run_one(part)
    records = runner.images.records(part.condition, part.images)
    texts = {
        "median": "median",
        "recentre-0.3": "recentre:0.3",
        "both": "recentre:0.3+gramloop",
        "flip": "flip",
        "m": "median+flip",
    }
    rows = {method.name: rows_of(plan, finished, method.name) for method in plan.methods}
    for name, text in texts.items():
        with deterministic(1):
            alone = [apply(text, runner.predictor).predict(record.image()) for record in records]
        assert np.array_equal(counts_of(rows[name]), direct_counts(alone, records)), name
        assert not np.array_equal(counts_of(rows[name]), counts_of(rows["baseline"])), name
    assert counter.blocks == len(part) * blocks_per_view(plan.methods, 6)
    blocks = {name: each.blocks[0] for name, each in rows.items()}
    assert [blocks[name] for name in ("baseline", "median", "recentre-0.3", "flip", "m")] == [6, 6, 6, 12, 12]
    assert blocks["both"] == blocks["gramloop"] > 6
    path = tmp_path / "plan.json"
    path.write_text(plan.text())
    assert read_plan(path) == plan


def test_a_filter_runs_once_and_one_that_changes_nothing_costs_no_prediction(runner, monkeypatch):
    methods = [
        parse_method(text) for text in ("baseline", "median", "m=median+recentre:0.3", "same=median:1")
    ]
    kind, ran = type(methods[1].stack[0]), []
    original = kind.filtered

    def filtered(self, pixels, *rest):
        ran.append(self.side)
        return original(self, pixels, *rest)

    monkeypatch.setattr(kind, "filtered", filtered)
    image = runner.images.records("fog/3", range(1))[0].image()
    found = runner.predict(image, methods)
    assert ran == [3, 1]
    assert found["same"] is found["baseline"]
    assert not np.array_equal(found["m"].labels, found["median"].labels)


def test_calibration_belongs_to_the_methods_that_use_it(plan, runner, model_folder, scene_folder, tmp_path):
    learnt = small_plan(model_folder, scene_folder, methods=["baseline", "recentre:c=1"])
    assert learnt.calibration_split is not None
    assert learnt.calibration_split.positions == (), "scenes of their own are drawn for it"
    assert learnt.conditions == plan.conditions, "so that all others are judged"
    assert [method.calibration for method in learnt.methods] == ["", learnt.calibration_split.contents]
    records = runner.images.records("fog/3", range(8))
    source = calibrate(runner.predictor, [record.image() for record in records])
    plans = []
    for name, noise in [("one", source.noise), ("moved", source.noise), ("other", 2 * source.noise)]:
        path = tmp_path / f"{name}.safetensors"
        replace(source, noise=noise).save(path)
        given = {"methods": ["baseline", "recentre:c=1"], "calibration": str(path)}
        plans.append(small_plan(model_folder, scene_folder, **given))
    assert len({each.hash for each in plans}) == 1
    first, moved, other = (each.methods[1] for each in plans)
    assert first == moved != other
    assert first.hash != other.hash
    assert plans[0].methods[0].calibration == ""
    finished = runner_of(plans[0]).run_one(plans[0].parts[0])
    assert not finished.rows["recentre-c1"].failures
    shutil.copy(tmp_path / "other.safetensors", tmp_path / "one.safetensors")
    with pytest.raises(GramLoopError, match=r"one\.safetensors changed since the evaluation was planned"):
        runner_of(plans[0])


def test_detections_are_merged(model_folder: Path, scene_folder: Path):
    methods = ["baseline", "flip", "resize:1.25", "denoise"]
    plan = small_plan(model_folder, scene_folder, "detection", methods=methods)
    runner = runner_of(plan)
    with counting(runner.predictor.blocks) as counter:
        finished = runner.run_one(plan.parts[0])
    assert not any(rows.failures for rows in finished.rows.values())
    assert counter.blocks <= len(plan.parts[0]) * 6 * 5
    recentred = small_plan(model_folder, scene_folder, "detection", methods=["baseline", "recentre:0.3"])
    assert recentred.calibration_split is not None


# any subject, as tuning makes them


class _Images:
    """Grey pictures in memory; the second one has labels of another size."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes

    def records(self, condition, images):
        shade = {"clean": 120, "dark": 30}[condition]
        return [
            LabelledImage(
                f"{condition}-{place}",
                np.full((64, 64, 3), shade + place, np.uint8),
                PixelLabels(np.zeros((self.sizes[place], 64), np.uint8)),
            )
            for place in images
        ]

    def clean_records(self, condition, images):
        return self.records("clean", images)


def _tiny(device):
    return load_predictor("semantic", {"folder": str(WEIGHTS)}, device=device or "cpu")


def subject(sizes: tuple[int, ...] = (64, 64, 64, 64), **changes) -> Workload:
    return Workload(
        "0123",
        "semantic",
        Categories({number: str(number) for number in range(15)}),
        _tiny,
        partial(_Images, sizes),
        partial(get_task, "semantic"),
        **changes,
    )


CANDIDATES = tuple(parse_method(text).with_window(12) for text in ("baseline", "gramloop", "median"))


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_parts_of_any_subject_are_run_and_read_again(tmp_path: Path, workers: int):
    described = subject(sizes=(64, 32, 64, 64))
    store = Store(tmp_path, described)
    parts = [Part("dark", (0, 1, 3), CANDIDATES[:2]), Part("clean", (2,), CANDIDATES)]
    with start_workers(described, store, workers) as started:
        done = list(started(store.missing(parts)))
        assert sorted(each.part.condition for each in done) == ["clean", "dark"]
        assert store.missing(parts) == []
        later = [replace(part, methods=CANDIDATES) for part in parts]
        [again] = started(store.missing(later))  # only what is new
        assert [method.name for method in again.part.methods] == ["median"]
    found = store.rows([Unit("dark", CANDIDATES[1], (0, 1, 3))])
    assert found.positions == [0, 3]
    assert [failure.position for failure in found.failures] == [1]
    assert "unlike the image" in found.failures[0].reason
    score = get_task("semantic").scorer(found.rows, described.categories)(np.ones((1, 2), np.int64))
    assert score.shape == (1,)
    assert store.rows([Unit("dark", CANDIDATES[1], (0, 3))]) is None


def test_a_method_may_refuse_an_image_where_the_subject_keeps_refusals(tmp_path: Path, monkeypatch):
    def refuse(self, pixels, *rest):
        if pixels[0, 0, 0] == 31:
            raise GramLoopError("too dark")
        return pixels

    monkeypatch.setattr(type(CANDIDATES[2].stack[0]), "filtered", refuse)
    described = subject(keep_refusals=True)
    store, part = Store(tmp_path, described), Part("dark", (0, 1), CANDIDATES)
    assert list(Runner(described, store).run([part])) == [Done(part)]
    refused = store.rows([part.units[2]])
    assert refused.positions == [0]
    assert [(failure.position, failure.reason) for failure in refused.refused] == [(1, "too dark")]
    assert store.rows([part.units[0]]).positions == [0, 1]
    with pytest.raises(GramLoopError, match="too dark"):
        list(Runner(subject(), store).run([part]))


def test_a_model_that_cannot_be_sent_needs_one_worker(tmp_path: Path):
    described = replace(subject(), load_predictor=lambda device: None)
    with (
        pytest.raises(GramLoopError, match="cannot be sent to other processes"),
        start_workers(described, Store(tmp_path, described), 2),
    ):
        pass


def test_a_part_that_lacks_a_row_is_not_stored(plan, monkeypatch, tmp_path: Path):
    """Rows are made in a thread, next to a GPU: an error there must reach the run before the unit is written."""
    failing = Runner(plan_workload(plan), Store(tmp_path, plan), prepare=1)
    monkeypatch.setattr("gramloop.evaluate.runner._add_rows", fail_on_third)
    with pytest.raises(ValueError, match="no row"):
        list(failing.run(plan.parts[:1]))
    assert not list(tmp_path.rglob("*.parquet"))


def fail_on_third(rows: object, image: Any) -> None:
    if image.position == 2:
        raise ValueError("no row")


def test_a_method_by_hand_is_one_of_the_runner(plan, runner: Runner):
    late = Method("mine", parse_method("m:window=2-3").stack)
    image = runner.images.records("fog/3", range(1))[0].image()
    with deterministic(1):
        expected = runner.predictor.predict(image, late.replay)
    assert np.array_equal(runner.predict(image, [late])["mine"].labels, expected.labels)
