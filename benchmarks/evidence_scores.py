"""Scores of stored evaluations against several truths: labels, and four that need none.

Every prediction is in the folders that ``gramloop evaluate --pictures N`` wrote (boxes always, label maps with N at
least the number of images), so that nothing is predicted again. The truths:

    labels      the annotations
    clean       the baseline's prediction on the clean image, as ``--truth clean`` has it
    consensus   what most methods predict on the clean image: the commonest class of a pixel, or fused boxes
    self        the method's own prediction on the clean image
    guarded     the lesser of the gains by self and by consensus: a method that collapses agrees with itself alone
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gramloop.data.truth import Instances, PixelLabels
from gramloop.evaluate.store import Store, plan_in, read_condition
from gramloop.metrics.bootstrap import image_draws
from gramloop.tasks.base import Rows
from gramloop.tasks.detection import Detection, fuse_boxes
from gramloop.tasks.semantic import UNSCORED, Segmentation

BASELINE, CLEAN = "baseline", "clean"
TRUTHS = ("labels", "clean", "consensus", "self", "guarded")
TRUTH_SCORE = 0.5  # of boxes that count as objects, as in `gramloop evaluate`
REPLICATES = 500
Mask = NDArray[np.bool_]
Predicted = Detection | Segmentation


class Part:
    """One model on one set: the folder of its clean images, and that of its shifted ones."""

    def __init__(self, clean: Path, shifted: Path) -> None:
        stores = [Store(folder, plan_in(folder)) for folder in (clean, shifted)]
        self.task, self.classes = stores[0].task, stores[0].plan.classes
        self.methods = [method.name for method in stores[1].plan.methods]
        self.found = {}
        for store in stores:
            for key in store.plan.conditions:
                stored = read_condition(store, key)
                if stored is not None:
                    self.found[key] = stored
        self.conditions = [key for key in self.found if key != CLEAN]
        self.ids = self.found[CLEAN].image_ids
        for key, stored in self.found.items():
            if stored.failures or stored.image_ids != self.ids:
                raise SystemExit(f"{shifted}: {key} has other images than {clean}")
        self._scorers: dict[tuple[str, str, str], Callable[[NDArray[np.int64]], NDArray[np.float64]]] = {}

    def predictions(self, key: str, method: str) -> list[Predicted]:
        """Of all images, in order."""
        found = self.found[key].methods[method]
        if self.task.name == "detection":
            rows = found.table.select(["boxes", "scores", "labels"]).to_pylist()
            return [
                Detection(
                    np.array(row["boxes"], np.float32).reshape(-1, 4),
                    np.array(row["scores"], np.float32),
                    np.array(row["labels"], np.int64),
                )
                for row in rows
            ]
        decoded = [self.task.decode(row) for row in found.first(len(self.ids))]
        if any(each is None for each in decoded):
            raise SystemExit("run gramloop evaluate with --pictures N, N the number of images")
        return decoded

    @cache  # noqa: B019 - a part lives as long as the program
    def clean_truth(self, method: str) -> list[Instances | PixelLabels]:
        """The prediction of one method on clean images, or the consensus of all."""
        if method:
            return [self.task.as_truth(each, TRUTH_SCORE) for each in self.predictions(CLEAN, method)]
        every = zip(*(self.predictions(CLEAN, each) for each in self.methods), strict=True)
        return [self.task.as_truth(consensus(each), TRUTH_SCORE) for each in every]

    def score(self, key: str, method: str, truth: str, weights: NDArray[np.int64]) -> NDArray[np.float64]:
        """The main metric in percent for each row of weights, which say how often an image counts."""
        if (key, method, truth) not in self._scorers:
            self._scorers[key, method, truth] = self.task.scorer(self._rows(key, method, truth), self.classes)
        return self._scorers[key, method, truth](weights)

    def _rows(self, key: str, method: str, truth: str) -> Rows:
        if truth == "labels":
            return self.found[key].methods[method].rows
        reference = self.clean_truth({"clean": BASELINE, "consensus": "", "self": method}[truth])
        pairs = zip(self.predictions(key, method), reference, strict=True)
        return Rows.of([self.task.statistics(*pair, self.classes) for pair in pairs])


def consensus(predictions: Sequence[Predicted]) -> Predicted:
    """What most predictions of one image say; the first, the baseline's, wins a tie."""
    first = predictions[0]
    if isinstance(first, Detection):
        views = np.repeat(np.arange(len(predictions)), [len(each.scores) for each in predictions])
        boxes, scores, labels = (
            np.concatenate([getattr(each, name) for each in predictions])
            for name in ("boxes", "scores", "labels")
        )
        sure = scores >= TRUTH_SCORE / 2  # the rest cannot reach the threshold of a truth
        return Detection(*fuse_boxes(boxes[sure].astype(float), scores[sure].astype(float), labels[sure], views[sure], len(predictions)))  # fmt: skip
    stacked = np.stack([each.labels for each in predictions])
    best, most = stacked[0].copy(), (stacked == stacked[0]).sum(0)
    for other in np.unique(stacked):
        votes = (stacked == other).sum(0)
        best[votes > most], most = other, np.maximum(votes, most)
    return Segmentation(np.where(best == UNSCORED, 0, best).astype(np.int32))


