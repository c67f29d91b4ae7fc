"""A predictor with mitigations, and mitigations attached to any torch module."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from torch import nn

from gramloop.errors import GramLoopError
from gramloop.mitigations.base import Mitigation, ViewFunction
from gramloop.mitigations.calibration import CalibrationStats
from gramloop.mitigations.feature_hooks import Hooks
from gramloop.mitigations.features import Norms, Recentre
from gramloop.mitigations.stack import (
    Mitigations,
    Replay,
    Stack,
    read_stack,
    replay_of,
    stack_scales,
    stack_text,
)
from gramloop.mitigations.views import PairMean, predict_scaled
from gramloop.replay.attach import attach
from gramloop.replay.config import Cost, ReplayConfig
from gramloop.tasks.base import get_task
from gramloop.tasks.images import RGB
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import (
    AnyPredictor,
    BasePredictor,
    check_replay,
    takes_batches,
)
from gramloop.tasks.semantic import Segmentation


def stack_cost(stack: Sequence[Mitigation], predictor: AnyPredictor) -> Cost:
    """What the mitigations execute, at most; filters on pixels take time, but no block."""
    return Mitigated(tuple(stack), predictor).cost()


def check_stack(
    stack: Sequence[Mitigation],
    predictor: AnyPredictor,
    stats: CalibrationStats | None = None,
    calibrates: bool = False,
) -> None:
    """Refuse mitigations that a predictor cannot take, or that do not work together.

    Args:
        stack: the mitigations.
        predictor: what predicts with them.
        stats: calibration statistics, if there are any.
        calibrates: whether they will be learnt before anything is predicted.
    """
    for each in stack:
        each.check(predictor, stack, stats)
        if each.calibration(predictor) == "required" and not calibrates:
            each.learnt(stats)


def needs_calibration(stack: Sequence[Mitigation], predictor: AnyPredictor, optional: bool = True) -> bool:
    """Whether a stack requires calibration statistics or, if ``optional`` ones count, would use them."""
    needs = {each.calibration(predictor) for each in stack}
    return "required" in needs or (optional and "optional" in needs)


def apply(
    mitigations: Mitigations,
    predictor: AnyPredictor,
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
    predictor: AnyPredictor | None = None,
) -> Hooks:
    """Attach replay, recentre and norms to a torch module until ``detach()`` or the end of a ``with`` statement.

    Args:
        model: any module with one ViT inside.
        mitigations: as `apply` takes them; those on pixels and outputs are no part of a model, and refused.
        stats: what `calibrate` returned for the model, or its file.
        this_thread: act in forwards of the calling thread alone.
        predictor: whose model it is, where its head is known.
    """
    stack, known = read_stack(mitigations, stats)
    with Hooks() as attached:  # undone where one is refused
        for each in stack:
            if isinstance(each, Replay):
                attached.enter_context(attach(model, each.config, this_thread=this_thread))
            elif isinstance(each, Recentre | Norms):
                attached.enter_context(each.hooked(predictor or model, known, this_thread))
            else:
                raise GramLoopError(
                    f"{each.text} acts on {each.stage}, which is not part of the model; gramloop.mitigations.apply takes it "
                    "with a predictor"
                )
        return attached.pop_all()


class Mitigated(BasePredictor[Prediction]):
    """A `Predictor` around another; it always runs the replay that is among its mitigations."""

    def __init__(self, stack: Stack, predictor: AnyPredictor, stats: CalibrationStats | None = None) -> None:
        self.predictor, self.stack, self.stats = predictor, stack, stats
        self.task, self.classes = predictor.task, predictor.classes
        self.blocks, self.host, self.taps = predictor.blocks, predictor.host, predictor.taps
        self.batches = takes_batches(predictor)
        self._replay = replay_of(stack)
        self._averages_pair = any(isinstance(each, PairMean) for each in stack)
        merges = len(stack_scales(stack)) > 1 or self._averages_pair
        scoring = getattr(predictor, "with_scores", lambda: predictor)  # labels alone cannot be averaged
        self._scoring: AnyPredictor = scoring() if merges else predictor
        gives_scores = bool(getattr(getattr(predictor, "config", None), "scores", False))
        self._drops_scores = self._scoring is not predictor and not gives_scores

    def cost(self, replay: ReplayConfig | None = None, paired: bool = False) -> Cost:
        """Blocks executed for one view of an image, over all forward passes."""
        self._check_pair(replay, paired)
        one = self.predictor.cost(replay or self._replay, paired or self._averages_pair)
        scales = stack_scales(self.stack)
        area = sum(scale**2 for scale in scales) / len(scales)
        return Cost(one.blocks * len(scales), one.baseline, area)

    def _check_pair(self, replay: ReplayConfig | None, paired: bool) -> None:
        if replay is not None and self._replay is not None:
            raise GramLoopError(f"{stack_text(self.stack)} contains a replay; leave out the other one")
        if paired and self._averages_pair:
            raise GramLoopError(f"{stack_text(self.stack)} averages the pair, so there is none to return")
        config = replay or self._replay
        if config is not None:
            check_replay(self.predictor, config)
        super()._check_pair(config, paired)

    def _batch_versions(
        self, pixels: Sequence[RGB], replay: ReplayConfig | None, paired: bool, trace: bool | None
    ) -> list[list[Prediction]]:
        config, both = replay or self._replay, paired or self._averages_pair

        view: ViewFunction = partial(predict_scaled, self._scoring, replay=config, paired=both, trace=trace)
        with ExitStack() as attached:
            for each in self.stack:
                if each.stage == "pixels":
                    pixels = [each.filtered(image, self.stats) for image in pixels]
                elif each.stage == "features":
                    attached.enter_context(each.hooked(self.predictor, self.stats))
                elif each.stage == "outputs":
                    view = partial(each.merged, view, get_task(self.task))
            found = view(pixels, 1.0)
        if self._drops_scores:  # that were needed for an average alone
            return [
                [replace(each, scores=None) if isinstance(each, Segmentation) else each for each in versions]
                for versions in found
            ]
        return found
