"""Recentring as a mitigation: the taps that a predictor's head reads, by the formula of `gramloop.core.recentring`.

Each view of an image (the whole of it, or one window) has its own mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from gramloop.core.recentring import Recentring, patch_mean
from gramloop.errors import GramLoopError
from gramloop.mitigations.mitigation import Mitigation, number
from gramloop.mitigations.source import Source, TapChange, check_source, check_taps, with_taps
from gramloop.mitigations.streaming import StreamMean
from gramloop.models.backbone import Tap
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor, ViTPredictor


@dataclass(frozen=True)
class Recentre(Recentring, Mitigation):
    """A share ``weight`` of the way back; with ``beyond``, only what exceeds so many standard deviations."""

    stream: float | None = None  # the share of a new view in a mean that is carried on; None: each its own

    name = "recentre"
    stage = "features"

    @classmethod
    def parse(cls, arguments: str) -> Self:
        """``recentre:0.3``, ``recentre:c=1`` or both, ``recentre:0.5,c=1``; ``stream=0.1`` carries the mean on."""
        parts = [part.strip() for part in arguments.split(",")]
        shares = [part.removeprefix("stream=") for part in parts if part.startswith("stream=")]
        if len(shares) > 1:
            raise GramLoopError(f"recentre takes one stream, not {arguments!r}")
        found = Recentring.parse(",".join(part for part in parts if not part.startswith("stream=")))
        stream = number("recentre's stream", shares[0], 0, 1) if shares else None
        return cls(found.weight, found.beyond, stream)

    @property
    def arguments(self) -> str:
        """Weight, c and stream, each where it says something."""
        return super().arguments + ("" if self.stream is None else f",stream={self.stream:g}")

    @property
    def carries_state(self) -> bool:
        """A stream's mean is carried from image to image."""
        return self.stream is not None and self.weight > 0

    def check(
        self, predictor: Predictor[Prediction], stack: Sequence[Mitigation], source: Source | None
    ) -> None:
        """It needs a head on taps, and to know what ordinary images look like there."""
        vit = check_taps(predictor, self.name)
        if self.carries_state and any(len(each.sizes) > 1 or each.name == "pair" for each in stack):
            raise GramLoopError(
                f"{self.text} carries one mean from image to image, so every image is looked at once; leave out flip, "
                "scales and pair"
            )
        if source is not None:
            check_source(source, vit)
        elif self.beyond is not None:
            raise GramLoopError(
                f"{self.text} needs the spread of ordinary images; calibrate on a few dozen and give their source"
            )
        elif norm_means(vit) is None:
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
        carried = None if self.stream is None else StreamMean(self.stream)

        def change(block: int, tap: Tap) -> Tap:
            patches = tap.patches  # (B, N, C)
            mean = patch_mean(patches)
            if carried is not None:
                mean = carried.update(block, mean)
            away = mean - means[block].to(patches.device)
            moved = self.moved(patches, away, spreads.get(block))
            return Tap(torch.cat([tap.tokens[:, : tap.prefix], moved], dim=1), tap.grid)

        return change


def norm_means(predictor: ViTPredictor[Prediction]) -> dict[int, Tensor] | None:
    """The mean (C,) of each tap on the images that the head was trained on; None where no batch norm of it tells.

    A head has one norm for each tap, or begins with one over its taps side by side.
    """
    head = getattr(getattr(predictor, "model", predictor), "head", None)
    norms = getattr(head, "tap_norms", None) or (getattr(head, "bn", None),)
    means = [norm.running_mean for norm in norms if isinstance(norm, _BatchNorm)]
    known = [mean.float() for mean in means if mean is not None]
    width = predictor.backbone.shape.width
    if sum(len(mean) for mean in known) != width * len(predictor.taps):
        return None
    parts = torch.cat(known).reshape(len(predictor.taps), width)
    return dict(zip(predictor.taps, parts, strict=True))
