"""A trial predicts what the library predicts, computes only what changed, and refuses what cannot be done."""

import threading
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gradio")

from gramloop.app.page import trial_html
from gramloop.app.trial import (
    AppSettings,
    Bench,
    Limits,
    OfferedModel,
    Picture,
    Trial,
    mitigation_choices,
    mitigations_of,
    shift_choices,
    shift_of,
)
from gramloop.data.records import Record
from gramloop.data.scenes.drawing import scene
from gramloop.errors import GramLoopError
from gramloop.metrics.segmentation import count_pixels, mean_iou
from gramloop.mitigations import apply
from gramloop.mitigations.replay import REPLAYS, Replay
from gramloop.mitigations.stack import KINDS, parse_mitigations, stack_text
from gramloop.models.tiny import WEIGHTS
from gramloop.replay.config import Adaptive
from gramloop.shifts import CORRUPTIONS, EXTRA_CORRUPTIONS, PERTURBATIONS, corrupt, generator
from gramloop.shifts.geometry import warp_labels
from gramloop.tasks import open_model
from gramloop.tasks.depth import Depth
from gramloop.tasks.detection import Detection
from gramloop.tasks.semantic import Segmentation

REPLAY = "window=2-3,replays=1,strength=0.8"


@pytest.fixture
def bench(small_model: Path) -> Bench:
    return Bench(AppSettings((OfferedModel("small", {"folder": str(small_model)}),)))


@pytest.fixture(scope="module")
def picture() -> Picture:
    return Picture.of(scene(3, 96, "val").image)


def trial(picture: Picture, *texts: str, replay: str = REPLAY, **changes: object) -> Trial:
    wanted = {"shift": "c:impulse_noise", "severity": 3, "task": "semantic", **changes}
    return Trial(picture, "small", mitigations=mitigations_of(texts, replay), **wanted)  # type: ignore[arg-type]


def test_every_shift_is_offered_once_and_is_that_of_the_library() -> None:
    names, values = zip(*shift_choices(), strict=True)
    corruptions = [f"c:{name}" for name in (*CORRUPTIONS, *EXTRA_CORRUPTIONS)]
    assert values == ("none", *corruptions, *(f"p:{name}" for name in PERTURBATIONS))
    assert len(set(names)) == len(values) == 37
    image = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    shift = shift_of("c:gaussian_noise", 4)
    assert shift is not None
    found = shift.pixels(image, Record("abc", None, "abc", 48, 64))  # type: ignore[arg-type]
    wanted = corrupt(image, "gaussian_noise", 4, generator("image-c", "gaussian_noise", 4, "abc"))
    assert np.array_equal(found, wanted)
    assert shift_of("none", 4) is None


def test_every_mitigation_is_offered_ready_for_use() -> None:
    offered = mitigation_choices()
    assert {text.partition(":")[0] for text in offered} == {*KINDS, *REPLAYS}
    assert all(mitigations_of([text], REPLAY) for text in offered)


def test_mitigations_combine_and_a_bare_replay_takes_the_settings() -> None:
    found = mitigations_of(["replay", " denoise + levels "], REPLAY)
    assert stack_text(found) == f"denoise+levels+replay:{REPLAY}"
    assert parse_mitigations(stack_text(found)) == found  # what the page shows, commands take
    assert stack_text(mitigations_of(["replay:window=0-1"], REPLAY)) == "replay:window=0-1"
    assert mitigations_of([], REPLAY) == mitigations_of(["", " "], REPLAY) == ()
    (replay,) = mitigations_of(["replay"], "window=1-4,eps=1e-5,adaptive=noise:0.2:0.3")
    assert isinstance(replay, Replay)
    assert (replay.config.eps, replay.config.adaptive) == (1e-5, Adaptive("noise", 0.2, 0.3))


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("replay:/etc/passwd.json", "", "files cannot be named here"),
        ("replay:FOUND.JSON", "", "files cannot be named here"),
        ("../secret", "", "files cannot be named here"),
        ("median", "../secret", "files cannot be named here"),
        ("sunshine", "", "there is no mitigation 'sunshine'"),
        ("denoise+denoise", "", "given twice"),
        ("denoise+" * 100, "", "at most 400 characters"),
        ("median", "x" * 401, "at most 400 characters"),
        ("replay+gramloop", "", "given twice"),
        ("replay", "window=4-1", "window"),
        ("replay", "replays=1000000000", "replays"),
        ("replay", "colour=blue", "colour"),
        ("replay", "adaptive=luck:1:2", "adaptive"),
    ],
)
def test_wrong_mitigations_are_refused(text: str, settings: str, message: str) -> None:
    with pytest.raises(GramLoopError, match=message):
        mitigations_of([text], settings)


def test_only_what_changed_is_predicted(bench: Bench, picture: Picture) -> None:
    first = bench.run(trial(picture, "denoise", "replay"))
    again = bench.run(trial(Picture.of(picture.pixels.copy()), "denoise+replay"))
    assert again.baseline is first.baseline
    assert again.mitigated is first.mitigated
    other = bench.run(trial(picture, "median"))
    assert other.baseline is first.baseline
    assert other.mitigated is not first.mitigated


