"""Mitigations on features: forward hooks on the ViT inside any model, and on the batch norms of its head.

Recentring moves the mean of an image's patches back towards that of in-distribution images. With d the difference of
the two means, patches become z - w d; with c, only what exceeds c standard deviations s of in-distribution means is
taken back, channel by channel: z - w sign(d) max(|d| - c s, 0). No block is executed for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gramloop.errors import GramLoopError
from gramloop.mitigations.base import CalibrationNeed, Mitigation, Stats, setting
from gramloop.mitigations.feature_hooks import FeatureHooks, FeatureSource, Hooks, Place, feature_source
from gramloop.replay.vit import find_vit

if TYPE_CHECKING:
    from gramloop.mitigations.calibration import CalibrationStats
    from gramloop.tasks.predictor import AnyPredictor

MAX_DEVIATIONS = 1000


def patch_mean(patches: Tensor, valid: Tensor | None = None) -> Tensor:
    """The mean of an image's valid patches in float32, (B, N, C) -> (B, 1, C)."""
    if valid is None:
        return patches.float().mean(1, keepdim=True)
    valid = valid.to(patches.device)
    counted = torch.where(valid[..., None], patches.float(), 0.0)
    return counted.sum(1, keepdim=True) / valid.sum(1)[:, None, None].clamp(min=1)


@dataclass(frozen=True)
class Recentre(Mitigation):
    """Moves the mean of an image's patches a share ``weight`` back towards the in-distribution mean.

    beyond: c; only what exceeds so many standard deviations of in-distribution means is moved.
    """

    weight: float = setting(0, 1, 1.0)
    beyond: float | None = setting(0, MAX_DEVIATIONS, None, mark="c")

    name = "recentre"
    stage = "features"
    usage = "a weight, such as recentre:0.3, or c, such as recentre:c=1"
    learns = "means"

    @property
    def arguments(self) -> str:
        return super().arguments or f"{self.weight:g}"

    def calibration(self, predictor: AnyPredictor) -> CalibrationNeed:
        own = self._own_means(predictor, feature_source(predictor, self.name))
        return "required" if own is None else ""

    def check(self, predictor: AnyPredictor, stack: Sequence[Mitigation], stats: Stats) -> None:
        source = feature_source(predictor, self.name)
        if stats is not None:
            stats.check(source)
        replayed = any(each.stage == "backbone" for each in stack)
        if (
            replayed
            and stats is not None
            and stats.at == "blocks"
            and min(stats.means) < source.vit.depth - 1
        ):
            raise GramLoopError(
                f"{self.text} changes the output of block {min(stats.means)} of this model, whose head does not read patches "
                "itself, and a replay runs through the same blocks; leave out one of them"
            )

    def hooked(
        self,
        model: object,
        stats: Stats,
        this_thread: bool = True,
        source: FeatureSource | None = None,
    ) -> Hooks:
        source = source or feature_source(model, self.name)
        if stats is not None:
            stats.check(source)
        own = self._own_means(model, source)
        means: Mapping[int, Tensor] = self.learnt(stats) if own is None else own
        spreads = {} if stats is None else stats.spreads
        if self.weight == 0:
            return Hooks()

        def change(tap: int, patches: Tensor, valid: Tensor | None) -> Tensor:
            away = patch_mean(patches, valid) - means[tap].to(patches.device)
            return self.moved(patches, away, spreads.get(tap))

        at: Place = "norm" if stats is None or not stats.means else stats.at
        hooks = FeatureHooks(source, at, source.taps or tuple(means), change, this_thread=this_thread)
        hooks.text = self.text
        return hooks

    def moved(self, patches: Tensor, away: Tensor, spread: Tensor | None = None) -> Tensor:
        """Patches (B, N, C) whose mean lies ``away`` (B, 1, C) from the in-distribution one, recentred."""
        if self.beyond is not None and spread is not None:
            limit = self.beyond * spread.to(patches.device)
            away = away.sign() * (away.abs() - limit).clamp(min=0)
        return patches - (self.weight * away).to(patches.dtype)

    def _own_means(self, model: object, source: FeatureSource) -> dict[int, Tensor] | None:
        """What the head's own batch norm has, which is enough for a weight alone."""
        return None if self.beyond is not None else batch_norm_means(model, source)


