"""A trial computes what changed and nothing else, and what it shows is what the library computes."""

import threading
from pathlib import Path

import numpy as np
import pytest

from gramloop.app.choices import mitigations_of
from gramloop.app.panes import agreement_of, compared_image
from gramloop.app.settings import AppSettings, Limits, ModelSource
from gramloop.app.telling import say, scores, signals
from gramloop.app.trial import Bench, Trial
from gramloop.app.uploads import Picture
from gramloop.data.scenes.drawing import scene
from gramloop.errors import GramLoopError
from gramloop.metrics.miou import count_pixels, mean_iou
from gramloop.mitigations import apply
from gramloop.mitigations.pixels import noise_level
from gramloop.replay.config import ReplayConfig
from gramloop.shifts.geometry import warp_labels
from gramloop.tasks import open_model
from gramloop.tasks.depth import Depth
from gramloop.tasks.detection import Detection
from gramloop.tasks.semantic import Segmentation

REPLAY = ReplayConfig(window=(2, 3), replays=1, strength=0.8)


@pytest.fixture
def bench(small_model: Path) -> Bench:
    return Bench(AppSettings((ModelSource("small", {"folder": str(small_model)}),)))


@pytest.fixture(scope="module")
def picture() -> Picture:
    return Picture.of(scene(3, 96, "val").image)


def trial(picture: Picture, *texts: str, replay: ReplayConfig = REPLAY, **changes: object) -> Trial:
    wanted = {"shift": "c:impulse_noise", "severity": 3, "task": "semantic", **changes}
    return Trial(picture, "small", mitigations=mitigations_of(texts, replay), **wanted)  # type: ignore[arg-type]


def made(bench: Bench, wanted: Trial) -> dict[str, int]:
    """What one more trial computes, by kind."""
    before = bench.cache.computed.copy()
    say(bench.run(wanted), bench.cache)
    return dict(bench.cache.computed - before)


def test_only_what_changed_is_computed(bench: Bench, picture: Picture) -> None:
    first = trial(picture, "denoise", "replay")
    drawn = {"pictures": 1, "maps picture": 1}
    assert made(bench, first) == {"shift": 1, "look": 2, "ordinary": 1, "treated": 1, **drawn}
    assert made(bench, first) == {}
    again = trial(Picture.of(picture.pixels.copy()), "denoise+replay")  # another file of the same content
    assert made(bench, again) == {}
    stronger = trial(
        picture, "denoise", "replay", replay=ReplayConfig(window=(2, 3), replays=1, strength=0.4)
    )
    assert made(bench, stronger) == {"treated": 1, **drawn}
    assert made(bench, trial(picture, "median")) == {"treated": 1, "pictures": 1}
    severe = trial(picture, "denoise", "replay", severity=4)
    assert made(bench, severe) == {"shift": 1, "look": 1, "ordinary": 1, "treated": 1, **drawn}
    clean = trial(picture, "median", shift="none")
    assert made(bench, clean) == {
        "ordinary": 1,
        "treated": 1,
        "pictures": 1,
    }  # its look is known as the clean one
    detect = trial(picture, "median", task="detection")
    assert made(bench, detect) == {"look": 2, "ordinary": 1, "treated": 1, "pictures": 1}
    assert made(bench, first) == {}


def test_a_replay_without_drift_is_run_once_more_for_its_maps(bench: Bench, picture: Picture) -> None:
    plain = trial(picture, "ungated")
    assert made(bench, plain)["maps"] == 1
    outcome = bench.run(plain)
    assert outcome.maps is not None
    assert outcome.treated is not None
    assert outcome.treated.prediction.trace is None  # the one that was timed measured nothing
    assert bench.run(trial(picture, "ungated", "flip")).maps is None


