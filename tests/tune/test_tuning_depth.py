"""Tuning on depth: what is measured of an image is its delta1, and a gain is the mean difference."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

import numpy as np
from torch import nn

from gramloop.data.records import LabelledImage
from gramloop.data.truth import DepthMap
from gramloop.metrics.depth import depth_scores
from gramloop.mitigations.replay import Replay
from gramloop.replay.config import ReplayConfig
from gramloop.replay.cost import Cost
from gramloop.tasks.depth import Depth
from gramloop.tasks.prediction import Pair
from gramloop.tune.search.bench import Bench, Trial
from gramloop.tune.search.plan import Options
from gramloop.tune.search.space import Space
from gramloop.tune.search.subject import subject_of
from gramloop.tune.search.tuning import tune

SIZE = 16


class Estimator:
    """Wrong by a factor that grows with the image's grey; a replay of block 2 makes it smaller."""

    task = "depth"
    classes = MappingProxyType[int, str]({})
    blocks: Sequence[nn.Module] = tuple(nn.Identity() for _ in range(6))
    host = None
    taps = ()

    def cost(self, replay=None, paired=False):
        return Cost(6 if replay is None else 8, 6)

    def predict(self, image, replay=None, paired=False, *, trace=None):
        true = np.linspace(2, 8, SIZE * SIZE).reshape(SIZE, SIZE)
        wrong = 1 + image[..., 0].astype(float) / 255 * np.linspace(0, 1, SIZE)
        ordinary = Depth((true * wrong).astype(np.float32))
        if replay is None:
            return ordinary
        better = 0.5 if replay.window == (2, 2) else 1.0
        found = Depth((true * (1 + better * (wrong - 1))).astype(np.float32))
        return Pair(ordinary, found) if paired else found


def _images(grey: int) -> list[LabelledImage]:
    truth = DepthMap(np.linspace(2, 8, SIZE * SIZE, dtype=np.float32).reshape(SIZE, SIZE))
    return [
        LabelledImage(f"{index}", np.full((SIZE, SIZE, 3), grey + index, np.uint8), truth)
        for index in range(12)
    ]


def test_a_trial_measures_delta1() -> None:
    images = _images(150)
    bench = Bench(subject_of(Estimator(), {"clean": _images(0), "fog/3": images}))
    config = ReplayConfig(window=(2, 2), replays=1)
    found = bench.run(Trial("fog/3", 3, "3", (0,), ((Replay(config),),)))
    pair = Estimator().predict(images[3].pixels, config, paired=True)
    assert found["ordinary"] == {"delta1": depth_scores(pair.ordinary.values, images[3].truth).delta1}
    assert found["replayed"] == [{"delta1": depth_scores(pair.replayed.values, images[3].truth).delta1}]


def test_what_cannot_be_scored_is_told() -> None:
    class Blind(Estimator):
        def predict(self, image, replay=None, paired=False, *, trace=None):
            flat = Depth(np.full((SIZE, SIZE), 3, np.float32), disparity=True)
            return Pair(flat, flat) if paired else flat

    bench = Bench(subject_of(Blind(), {"clean": _images(0), "fog/3": _images(150)}))
    found = bench.run(Trial("fog/3", 3, "3", (0,), ((Replay(ReplayConfig(window=(2, 2), replays=1)),),)))
    assert "no scale and shift can be fitted" in str(found["failed"])


def test_the_better_window_is_found() -> None:
    conditions = {
        f"{name}/3": _images(120 + 20 * step)
        for step, name in enumerate(("fog", "snow", "frost", "contrast"))
    }
    subject = subject_of(Estimator(), {"clean": _images(0), **conditions})
    found = tune(subject, space=Space.default(6, longest=1), budget=800, options=Options(clean_tolerance=3.0))
    assert found.config is not None
    assert found.config.window == (2, 2)
    assert found.outcome.chosen


def test_a_filter_is_tuned_on_depth() -> None:
    """A wrong depth of single dark pixels, which a median takes away."""

    class Spotted(Estimator):
        def predict(self, image, replay=None, paired=False, *, trace=None):
            true = np.linspace(2, 8, SIZE * SIZE).reshape(SIZE, SIZE)
            return Depth((true * np.where(image[..., 0] > 200, 1.0, 3.0)).astype(np.float32))

    def images(spots: int) -> list[LabelledImage]:
        rng = np.random.default_rng(0)
        made = []
        for one in _images(0)[:12]:
            pixels = np.full((SIZE, SIZE, 3), 255, np.uint8)
            pixels[tuple(rng.integers(1, SIZE - 1, (2, spots)))] = 0
            made.append(LabelledImage(one.image_id, pixels, one.truth))
        return made

    families = ("fog", "snow", "frost", "contrast")
    shown = {"clean": images(0), **{f"{name}/3": images(6 + n) for n, name in enumerate(families)}}
    space = Space(mitigations=["median", "gaussian:0.3"])
    found = tune(subject_of(Spotted(), shown), space=space, budget=300)
    assert found.mitigations == "median"
