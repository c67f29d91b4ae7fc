"""A predictor with mitigations: pixels are treated once, then every look runs through backbone and features.

Stages act in the order pixels → backbone → features → outputs. The given predictor is not changed, and weights
are shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, overload

from torch import nn

from gramloop.core.config import ReplayConfig
from gramloop.core.cost import Cost
from gramloop.core.hosts import Host
from gramloop.data.records import Task
from gramloop.errors import GramLoopError
from gramloop.mitigations.files import read_mitigations
from gramloop.mitigations.mitigation import Look, Mitigation, Stage
from gramloop.mitigations.outputs import PairMean
from gramloop.mitigations.replay import Replay
from gramloop.mitigations.scaling import brought_back, scaled, shown, with_scores
from gramloop.mitigations.source import Source
from gramloop.mitigations.texts import names_mitigations, ordered, parse_mitigations, stack_text
from gramloop.tasks.class_names import Classes
from gramloop.tasks.images import RGB, ImageLike, read_image
from gramloop.tasks.prediction import Pair, Prediction
from gramloop.tasks.predictor import Predictor, check_replay
from gramloop.tasks.renumbering import Renumbered, before_renumbering
from gramloop.tasks.semantic import Segmentation
from gramloop.util.table import Cell


@dataclass(frozen=True)
class StackCost(Cost):
    """Blocks executed for one view of an image, over all looks at it; ``area`` is a look's size, on average."""

    area: float = 1.0

    @property
    def multiplier(self) -> float:
        """Work per that of the ordinary forward: a block on an image of twice the area counts twice."""
        return self.area * self.blocks / self.ordinary

    def _rows(self) -> tuple[tuple[Cell, ...], ...]:
        executed, ordinary, share = super()._rows()
        return executed, ordinary, ("size of a look, on average", f"{self.area:.2f}×"), ("work", share[1])


def apply(
    mitigations: str | Sequence[Mitigation],
    predictor: Predictor[Prediction],
    source: Source | None = None,
) -> Mitigated:
    """A predictor that predicts with the mitigations.

    Args:
        mitigations: as text, such as ``median+recentre:0.3+gramloop``, as objects, or the file of `gramloop tune`.
        predictor: any; where a mitigation makes no sense for it, one sentence says why.
        source: what ordinary images look like, where a mitigation needs to know; a file brings its own.
    """
    if isinstance(mitigations, str) and mitigations.endswith(".json") and not names_mitigations(mitigations):
        stored = read_mitigations(mitigations)
        mitigations, source = stored.stack, source or stored.read_source()
    stack = parse_mitigations(mitigations) if isinstance(mitigations, str) else ordered(mitigations)
    check_stack(stack, predictor, source)
    return Mitigated(stack, predictor, source)


def check_stack(
    stack: Sequence[Mitigation], predictor: Predictor[Prediction], source: Source | None = None
) -> None:
    """Refuse mitigations that make no sense for a predictor, or beside each other."""
    for each in stack:
        each.check(before_renumbering(predictor), stack, source)


def stack_cost(stack: Sequence[Mitigation], predictor: Predictor[Prediction]) -> StackCost:
    """What the mitigations execute, at most; filters on pixels take time, but no block."""
    return Mitigated(tuple(stack), predictor).cost()


def looks_of(stack: Sequence[Mitigation]) -> list[float]:
    """The sizes of all looks at an image."""
    sizes = [1.0]
    for each in stack:
        sizes = [size * factor for size in sizes for factor in each.sizes]
    return sizes


def replay_of(stack: Sequence[Mitigation]) -> ReplayConfig | None:
    """The replay among the mitigations, if there is one."""
    return next((each.config for each in stack if isinstance(each, Replay)), None)


