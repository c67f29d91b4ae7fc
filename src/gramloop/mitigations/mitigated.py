"""A predictor with mitigations, and mitigations attached to any torch module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, overload

from torch import nn

from gramloop.data.records import TaskName as Task
from gramloop.errors import GramLoopError
from gramloop.mitigations.base import Mitigation, Stage, View
from gramloop.mitigations.calibration import CalibrationStats, calibrate, placeholder_stats, read_stats
from gramloop.mitigations.features import Norms, Recentre
from gramloop.mitigations.outputs import PairMean, predict_scaled, with_scores
from gramloop.mitigations.pixels import Denoise
from gramloop.mitigations.replay import Replay
from gramloop.mitigations.stack import Mitigations, Stack, read_stack, replay_of, stack_scales, stack_text
from gramloop.replay.attach import attach
from gramloop.replay.config import ReplayConfig
from gramloop.replay.cost import Cost
from gramloop.replay.vit import ViT
from gramloop.tasks.class_names import Classes
from gramloop.tasks.images import RGB, ImageLike, read_image
from gramloop.tasks.prediction import Pair, Prediction
from gramloop.tasks.predictor import Predictor, check_replay
from gramloop.tasks.renumbering import Renumbered, before_renumbering
from gramloop.tasks.semantic import Segmentation
from gramloop.util.table import Cell


@dataclass(frozen=True)
class StackCost(Cost):
    """Blocks executed for one image, over all forward passes; ``area`` is that of an input, on average."""

    area: float = 1.0

    @property
    def multiplier(self) -> float:
        """Work per baseline forward: a block on an image of twice the area counts twice."""
        return self.area * self.blocks / self.baseline

    def _rows(self) -> tuple[tuple[Cell, ...], ...]:
        executed, baseline, share = super()._rows()
        return executed, baseline, ("area of an input, on average", f"{self.area:.2f}×"), ("work", share[1])


def stack_cost(stack: Sequence[Mitigation], predictor: Predictor[Prediction]) -> StackCost:
    """What the mitigations execute, at most; filters on pixels take time, but no block."""
    return Mitigated(tuple(stack), predictor).cost()


def check_stack(
    stack: Sequence[Mitigation], predictor: Predictor[Prediction], stats: CalibrationStats | None = None
) -> None:
    """Refuse mitigations that a predictor cannot take, or that do not work together."""
    for each in stack:
        each.check(before_renumbering(predictor), stack, stats)


def needs_calibration(stack: Sequence[Mitigation], predictor: Predictor[Prediction]) -> bool:
    """Whether calibration statistics would change what a stack does, or are required by it."""
    learns = any(isinstance(each, Denoise) and each.level is None for each in stack)
    return learns or requires_calibration(stack, predictor)


def requires_calibration(stack: Sequence[Mitigation], predictor: Predictor[Prediction]) -> bool:
    """Whether a stack cannot do without calibration statistics; ``denoise`` has a threshold to fall back on."""
    try:
        check_stack(stack, predictor)
    except GramLoopError:
        return True
    return False


def stats_for(
    stack: Sequence[Mitigation],
    predictor: Predictor[Prediction],
    given: CalibrationStats | str | Path | None = None,
    images: Callable[[], Iterable[ImageLike]] | None = None,
) -> CalibrationStats | None:
    """The calibration statistics for a stack: given ones, or learnt from in-distribution images if it needs some.

    Args:
        stack: the mitigations.
        predictor: what they are for.
        given: statistics or their file.
        images: opens in-distribution images that nothing is judged on (`split_for_calibration`).
    """
    if given is not None or images is None or not needs_calibration(stack, predictor):
        return read_stats(given)
    check_stack(stack, predictor, placeholder_stats(predictor, 1 << 30))  # what no statistics would allow
    return calibrate(predictor, images())


def apply(
    mitigations: Mitigations,
    predictor: Predictor[Prediction],
    stats: CalibrationStats | str | Path | None = None,
) -> Mitigated:
    """A predictor that predicts with the mitigations; the given one is not changed, and weights are shared.

    Args:
        mitigations: as text, such as ``median+recentre:0.3+gramloop``, as objects, or the file of `gramloop tune`.
        predictor: any; a mitigation that it cannot take is refused with the reason.
        stats: what `calibrate` returned, or its file, for mitigations that need it.
    """
    stack, known = read_stack(mitigations, stats)
    check_stack(stack, predictor, known)
    return Mitigated(stack, predictor, known)


def mitigate(
    model: nn.Module,
    mitigations: Mitigations,
    stats: CalibrationStats | str | Path | None = None,
    *,
    this_thread: bool = False,
) -> Attachment:
    """Attach replay, recentre and norms to a torch module until ``detach()`` or the end of a ``with`` statement.

    Args:
        model: any module with one ViT inside.
        mitigations: as `apply` takes them; those on pixels and outputs are no part of a model, and refused.
        stats: what `calibrate` returned for the model, or its file.
        this_thread: act in forwards of the calling thread alone.
    """
    stack, known = read_stack(mitigations, stats)
    return attach_stack(model, stack, known, this_thread=this_thread)


class Attachment(ExitStack):
    """What `mitigate` attached to a model."""

    def detach(self) -> None:
        """Remove all hooks: the model is what it was, to the bit."""
        self.close()


def attach_stack(
    model: nn.Module,
    stack: Stack,
    stats: CalibrationStats | None,
    *,
    predictor: Predictor[Prediction] | None = None,
    this_thread: bool = False,
) -> Attachment:
    """Attach a stack to a module, or to that of a predictor whose head is known."""
    attached = Attachment()
    try:
        for each in stack:
            if isinstance(each, Replay):
                attached.enter_context(attach(model, each.config, this_thread=this_thread))
            elif isinstance(each, Recentre | Norms):
                attached.enter_context(each.hooked(predictor or model, stats, this_thread))
            else:
                raise GramLoopError(
                    f"{each.text} acts on {each.stage}, which is not part of the model; gramloop.mitigations.apply takes it "
                    "with a predictor"
                )
    except BaseException:
        attached.close()
        raise
    return attached


class Mitigated:
    """A `Predictor` around another; it always runs the replay that is among its mitigations."""

    def __init__(
        self, stack: Stack, predictor: Predictor[Prediction], stats: CalibrationStats | None = None
    ) -> None:
        self.stack, self.stats = stack, stats
        self.plain, self._numbered = before_renumbering(predictor), predictor
        self._replay = replay_of(stack)
        self._averages_pair = any(isinstance(each, PairMean) for each in stack)
        self._gives_scores = bool(getattr(getattr(self.plain, "config", None), "scores", False))
        merges = len(stack_scales(stack)) > 1 or self._averages_pair
        self._scoring = with_scores(self.plain) if merges else self.plain

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
    def host(self) -> ViT | None:
        """The ViT of these blocks."""
        return self.plain.host

    @property
    def taps(self) -> tuple[int, ...]:
        """The blocks that the head reads."""
        return self.plain.taps

    def cost(self, replay: ReplayConfig | None = None, paired: bool = False) -> StackCost:
        """Blocks executed for one view of an image, over all forward passes."""
        config, both = self._chosen(replay, paired)
        one, scales = self.plain.cost(config, both), stack_scales(self.stack)
        area = sum(scale**2 for scale in scales) / len(scales)
        return StackCost(one.blocks * len(scales), one.baseline, area)

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
            replay: what to replay; only if no replay is among the mitigations.
            paired: also return the prediction with all mitigations but the replay.
            trace: return drift and gate; only of a single view.
        """
        config, both = self._chosen(replay, paired)
        pixels = read_image(image)
        view = self._view(config, both, trace)
        for each in self._stage("pixels"):
            pixels = each.filtered(pixels, self.stats)
        for each in self._stage("outputs"):
            view = each.around(view, self.plain)
        with self._hooked():
            versions = [self._finished(each) for each in view(pixels, 1.0)]
        return Pair(*versions) if paired else versions[-1]

    def _chosen(self, replay: ReplayConfig | None, paired: bool) -> tuple[ReplayConfig | None, bool]:
        """The replay that is run, and whether the baseline prediction is needed in addition."""
        if replay is not None and self._replay is not None:
            raise GramLoopError(f"{stack_text(self.stack)} contains a replay; leave out the other one")
        if paired and self._averages_pair:
            raise GramLoopError(f"{stack_text(self.stack)} averages the pair, so there is none to return")
        config = replay or self._replay
        if config is not None:
            check_replay(self.plain, config)
        elif paired:
            raise GramLoopError("a paired prediction needs a replay, such as ReplayConfig()")
        return config, paired or self._averages_pair

    def _stage(self, stage: Stage) -> Stack:
        return tuple(each for each in self.stack if each.stage == stage)

    def _hooked(self) -> AbstractContextManager[object]:
        attached = ExitStack()
        try:
            for each in self._stage("features"):
                attached.enter_context(each.hooked(self.plain, self.stats))
        except BaseException:
            attached.close()
            raise
        return attached

    def _view(self, config: ReplayConfig | None, paired: bool, trace: bool | None) -> View:
        def view(pixels: RGB, scale: float) -> list[Prediction]:
            return predict_scaled(self._scoring, pixels, scale, config, paired=paired, trace=trace)

        return view

    def _finished(self, found: Prediction) -> Prediction:
        """With the numbers asked for, and without scores that were needed for an average alone."""
        if isinstance(found, Segmentation) and self._scoring is not self.plain and not self._gives_scores:
            found = replace(found, scores=None)
        return self._numbered.renumbered(found) if isinstance(self._numbered, Renumbered) else found
