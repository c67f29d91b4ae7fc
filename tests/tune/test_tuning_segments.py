"""Tuning on segments and masks: what is measured are PQ's statistics, or how masks were matched."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

import numpy as np
import pytest
from torch import nn

from gramloop.data.records import LabelledImage
from gramloop.metrics.ap import mask_average_precision
from gramloop.metrics.matching import match_masks
from gramloop.metrics.panoptic import mean_quality, panoptic_statistics
from gramloop.mitigations.replay import Replay
from gramloop.replay.config import ReplayConfig
from gramloop.replay.cost import Cost
from gramloop.tasks.instance import InstanceMasks, object_masks
from gramloop.tasks.panoptic import Panoptic, Segment, segment_map
from gramloop.tasks.prediction import Pair
from gramloop.tune.search.bench import Bench, Trial
from gramloop.tune.search.plan import Options
from gramloop.tune.search.segments import segment_score
from gramloop.tune.search.space import Space
from gramloop.tune.search.subject import subject_of
from gramloop.tune.search.tuning import tune

SIZE, HALF = 24, 12


def prediction(task: str, edge: int) -> Panoptic | InstanceMasks:
    """One object from the left to an edge; in the truth that is the middle."""
    left = np.zeros((SIZE, SIZE), np.bool_)
    left[:, :edge] = True
    if task == "instance":
        return InstanceMasks.from_masks(left[None], np.array([0.9]), np.array([1]))
    segments = np.where(left, 1, 2).astype(np.int32)
    return Panoptic(segments, (Segment(1, 1, True, 0.9), Segment(2, 2, False, 0.9)))


class Segmenter:
    """The edge strays with the image's grey; a replay of block 2 makes that less."""

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
        ordinary = prediction(self.task, HALF + wrong)
        if replay is None:
            return ordinary
        found = prediction(self.task, HALF + (wrong // 2 if replay.window == (2, 2) else wrong))
        return Pair(ordinary, found) if paired else found


def images(task: str, grey: int) -> list[LabelledImage]:
    found = prediction(task, HALF)
    truth = segment_map(found) if isinstance(found, Panoptic) else object_masks(found)
    return [
        LabelledImage(f"{index}", np.full((SIZE, SIZE, 3), grey + index, np.uint8), truth)
        for index in range(12)
    ]


def test_a_trial_measures_the_statistics_of_its_image() -> None:
    config = ReplayConfig(window=(2, 2), replays=1)
    trial = Trial("fog/3", 3, "3", (0,), ((Replay(config),),))
    shown = images("panoptic", 150)
    bench = Bench(subject_of(Segmenter("panoptic"), {"clean": images("panoptic", 0), "fog/3": shown}))
    found = bench.run(trial)
    expected = panoptic_statistics(segment_map(prediction("panoptic", 16)), shown[3].truth, [1, 2])
    assert found["ordinary"] == {"quality": expected.tolist()}
    score = segment_score("panoptic", [1, 2], [found["ordinary"]])  # type: ignore[list-item]
    assert score(np.ones((1, 1), np.int64))[0] == mean_quality(expected)[0]
    masks = images("instance", 150)
    bench = Bench(subject_of(Segmenter("instance"), {"clean": images("instance", 0), "fog/3": masks}))
    found = bench.run(trial)
    seen = prediction("instance", 16)
    matches = match_masks(masks[3].truth, seen.masks, seen.scores, seen.labels, [1, 2])  # type: ignore[union-attr, arg-type]
    score = segment_score("instance", [1, 2], [found["ordinary"]])  # type: ignore[list-item]
    assert score(np.ones((1, 1), np.int64))[0] == mask_average_precision(matches, [1, 2], 1).ap


@pytest.mark.parametrize("task", ["panoptic", "instance"])
def test_the_better_window_is_found(task: str) -> None:
    conditions = {
        f"{name}/3": images(task, 100 + 20 * step)
        for step, name in enumerate(("fog", "snow", "frost", "contrast"))
    }
    subject = subject_of(Segmenter(task), {"clean": images(task, 0), **conditions})
    found = tune(subject, space=Space.default(6, longest=1), budget=800, options=Options(clean_tolerance=3.0))
    assert found.config is not None
    assert found.config.window == (2, 2)
    assert found.outcome.chosen