def test_a_replay_without_drift_runs_once_more_for_its_maps(bench: Bench, picture: Picture) -> None:
    outcome = bench.run(trial(picture, "ungated"))
    assert outcome.maps is not None
    assert outcome.mitigated is not None
    assert outcome.mitigated.prediction.trace is None  # the timed one measured nothing
    assert bench.run(trial(picture, "ungated", "flip")).maps is None


def test_predictions_are_those_of_the_library(bench: Bench, small_model: Path, picture: Picture) -> None:
    outcome = bench.run(trial(picture, "median", "replay"))
    predictor, pixels = open_model(str(small_model)), outcome.shifted.pixels
    baseline, clean = predictor.predict(pixels), predictor.predict(picture.pixels)
    mitigated = apply(f"median+replay:{REPLAY}", predictor).predict(pixels)
    assert isinstance(clean, Segmentation)
    assert np.array_equal(outcome.truth.indices, clean.labels)
    assert (baseline.labels != mitigated.labels).any()  # type: ignore[attr-defined]
    for found, wanted, score in zip(
        outcome.predictions, (baseline, mitigated), outcome.agreement(), strict=True
    ):
        assert isinstance(found, Segmentation)
        assert isinstance(wanted, Segmentation)
        assert np.array_equal(found.labels, wanted.labels)
        assert found.blocks == wanted.blocks
        counts = count_pixels(wanted.labels, clean.labels.astype(np.uint16), 32, 65535)
        assert score == pytest.approx(float(mean_iou(counts[:, counts[2] > 0])))


def test_the_clean_prediction_moves_with_the_pixels(bench: Bench, picture: Picture) -> None:
    from gramloop.app.trial import _record

    outcome = bench.run(trial(picture, shift="p:translate", severity=5))
    clean = bench.run(trial(picture, shift="none")).predictions[0]
    assert outcome.shift is not None
    assert isinstance(clean, Segmentation)
    matrix = outcome.shift.affine(_record(picture, outcome.shift))
    assert np.array_equal(outcome.truth.indices, warp_labels(clean.labels.astype(np.uint16), matrix, 65535))
    assert (outcome.truth.indices == 65535).any()


def test_threads_get_what_each_alone_gets(bench: Bench) -> None:
    others = [Picture.of(scene(index, 96, "val").image) for index in range(4, 8)]
    alone = {each.digest: bench.run(trial(each, "replay")) for each in others}
    fresh = Bench(bench.settings)
    together = {}

    def one(each: Picture) -> None:
        together[each.digest] = fresh.run(trial(each, "replay"))

    threads = [threading.Thread(target=one, args=(each,)) for each in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    for digest, outcome in alone.items():
        assert together[digest].agreement() == outcome.agreement()
        assert outcome.maps is not None
        assert np.array_equal(together[digest].maps.drift, outcome.maps.drift)  # type: ignore[union-attr]


def test_too_much_work_is_refused(small_model: Path, picture: Picture) -> None:
    settings = AppSettings((OfferedModel("small", {"folder": str(small_model)}),), limits=Limits(work=3))
    with pytest.raises(GramLoopError, match=r"takes \d+ times the work of a baseline pass; the limit is 3"):
        Bench(settings).run(trial(picture, "replay:replays=900,window=0-5"))
    assert Bench(settings).run(trial(picture, "flip")).mitigated is not None


@pytest.mark.parametrize(
    ("name", "task", "shift", "severity"),
    [
        ("other", "semantic", "none", 3),
        ("small", "depth", "none", 3),
        ("small", "panoptic", "none", 3),
        ("small", "no such", "none", 3),
        ("small", "semantic", "fog", 3),
        ("small", "semantic", "c:sunshine", 3),
        ("small", "semantic", "c:fog", 0),
        ("small", "semantic", "c:fog", 2.5),
        ("small", "semantic", "c:fog", None),
    ],
)
def test_other_choices_are_refused(
    bench: Bench, picture: Picture, name: str, task: str, shift: str, severity: object
) -> None:
    with pytest.raises(GramLoopError):
        bench.run(Trial(picture, name, task, shift, severity))


def test_boxes_and_depth_are_compared_too(picture: Picture) -> None:
    bench = Bench(AppSettings((OfferedModel("tiny", {"folder": str(WEIGHTS)}),)))
    assert bench.models["tiny"].tasks == ("semantic", "detection", "depth")
    for task, kind in (("detection", Detection), ("depth", Depth)):
        wanted = mitigations_of(["levels", "replay"], "window=6-6")
        outcome = bench.run(Trial(picture, "tiny", task, "c:contrast", 4, wanted))
        assert isinstance(outcome.baseline.prediction, kind)
        assert trial_html(outcome).count("<figure>") == 6
        assert all(0 <= score <= 100 for score in outcome.agreement())
    assert bench.run(Trial(picture, "tiny", "detection")).agreement() == [100]
