"""Several looks at one image and one prediction of them: mirrored, in other sizes, ordinary and replayed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from gramloop.errors import GramLoopError
from gramloop.mitigations.merging import merged, mirrored
from gramloop.mitigations.mitigation import Look, Mitigation, number
from gramloop.mitigations.scaling import check_scaling
from gramloop.mitigations.source import Source
from gramloop.tasks.images import RGB
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor


class OutputMitigation(Mitigation):
    """Anything that makes one prediction of several looks."""

    stage = "outputs"

    def check(
        self, predictor: Predictor[Prediction], stack: Sequence[Mitigation], source: Source | None
    ) -> None:
        """Refuse predictions that cannot be made one."""
        if predictor.task in ("panoptic", "instance") and (len(self.sizes) > 1 or self.name == "pair"):
            raise GramLoopError(
                f"{self.text} makes one prediction of several, which is not known how to do with the masks of a "
                f"model for {predictor.task}"
            )


@dataclass(frozen=True)
class Flip(OutputMitigation):
    """The image and its mirror image, averaged."""

    name = "flip"

    @property
    def sizes(self) -> tuple[float, ...]:
        """Two looks."""
        return (1.0, 1.0)

    def around(self, look: Look, source: Source | None) -> Look:
        """Look twice."""

        def both(pixels: RGB, size: float) -> list[Prediction]:
            turned = look(np.ascontiguousarray(pixels[:, ::-1]), size)
            back = [mirrored(each, pixels.shape[1]) for each in turned]
            return _merged_versions([look(pixels, size), back])

        return both


@dataclass(frozen=True)
class Scales(OutputMitigation):
    """The image in several sizes, averaged."""

    factors: tuple[float, ...]

    name = "scales"

    @classmethod
    def parse(cls, arguments: str) -> Self:
        """``scales:0.75,1,1.25``, relative to the size in which the predictor shows images."""
        if not arguments:
            raise GramLoopError("scales takes the sizes, such as scales:0.75,1,1.25")
        return cls(tuple(number("each of scales", part, 0.1, 10) for part in arguments.split(",")))

    @property
    def arguments(self) -> str:
        """The sizes."""
        return ",".join(f"{factor:g}" for factor in self.factors)

    @property
    def sizes(self) -> tuple[float, ...]:
        """One look per size."""
        return self.factors

    def check(
        self, predictor: Predictor[Prediction], stack: Sequence[Mitigation], source: Source | None
    ) -> None:
        """It needs a predictor whose size can be set."""
        super().check(predictor, stack, source)
        check_scaling(predictor, self.text, self.factors)

    def around(self, look: Look, source: Source | None) -> Look:
        """Look once per size."""
        return lambda pixels, size: _merged_versions([look(pixels, size * each) for each in self.factors])


@dataclass(frozen=True)
class Resize(Scales):
    """The image in one other size."""

    name = "resize"

    @classmethod
    def parse(cls, arguments: str) -> Self:
        """``resize:1.1``."""
        return cls((number("resize", arguments, 0.1, 10),))


@dataclass(frozen=True)
class PairMean(OutputMitigation):
    """The ordinary and the replayed prediction, averaged; the replay's ordinary pass gives both."""

    name = "pair"

    def check(
        self, predictor: Predictor[Prediction], stack: Sequence[Mitigation], source: Source | None
    ) -> None:
        """It needs a replay beside it."""
        super().check(predictor, stack, source)
        if not any(each.stage == "backbone" for each in stack):
            raise GramLoopError(
                "pair averages the ordinary and the replayed prediction, so it needs a replay, such as gramloop+pair"
            )

    def around(self, look: Look, source: Source | None) -> Look:
        """Both versions as one, for the blocks of the replay."""

        def mean(pixels: RGB, size: float) -> list[Prediction]:
            versions = look(pixels, size)
            return [replace(merged(versions), blocks=versions[-1].blocks)]

        return mean


def _merged_versions(looks: Sequence[list[Prediction]]) -> list[Prediction]:
    return [merged(versions) for versions in zip(*looks, strict=True)]
