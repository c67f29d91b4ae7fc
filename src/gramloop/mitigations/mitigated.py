"""A predictor with mitigations, and mitigations attached to any torch module."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from gramloop.errors import GramLoopError
from gramloop.mitigations.base import Mitigation, ViewFunction
from gramloop.mitigations.calibration import CalibrationStats
from gramloop.mitigations.features import Norms, Recentre
from gramloop.mitigations.outputs import PairMean, predict_scaled, with_scores
from gramloop.mitigations.pixels import Denoise
from gramloop.mitigations.replay import Replay
from gramloop.mitigations.stack import Mitigations, Stack, read_stack, replay_of, stack_scales, stack_text
from gramloop.replay.attach import attach
from gramloop.replay.config import ReplayConfig
from gramloop.replay.cost import Cost
from gramloop.tasks.images import RGB
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import (
    AnyPredictor,
    Renumbered,
    WrappedPredictor,
    before_renumbering,
    check_replay,
)
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


def stack_cost(stack: Sequence[Mitigation], predictor: AnyPredictor) -> StackCost:
    """What the mitigations execute, at most; filters on pixels take time, but no block."""
    return Mitigated(tuple(stack), predictor).cost()


def check_stack(
    stack: Sequence[Mitigation], predictor: AnyPredictor, stats: CalibrationStats | None = None
) -> None:
    """Refuse mitigations that a predictor cannot take, or that do not work together."""
    for each in stack:
        each.check(before_renumbering(predictor), stack, stats)


def needs_calibration(stack: Sequence[Mitigation], predictor: AnyPredictor) -> bool:
    """Whether calibration statistics would change what a stack does, or are required by it."""
    learns = any(isinstance(each, Denoise) and each.level is None for each in stack)
    return learns or requires_calibration(stack, predictor)


def requires_calibration(stack: Sequence[Mitigation], predictor: AnyPredictor) -> bool:
    """Whether a stack cannot do without calibration statistics; ``denoise`` has a threshold to fall back on."""
    try:
        check_stack(stack, predictor)
    except GramLoopError:
        return True
    return False


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
    predictor: AnyPredictor | None = None,
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


class Mitigated(WrappedPredictor):
    """A `Predictor` around another; it always runs the replay that is among its mitigations."""

    def __init__(self, stack: Stack, predictor: AnyPredictor, stats: CalibrationStats | None = None) -> None:
        super().__init__(before_renumbering(predictor), predictor.classes)
        self.stack, self.stats, self._numbered = stack, stats, predictor
        self._replay = replay_of(stack)
        self._averages_pair = any(isinstance(each, PairMean) for each in stack)
        self._gives_scores = bool(getattr(getattr(self.predictor, "config", None), "scores", False))
        merges = len(stack_scales(stack)) > 1 or self._averages_pair
        self._scoring = with_scores(self.predictor) if merges else self.predictor

    def cost(self, replay: ReplayConfig | None = None, paired: bool = False) -> StackCost:
        """Blocks executed for one view of an image, over all forward passes."""
        self._check_pair(replay, paired)
        one, scales = (
            self.predictor.cost(replay or self._replay, self._both(paired)),
            stack_scales(self.stack),
        )
        area = sum(scale**2 for scale in scales) / len(scales)
        return StackCost(one.blocks * len(scales), one.baseline, area)

    def _both(self, paired: bool) -> bool:
        """Whether the baseline version is needed in addition to the replayed one."""
        return paired or self._averages_pair

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
        config, both = replay or self._replay, self._both(paired)

        def plain(images: Sequence[RGB], scale: float) -> list[list[Prediction]]:
            return predict_scaled(self._scoring, images, scale, config, both, trace)

        view: ViewFunction = plain
        with ExitStack() as attached:
            for each in self.stack:
                if each.stage == "pixels":
                    pixels = [each.filtered(image, self.stats) for image in pixels]
                elif each.stage == "features":
                    attached.enter_context(each.hooked(self.predictor, self.stats))
                elif each.stage == "outputs":
                    view = each.around(view, self.predictor)
            return [[self._finished(each) for each in versions] for versions in view(pixels, 1.0)]

    def _finished(self, found: Prediction) -> Prediction:
        """With the numbers asked for, and without scores that were needed for an average alone."""
        if isinstance(found, Segmentation) and self._scoring is not self.predictor and not self._gives_scores:
            found = replace(found, scores=None)
        return self._numbered.renumbered(found) if isinstance(self._numbered, Renumbered) else found