def test_predictions_are_those_of_the_library(bench: Bench, small_model: Path, picture: Picture) -> None:
    outcome = bench.run(trial(picture, "median", "replay"))
    predictor = open_model(str(small_model))
    ordinary = predictor.predict(outcome.shown.pixels)
    treated = apply("median+replay:window=2-3,replays=1,strength=0.8", predictor).predict(
        outcome.shown.pixels
    )
    clean = predictor.predict(picture.pixels)
    assert isinstance(ordinary, Segmentation)
    assert isinstance(treated, Segmentation)
    assert isinstance(clean, Segmentation)
    row = compared_image(outcome)
    drawn = (*row.predictions, row.truth)
    for each, expected in zip(drawn, (ordinary, treated, clean), strict=True):
        assert isinstance(each, Segmentation)
        assert np.array_equal(each.labels, expected.labels)
    assert (ordinary.labels != treated.labels).any()  # otherwise the above would say little
    found = agreement_of(outcome)
    for shown, labels in ((found.baseline, ordinary.labels), (found.mitigated, treated.labels)):
        counts = count_pixels(labels, clean.labels.astype(np.uint16), 32, 65535)
        present = counts[:, counts[2] > 0]
        assert shown == pytest.approx(float(mean_iou(present)))
    table = scores(outcome)
    blocks = next(row for row in table.rows if row[0] == "blocks executed")
    assert blocks[1:3] == (str(ordinary.blocks), str(treated.blocks))
    noise = next(row for row in signals(outcome).rows if row[0] == "noise, grey levels")
    assert noise[1:] == (noise_level(picture.pixels), noise_level(outcome.shown.pixels))


def test_the_clean_prediction_moves_with_the_pixels(bench: Bench, picture: Picture) -> None:
    outcome = bench.run(trial(picture, shift="p:translate", severity=5))
    truth, clean = compared_image(outcome).truth, outcome.clean_look.prediction
    assert isinstance(truth, Segmentation)
    assert isinstance(clean, Segmentation)
    assert outcome.shift is not None
    from gramloop.app.trial import _record

    moved = warp_labels(
        clean.labels.astype(np.uint16), outcome.shift.affine(_record(picture, outcome.shift)), 65535
    )
    assert np.array_equal(truth.labels, np.where(moved == 65535, -1, moved.astype(np.int32)))
    assert (truth.labels == -1).any()
    assert agreement_of(outcome).mitigated is None


def test_signals_are_of_their_own_image(bench: Bench, picture: Picture) -> None:
    """Hooks hear every forward of a model, so that two at once would mix."""
    others = [Picture.of(scene(index, 96, "val").image) for index in range(4, 10)]
    alone = {each.digest: bench.run(trial(each, "median")).shown_look.signals for each in others}
    fresh = Bench(bench.settings)
    together: dict[str, object] = {}

    def one(each: Picture) -> None:
        together[each.digest] = fresh.run(trial(each, "median")).shown_look.signals

    threads = [threading.Thread(target=one, args=(each,)) for each in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert together == alone
    assert len({tuple(each["length"]) for each in alone.values()}) == len(others)


def test_work_without_end_is_refused(small_model: Path, picture: Picture) -> None:
    settings = AppSettings((ModelSource("small", {"folder": str(small_model)}),), limits=Limits(work=3))
    with pytest.raises(
        GramLoopError, match=r"takes \d+ times the work of the ordinary forward; up to 3 times"
    ):
        Bench(settings).run(trial(picture, "replay:replays=900,window=0-5"))
    assert Bench(settings).run(trial(picture, "flip")).treated is not None


@pytest.mark.parametrize(("name", "task"), [("other", "semantic"), ("small", "depth"), ("small", "panoptic")])
def test_models_and_tasks_that_there_are_not(bench: Bench, picture: Picture, name: str, task: str) -> None:
    with pytest.raises(GramLoopError):
        bench.run(Trial(picture, name, task))  # type: ignore[arg-type]


def test_boxes_and_depth_are_compared_too(picture: Picture) -> None:
    from gramloop.models.tiny import WEIGHTS

    bench = Bench(AppSettings((ModelSource("tiny", {"folder": str(WEIGHTS)}),)))
    assert bench.models.tasks("tiny") == ("semantic", "detection", "depth")
    replay = bench.models.open("tiny").replay
    for task, kind in (("detection", Detection), ("depth", Depth)):
        wanted = mitigations_of(["levels", "replay"], replay)
        outcome = bench.run(Trial(picture, "tiny", task, "c:contrast", 4, wanted))  # type: ignore[arg-type]
        assert isinstance(outcome.ordinary.prediction, kind)
        page = say(outcome, bench.cache)
        assert page.count("<figure>") == 6  # clean, shifted, clean prediction, both, maps
        found = agreement_of(outcome)
        assert 0 <= found.baseline <= 100
        if task == "depth":
            row = compared_image(outcome)
            (changes,) = row.changes(row.style())
            before, after = (f"{share:.1f}%" for share in (found.baseline, found.mitigated))
            assert changes.text == f"{before} of pixels within a factor of 1.25 become {after}"
    clean = bench.run(Trial(picture, "tiny", "detection"))
    assert agreement_of(clean).baseline == 100  # a prediction agrees with itself
    assert clean.treated is None
