"""Recentring: the mean of an image's patches, at the taps a head reads, moved back towards that of ordinary images.

With d the difference of the two means, patches become z - w d. Or, with ``c``, only what lies beyond c standard
deviations of ordinary images' own means is taken back, channel by channel: z - w sign(d) max(|d| - c s, 0), which
leaves ordinary images nearly alone. No block is executed for it. Each view of an image (the whole of it, or one
window) has its own mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from gramloop.errors import GramLoopError
from gramloop.mitigations.mitigation import Mitigation, number
from gramloop.mitigations.source import Source, TapChange, check_taps, with_taps
from gramloop.models.taps import Tap
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor, ViTPredictor


@dataclass(frozen=True)
class Recentre(Mitigation):
    """A share ``weight`` of the way back; with ``beyond``, only what exceeds so many standard deviations."""

    weight: float
    beyond: float | None = None

    name = "recentre"
    stage = "features"

    @classmethod
    def parse(cls, arguments: str) -> Self:
        """``recentre:0.3``, ``recentre:c=1`` or both, ``recentre:0.5,c=1``."""
        parts = [part.strip() for part in arguments.split(",")] if arguments else []
        limits = [part.removeprefix("c=") for part in parts if part.startswith("c=")]
        weights = [part for part in parts if not part.startswith("c=")]
        if not parts or len(limits) > 1 or len(weights) > 1:
            raise GramLoopError(
                f"recentre takes a weight, such as recentre:0.3, or c, such as recentre:c=1, not {arguments!r}"
            )
        weight = number("recentre's weight", weights[0], 0, 1) if weights else 1.0
        return cls(weight, number("recentre's c", limits[0], 0, 1000) if limits else None)

    @property
    def arguments(self) -> str:
        """Weight and c, each where it says something."""
        limit = [] if self.beyond is None else [f"c={self.beyond:g}"]
        weight = [f"{self.weight:g}"] if not limit or self.weight != 1 else []
        return ",".join([*weight, *limit])

    def check(
        self, predictor: Predictor[Prediction], stack: Sequence[Mitigation], source: Source | None
    ) -> None:
        """It needs a head on taps, and to know what ordinary images look like there."""
        vit = check_taps(predictor, self.name)
        if source is not None:
            source.check(vit)
        elif self.beyond is not None:
            raise GramLoopError(
                f"{self.text} needs the spread of ordinary images; calibrate on a few dozen and give their source"
            )
        elif head_norm(vit) is None:
            raise GramLoopError(
                f"{self.text} needs the mean of ordinary images, which this head, without a batch norm on its taps, "
                "does not hold; calibrate on a few dozen and give their source"
            )

    def prepare(self, predictor: Predictor[Prediction], source: Source | None) -> Predictor[Prediction]:
        """The predictor whose head sees recentred taps; weight 0 is the predictor itself."""
        if self.weight == 0:
            return predictor
        vit = check_taps(predictor, self.name)
        means: Mapping[int, Tensor] | None = None if self.beyond is not None else norm_means(vit)
        if means is None and source is not None:
            means = source.means
        if means is None:
            raise GramLoopError(f"{self.text} needs the source statistics of ordinary images")
        return with_taps(vit, self._change(means, {} if source is None else source.spreads))

    def _change(self, means: Mapping[int, Tensor], spreads: Mapping[int, Tensor]) -> TapChange:
        def change(block: int, tap: Tap) -> Tap:
            patches = tap.patches  # (B, N, C)
            away = patches.float().mean(1, keepdim=True) - means[block].to(patches.device)
            if self.beyond is not None:
                limit = self.beyond * spreads[block].to(patches.device)
                away = away.sign() * (away.abs() - limit).clamp(min=0)
            moved = patches - (self.weight * away).to(patches.dtype)
            return Tap(torch.cat([tap.tokens[:, : tap.prefix], moved], dim=1), tap.grid)

        return change


def head_norm(predictor: ViTPredictor[Prediction]) -> nn.BatchNorm2d | None:
    """The batch norm with which the head begins, over its taps side by side; None where it has none."""
    head = getattr(getattr(predictor, "model", None), "head", None)
    norm = getattr(head, "bn", None)
    channels = predictor.backbone.shape.width * len(predictor.taps)
    if not isinstance(norm, nn.BatchNorm2d) or norm.running_mean is None:
        return None
    return norm if norm.num_features == channels else None


def norm_means(predictor: ViTPredictor[Prediction]) -> dict[int, Tensor] | None:
    """The mean (C,) of each tap on the images that the head was trained on."""
    norm = head_norm(predictor)
    if norm is None or norm.running_mean is None:
        return None
    parts = norm.running_mean.float().reshape(len(predictor.taps), -1)
    return dict(zip(predictor.taps, parts, strict=True))