class Mitigated:
    """A `Predictor` around another; a replay among its mitigations is what it always runs."""

    def __init__(
        self, stack: tuple[Mitigation, ...], predictor: Predictor[Prediction], source: Source | None = None
    ) -> None:
        self.stack, self.source = stack, source
        self.plain, self._numbered = before_renumbering(predictor), predictor
        self._replay = replay_of(stack)
        self._pairs = any(isinstance(each, PairMean) for each in stack)

    @property
    def task(self) -> Task:
        """What is predicted."""
        return self.plain.task

    @property
    def classes(self) -> Classes:
        """The numbers in its predictions."""
        return self._numbered.classes

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """The transformer blocks, first to last."""
        return self.plain.blocks

    @property
    def host(self) -> Host | None:
        """The ViT whose blocks these are."""
        return self.plain.host

    @property
    def taps(self) -> tuple[int, ...]:
        """The blocks that the head reads."""
        return self.plain.taps

    def cost(self, replay: ReplayConfig | None = None, paired: bool = False) -> StackCost:
        """Blocks executed for one view of an image, over all looks at it."""
        config, both = self._chosen(replay, paired)
        one, sizes = self.plain.cost(config, both), looks_of(self.stack)
        return StackCost(one.blocks * len(sizes), one.ordinary, sum(size**2 for size in sizes) / len(sizes))

    @overload
    def predict(
        self,
        image: ImageLike,
        replay: ReplayConfig | None = ...,
        paired: Literal[False] = ...,
        *,
        trace: bool | None = ...,
    ) -> Prediction: ...

    @overload
    def predict(
        self,
        image: ImageLike,
        replay: ReplayConfig | None = ...,
        *,
        paired: Literal[True],
        trace: bool | None = ...,
    ) -> Pair[Prediction]: ...

    def predict(
        self,
        image: ImageLike,
        replay: ReplayConfig | None = None,
        paired: bool = False,
        *,
        trace: bool | None = None,
    ) -> Prediction | Pair[Prediction]:
        """Predict an image with the mitigations.

        Args:
            image: a path, a PIL image or an array.
            replay: what to replay; only where no replay is among the mitigations.
            paired: also return the prediction with all mitigations but the replay.
            trace: return drift and gate; only where one look is taken.
        """
        config, both = self._chosen(replay, paired)
        look = self._look(config, both, trace)
        for each in (*self._stage("outputs"), *reversed(self._stage("pixels"))):  # the last one acts first
            look = each.around(look, self.source)
        versions = [self._finished(each) for each in look(read_image(image), 1.0)]
        return Pair(*versions) if paired else versions[-1]

    def reset(self) -> None:
        """Forget the images that were predicted, where a mitigation carries something on from them."""
        vars(self).pop("_prepared", None)

    def _chosen(self, replay: ReplayConfig | None, paired: bool) -> tuple[ReplayConfig | None, bool]:
        """The replay that is run, and whether the ordinary version is needed beside it."""
        if replay is not None and self._replay is not None:
            raise GramLoopError(f"{stack_text(self.stack)} has its replay already; leave out the other")
        if paired and self._pairs:
            raise GramLoopError(f"{stack_text(self.stack)} averages the pair, so there is none to return")
        if paired and any(each.carries_state for each in self.stack):
            raise GramLoopError(
                f"{stack_text(self.stack)} follows one version of each image, and a pair has two"
            )
        config = replay or self._replay
        if config is not None:
            check_replay(self.plain, config)
        elif paired:
            raise GramLoopError("a paired prediction needs a replay, such as ReplayConfig()")
        return config, paired or self._pairs

    def _stage(self, stage: Stage) -> tuple[Mitigation, ...]:
        return tuple(each for each in self.stack if each.stage == stage)

    @cached_property
    def _prepared(self) -> Predictor[Prediction]:
        """The predictor with its features treated, and with scores where there is something to average."""
        predictor = self.plain
        if len(looks_of(self.stack)) > 1 or self._pairs:
            predictor = with_scores(predictor)
        for each in self.stack:
            predictor = each.prepare(predictor, self.source)
        return predictor

    def _look(self, config: ReplayConfig | None, paired: bool, trace: bool | None) -> Look:
        def look(pixels: RGB, size: float) -> list[Prediction]:
            predictor, seen = scaled(self._prepared, size), shown(self.plain, pixels, size)
            if paired:
                pair = predictor.predict(seen, config, paired=True, trace=trace)
                versions = [pair.ordinary, pair.replayed]
            else:
                versions = [predictor.predict(seen, config, trace=trace)]
            return [brought_back(each, seen, pixels) for each in versions]

        return look

    def _finished(self, found: Prediction) -> Prediction:
        """With the numbers that were asked for; scores that were needed for an average alone are not returned."""
        kept = self._without_scores(found)
        return self._numbered.renumbered(kept) if isinstance(self._numbered, Renumbered) else kept

    def _without_scores(self, found: Prediction) -> Prediction:
        if not isinstance(found, Segmentation) or self._prepared is self.plain or self._scored:
            return found
        return replace(found, scores=None)

    @cached_property
    def _scored(self) -> bool:
        return bool(getattr(getattr(self.plain, "config", None), "scores", False))
