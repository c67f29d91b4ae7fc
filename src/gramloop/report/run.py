"""One results folder of an evaluation: its complete conditions, and the scores and costs that follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gramloop.data.suites import Condition, Suite, find_suite
from gramloop.evaluate.methods import BASELINE, Method
from gramloop.evaluate.plan import Plan, condition_of
from gramloop.evaluate.provenance import PlannedImages
from gramloop.evaluate.results import metrics_of
from gramloop.evaluate.rows import Failure
from gramloop.mitigations.stack import replay_of, stack_scales
from gramloop.tasks.base import AnyTask
from gramloop.util.files import load_checksums


@dataclass(frozen=True)
class ConditionResults:
    """One complete condition; arrays over classes follow the order of the plan's categories."""

    condition: Condition
    images: int
    scores: Mapping[str, Mapping[str, float]]  # method: metric: percent
    failures: tuple[Failure, ...] = ()
    classes: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)  # method: (K,) main metric
    labelled: NDArray[np.bool_] | None = None  # (K,) which classes the truth holds
    drift: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)  # method: (images,) after the gate
    blocks: Mapping[str, float] = field(default_factory=dict)  # method: blocks of all images, per view
    ids: tuple[str, ...] = ()  # (images,) of those that were scored, in order of position


@dataclass(frozen=True)
class Run:
    """One results folder: its plan, and every condition that is complete."""

    name: str  # in tables and headings; no two runs of a report share it
    folder: Path
    plan: Plan
    results: tuple[ConditionResults, ...]  # in the plan's order
    missing: Mapping[str, str] = field(default_factory=dict)  # condition: what is not there
    times: Mapping[str, float] = field(default_factory=dict)  # method: seconds of an image, measured alone

    @cached_property
    def suite(self) -> Suite:
        """The suite, of the built-in ones or over a custom data set."""
        return find_suite(self.plan.suite)

    @property
    def task(self) -> AnyTask:
        """The task of all predictions."""
        return self.plan.load_task()

    @cached_property
    def data(self) -> PlannedImages:
        """Its images; an error if the set is gone."""
        load_checksums(self.folder)
        return PlannedImages(self.plan)

    @property
    def key(self) -> str:
        """The name as part of file names."""
        kept = "".join(letter if letter.isalnum() else "-" for letter in self.name.lower())
        return "-".join(part for part in kept.split("-") if part)

    @property
    def metric(self) -> str:
        """The main metric, such as mIoU; without labels, agreement in it."""
        return metrics_of(self.plan)[0]

    @property
    def changes_only(self) -> bool:
        """Clean images without labels: scores say how far predictions change, which is no gain and no loss."""
        return self.plan.label_free and not self.shifted

    @property
    def truth_words(self) -> str:
        """What predictions are compared with."""
        return "clean predictions" if self.plan.label_free else "labels"

    @property
    def methods(self) -> tuple[str, ...]:
        """Names, the baseline first."""
        names = [method.name for method in self.plan.methods]
        return tuple(sorted(names, key=lambda name: name != BASELINE))

    @property
    def compared(self) -> tuple[str, ...]:
        """The methods that are compared with the baseline; none where it was not run."""
        names = self.methods
        return tuple(name for name in names if name != BASELINE) if BASELINE in names else ()

    @property
    def gated(self) -> tuple[str, ...]:
        """The methods with the Gram gate, in the plan's order."""
        replays = {method.name: method.replay for method in self.plan.methods}
        return tuple(name for name, replay in replays.items() if replay is not None and replay.gate == "gram")

    @property
    def main_replay(self) -> str:
        """The replay that figures show: gramloop, otherwise the first Gram-gated one; empty without the baseline."""
        gated = [name for name in self.gated if name in self.compared]
        return "gramloop" if "gramloop" in gated else (*gated, "")[0]

    @property
    def complete(self) -> bool:
        """Whether every condition of the plan is there with a score for every method."""
        return not self.missing and not self.unscored

    @property
    def unscored(self) -> tuple[str, ...]:
        """Conditions without a score, as when none of their images could be used."""
        return tuple(
            result.condition.key
            for result in self.results
            if not all(np.isfinite(values[self.metric]) for values in result.scores.values())
        )

    @property
    def shifted(self) -> tuple[Condition, ...]:
        """The conditions of the plan that are not clean."""
        conditions = (condition_of(key) for key in self.plan.conditions)
        return tuple(condition for condition in conditions if condition.name != "clean")

    @property
    def families(self) -> tuple[str, ...]:
        """Shifts of the plan, in its order."""
        return tuple(dict.fromkeys(condition.family for condition in self.shifted))

    @property
    def averaged(self) -> tuple[ConditionResults, ...]:
        """What means are over: the shifted conditions, or the clean one where there is no other."""
        shifted = tuple(result for result in self.results if result.condition.name != "clean")
        return shifted or self.results

    @property
    def scope(self) -> str:
        """What means are over, in words."""
        return f"averaged over {len(self.shifted)} shifted conditions" if self.shifted else "on clean images"

    def scores(self, method: str) -> dict[Condition, float]:
        """The main metric of every complete condition."""
        return {result.condition: result.scores[method][self.metric] for result in self.results}

    def score(self, method: str) -> float | None:
        """The suite's one number: mPC, COCO-O's mAP, or the score on clean images; None while incomplete."""
        if not self.complete:
            return None
        scores = self.scores(method)
        return float(np.mean([scores[condition] for condition in self.shifted or tuple(scores)]))

    def gain(self, method: str, other: str = BASELINE) -> float | None:
        """The difference of two methods in points; None while incomplete."""
        score, base = self.score(method), self.score(other)
        return None if score is None or base is None else score - base

    @property
    def score_title(self) -> str:
        """What that number is called."""
        if not self.shifted:
            return self.metric
        return f"m{self.metric}" if self.suite.kind == "o" else f"mPC ({self.metric})"

    @property
    def unlabelled(self) -> tuple[str, ...]:
        """Classes that the truth of no condition holds."""
        seen = [result.labelled for result in self.results if result.labelled is not None]
        if not seen:
            return ()
        anywhere: NDArray[np.bool_] = np.any(seen, axis=0)
        pairs = zip(self.plan.categories.values(), anywhere, strict=True)
        return tuple(name for name, present in pairs if not present)

    # cost

    @property
    def images(self) -> int:
        """Scored images, each once for every condition."""
        return sum(result.images for result in self.results)

    @cached_property
    def blocks(self) -> dict[str, float]:
        """Blocks executed by each method on all of them."""
        return {name: sum(result.blocks.get(name, 0.0) for result in self.results) for name in self.methods}

    def method(self, name: str) -> Method:
        """The method of a name."""
        return next(each for each in self.plan.methods if each.name == name)

    def work(self, name: str) -> float:
        """Blocks executed, each times the area it sees, relative to the baseline.

        Blocks are as counted, for a replay may decide image by image; by formula where diagnostics made it execute
        more than it needs.
        """
        method, depth, blocks = self.method(name), self.plan.model.depth, self.blocks
        sizes = stack_scales(method.stack)
        area = sum(size**2 for size in sizes) / len(sizes)
        replay = replay_of(method.stack)
        adaptive = replay is not None and replay.adaptive is not None
        if not blocks.get(name) or (self.plan.diagnostics and not adaptive):
            return area * method.blocks(depth) / depth
        return area * blocks[name] / (blocks.get(BASELINE) or depth * self.images)

    def time(self, name: str) -> float | None:
        """Seconds of an image relative to the baseline; None where one of them was not measured alone."""
        own, base = self.times.get(name), self.times.get(BASELINE)
        return None if own is None or not base else own / base