@dataclass(frozen=True, eq=False)
class Study:
    """Parts that count alike: one detector on its photographs, or one backbone on three drives."""

    name: str
    parts: Sequence[Part]

    @cached_property
    def methods(self) -> list[str]:
        """All but the baseline that every part has."""
        common = [each for each in self.parts[0].methods if all(each in part.methods for part in self.parts)]
        return [each for each in common if each != BASELINE]

    @cached_property
    def conditions(self) -> list[str]:
        """The shifted ones that every part has."""
        return [key for key in self.parts[0].conditions if all(key in part.conditions for part in self.parts)]

    @cached_property
    def families(self) -> list[str]:
        """Of these conditions, in the order of the suite."""
        return list(dict.fromkeys(key.split("/")[0] for key in self.conditions))

    def keys(self, families: Sequence[str]) -> list[str]:
        """Conditions of some families; clean is one of its own."""
        return [key for key in (CLEAN, *self.conditions) if key.split("/")[0] in families]

    @cached_property
    def everything(self) -> list[Mask]:
        """All images of every part."""
        return [np.ones(len(part.ids), bool) for part in self.parts]

    def value(self, key: str, method: str, truth: str, images: Sequence[Mask]) -> float:
        """The mean of the parts' scores on some images."""
        pairs = [(part, mask) for part, mask in zip(self.parts, images, strict=True) if mask.any()]
        return float(
            np.mean([part.score(key, method, truth, mask[None].astype(np.int64))[0] for part, mask in pairs])
        )

    @cache  # noqa: B019
    def _gain(self, key: str, method: str, truth: str, packed: bytes) -> float:
        images = self._unpacked(packed)
        return self.value(key, method, truth, images) - self.value(key, BASELINE, truth, images)

    def _unpacked(self, packed: bytes) -> list[Mask]:
        ends = np.cumsum([len(part.ids) for part in self.parts])[:-1]
        return np.split(np.frombuffer(packed, bool), ends)

    def gain(self, key: str, method: str, truth: str, images: Sequence[Mask]) -> float:
        """Points over the baseline under one condition."""
        if truth == "guarded":
            return min(self.gain(key, method, each, images) for each in ("self", "consensus"))
        return self._gain(key, method, truth, np.concatenate(images).tobytes())

    def mean_gain(self, method: str, truth: str, images: Sequence[Mask], families: Sequence[str]) -> float:
        """The mean over the conditions of some families; guarded compares means, not conditions."""
        if truth == "guarded":
            return min(self.mean_gain(method, each, images, families) for each in ("self", "consensus"))
        return float(np.mean([self.gain(key, method, truth, images) for key in self.keys(families)]))

    def draws(self, method: str, images: Sequence[Mask], families: Sequence[str]) -> NDArray[np.float64]:
        """The gain by labels on these images, then on resamples of them, mean over conditions and parts."""
        found = []
        for number, (part, mask) in enumerate(zip(self.parts, images, strict=True)):
            if mask.any():
                found += [self._part_draws(number, part, mask, key, method) for key in self.keys(families)]
        return np.mean(found, axis=0)

    def _part_draws(self, number: int, part: Part, mask: Mask, key: str, method: str) -> NDArray[np.float64]:
        places = np.flatnonzero(mask)

        def delta(weights: NDArray[np.int64]) -> NDArray[np.float64]:
            whole = np.zeros((len(weights), len(mask)), np.int64)
            whole[:, places] = weights
            return part.score(key, method, "labels", whole) - part.score(key, BASELINE, "labels", whole)

        return image_draws(
            delta, len(places), replicates=REPLICATES, seed=100 + number, rows=part.task.draws_at_once
        )


def spread(values: Mapping[str, float]) -> dict[str, list[float]]:
    """One value of each family, as the bootstrap over families takes them."""
    return {name: [value] for name, value in values.items()}
