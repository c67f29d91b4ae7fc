"""All predictors are one kind of thing: what they say about themselves is true, and their types leave nothing open."""

from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
import torch

from golden import load_golden
from gramloop import Adaptive, Cost, GramLoopError, ReplayConfig, counting
from gramloop.evaluate.methods import Method
from gramloop.evaluate.plan import Workload
from gramloop.evaluate.runner import Runner
from gramloop.mitigations.stack import Replay
from gramloop.models.detector import DETECTOR_BACKBONE
from gramloop.models.tiny import load_tiny
from gramloop.tasks.base import Categories, get_task
from gramloop.tasks.class_names import COCO
from gramloop.tasks.detection import Detection
from gramloop.tasks.loading import load_head
from gramloop.tasks.prediction import Pair
from gramloop.tasks.predictor import Predictor, check_replay
from gramloop.tasks.released import DenseDetector, DetectConfig
from gramloop.tasks.semantic import Segmentation, SegmentConfig, Segmenter

REPLAYS = {
    "method": ReplayConfig(window=(3, 4)),
    "three times": ReplayConfig(window=(1, 2), replays=3),
    "probe at the end": ReplayConfig(window=(2, 3), gate_at="end"),
    "probe between": ReplayConfig(window=(2, 3), gate_at=5),
    "ungated": ReplayConfig(window=(2, 4), gate="none"),
    "final": ReplayConfig(window=(2, 4), update_at="final"),
    "last blocks": ReplayConfig(window=(6, 7), gate="uniform", strength=0.5),
    "no replay": ReplayConfig(window=(2, 3), replays=0),
}


@pytest.fixture(scope="module")
def predictors(tmp_path_factory):
    folder = tmp_path_factory.mktemp("detector")
    weights = load_golden("detector").weights
    inside = {name: value for name, value in weights.items() if name.startswith(DETECTOR_BACKBONE)}
    backbone = {name.removeprefix(DETECTOR_BACKBONE): value for name, value in inside.items()}
    torch.save(backbone, folder / "backbone.pth")
    torch.save(
        {"model": {name: weights[name] for name in weights if name not in inside}}, folder / "head.pth"
    )
    tiny = load_tiny()
    config = DetectConfig(short_side=48)
    return {
        "segmenter": Segmenter(
            tiny.segmentor(),
            SegmentConfig(mode="whole", short_side=48),
            names=dict(enumerate(tiny.classes)),
        ),
        "dense detector": DenseDetector(tiny.backbone, tiny.detect, tiny.segment.taps[-1]),
        "detector": load_head(folder / "backbone.pth", folder / "head.pth", **vars(config)),
    }


@pytest.fixture(params=["segmenter", "dense detector", "detector"])
def predictor(request, predictors):
    return predictors[request.param]


@pytest.fixture(scope="module")
def image():
    return np.random.default_rng(0).integers(0, 256, (48, 48, 3), dtype=np.uint8)


def test_predictors_are_predictors(predictor, image):
    assert isinstance(predictor, Predictor)
    kind = {"semantic": Segmentation, "detection": Detection}[predictor.task]
    found = predictor.predict(image)
    assert isinstance(found, kind)
    pair = predictor.predict(image, REPLAYS["method"], paired=True)
    assert isinstance(pair, Pair)
    assert isinstance(pair.baseline, kind)
    assert isinstance(pair.replayed, kind)
    assert set(np.unique(found.labels)) <= set(predictor.classes)
    assert predictor.host.blocks == tuple(predictor.blocks)
    assert all(0 <= tap < predictor.host.depth for tap in predictor.taps)


@pytest.mark.parametrize("replay", REPLAYS.values(), ids=REPLAYS)
def test_what_a_predictor_costs_is_what_it_executes(predictor, image, replay):
    with counting(predictor.blocks) as counter:
        predictor.predict(image)
    views = counter.blocks // len(predictor.blocks)
    assert predictor.cost() == Cost(len(predictor.blocks), len(predictor.blocks))
    for paired in (False, True):
        with counting(predictor.blocks) as counter:
            found = predictor.predict(image, replay, paired=paired)
        said = predictor.cost(replay, paired)
        assert counter.blocks == views * said.blocks == views * found.blocks
        assert said.baseline == len(predictor.blocks)


def test_an_adaptive_replay_costs_no_more_than_is_said(predictor, image):
    replay = ReplayConfig(window=(2, 3), adaptive=Adaptive("noise", 1e9, 1e9))  # no image is that noisy
    assert predictor.predict(image, replay, paired=True).blocks == predictor.cost().blocks
    assert predictor.cost(replay).blocks > predictor.cost().blocks


def test_classes_have_names_where_they_are_known(predictors):
    assert predictors["segmenter"].classes[0] == "sky"
    assert list(predictors["dense detector"].classes) == list(range(1, 9))
    assert set(predictors["dense detector"].classes.values()) == {None}
    classes = predictors["detector"].classes
    assert list(classes) == list(range(91))
    assert {number: name for number, name in classes.items() if name is not None} == COCO


class Thresholding:
    """Somebody's function: no blocks, nothing to replay."""

    task = "semantic"
    classes = MappingProxyType({0: "dark", 1: "bright"})
    blocks = ()
    host = None
    taps = ()

    def cost(self, replay=None, paired=False):
        return Cost(1, 1)

    def predict(self, image, replay=None, paired=False, *, trace=None):
        if replay is not None:
            check_replay(self, replay)
        return Segmentation((np.asarray(image).mean(-1) > 127).astype(np.int32))


def test_a_model_without_blocks_predicts_and_refuses_to_replay(image):
    own = Thresholding()
    assert isinstance(own, Predictor)
    assert own.predict(image).labels.any()
    with pytest.raises(GramLoopError, match="Thresholding has no transformer blocks that could be replayed"):
        own.predict(image, ReplayConfig())
    assert not isinstance(lambda: own, Predictor)


class Mirrored:
    """A way to predict differently, around any segmenter: as in a mirror, at the same cost."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def predict(self, image, replay=None, paired=False, *, trace=None):
        found = self.inner.predict(image[:, ::-1].copy(), replay, paired=paired, trace=trace)
        turn = lambda one: replace(one, labels=one.labels[:, ::-1])  # noqa: E731
        return Pair(turn(found.baseline), turn(found.replayed)) if paired else turn(found)


def predicted(predictor, pixels, methods):
    """The predictions of methods, as an evaluation makes them."""
    task = get_task(predictor.task)
    workload = Workload("", task.name, Categories({}), lambda device: predictor, dict, lambda: task)
    return Runner(workload).predict(pixels, methods, False)


def test_a_predictor_around_another_is_evaluated_like_it(predictors, image):
    around, methods = (
        Mirrored(predictors["segmenter"]),
        [Method("baseline"), Method("late", (Replay(REPLAYS["method"]),))],
    )
    assert isinstance(around, Predictor)
    found = predicted(around, image, methods)
    inner = predicted(predictors["segmenter"], image[:, ::-1].copy(), methods)
    for name in ("baseline", "late"):
        assert np.array_equal(found[name].labels, inner[name].labels[:, ::-1])
        assert found[name].blocks == inner[name].blocks
    assert found["late"].blocks == around.cost(REPLAYS["method"], paired=True).blocks


def test_a_replay_is_checked_against_the_blocks(predictor):
    assert check_replay(predictor, ReplayConfig(window=(2, 3))).end == 3
    with pytest.raises(GramLoopError, match="reaches past the last block"):
        check_replay(predictor, ReplayConfig(window=(20, 21)))