def batch_norm_means(model: object, source: FeatureSource) -> dict[int, Tensor] | None:
    """The mean (C,) of each tap on the head's training images; None where no batch norm on its taps holds it.

    A head has one norm per tap, or begins with one over its concatenated taps.
    """
    head = getattr(getattr(model, "model", model), "head", None)
    if source.backbone is None or head is None:
        return None
    norms = getattr(head, "tap_norms", None) or (getattr(head, "bn", None),)
    means = [norm.running_mean for norm in norms if isinstance(norm, _BatchNorm)]
    known = [mean.float() for mean in means if mean is not None]
    width = source.backbone.shape.width
    if sum(len(mean) for mean in known) != width * len(source.taps):
        return None
    parts = torch.cat(known).reshape(len(source.taps), width)
    return dict(zip(source.taps, parts, strict=True))


def recentre(
    model: nn.Module,
    stats: CalibrationStats | str | Path,
    how: Recentre | float | str = "c=1",
    *,
    this_thread: bool = False,
    **description: Any,
) -> Hooks:
    """Recentre the patches that the head of a model reads, until ``detach()`` or the end of a ``with`` statement.

        stats = gramloop.calibrate(model, batches)     # in-distribution images, no labels
        with gramloop.recentre(model, stats, "c=2"):
            model(batch)

    Args:
        model: any model with one ViT inside.
        stats: what `gramloop.calibrate` returned for it, or the file that it was saved to.
        how: a weight (0.3), a text ("c=1", "0.5,c=1") or a `Recentre`.
        this_thread: act in forwards of the calling thread alone.
        description: ``blocks``, ``norm``, ``prefix``, ``which``, for ViTs that `gramloop.attach` needs them for.

    Returns:
        The hooks. Their ``valid`` may be set to a mask of the patches that are image and not padding.
    """
    from gramloop.mitigations.calibration import read_stats

    if isinstance(how, str):
        how = Recentre.parse(how)
    elif not isinstance(how, Recentre):
        how = Recentre(how)
    source = feature_source(model, "recentre", **description)
    return how.hooked(model, read_stats(stats), this_thread, source)


@dataclass(frozen=True)
class Norms(Mitigation):
    """Mixes a share ``weight`` of each image's own mean into the running mean of every batch norm outside the ViT."""

    weight: float = setting(0, 1)

    name = "norms"
    stage = "features"
    usage = "a weight, such as norms:0.3"

    def check(self, predictor: AnyPredictor, stack: Sequence[Mitigation], stats: Stats) -> None:
        if not batch_norms(predictor):
            raise GramLoopError(
                f"{self.text} acts on batch norms of a head, and none with a running mean was found in {getattr(predictor, 'name', type(predictor).__name__)}"
            )

    def hooked(self, predictor: object, stats: Stats, this_thread: bool = True) -> Hooks:
        if self.weight == 0:
            return Hooks()
        hooks = Hooks(this_thread)
        mixed = partial(self._mixed, hooks)
        hooks.register(*((norm.register_forward_pre_hook, mixed) for norm in batch_norms(predictor)))
        return hooks

    def _mixed(self, hooks: Hooks, norm: nn.Module, args: tuple[Any, ...]) -> tuple[Tensor] | None:
        given, mean = args[0], norm.running_mean
        assert isinstance(given, Tensor)
        assert isinstance(mean, Tensor)
        if not hooks.listens or given.ndim < 3:  # one value per channel is its own mean
            return None
        places = tuple(range(2, given.ndim))
        usual = mean.view(1, -1, *(1 for _ in places))
        away = given.float().mean(places, keepdim=True) - usual
        return (given - (self.weight * away).to(given.dtype),)


def batch_norms(model: object) -> list[_BatchNorm]:
    """The batch norms with a running mean in a module, or in the modules of a predictor, outside its ViT."""
    if isinstance(model, nn.Module) and not hasattr(model, "host"):
        parts = [model]
        kept: list[object] = [find_vit(model).module]
    else:
        parts = [each for each in vars(model).values() if isinstance(each, nn.Module)]
        vit = getattr(model, "host", None)
        kept = [vit and vit.module, getattr(model, "backbone", None)]
    inside = {module for each in kept if isinstance(each, nn.Module) for module in each.modules()}
    found = dict.fromkeys(module for part in parts for module in part.modules() if module not in inside)
    return [each for each in found if isinstance(each, _BatchNorm) and each.running_mean is not None]
