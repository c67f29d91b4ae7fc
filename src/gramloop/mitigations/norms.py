"""Batch norms inside heads and adapters: the image's own mean mixed into their running mean.

A norm that was trained on ordinary images subtracts their mean. With weight w it subtracts (1 - w) of that and w of
the mean of what it is given, image by image; its variance stays. Where a head begins with a batch norm on its
taps, this is `recentre` with the same weight; an adapter has more of them, also on maps of the image itself. The
ViT is left alone.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gramloop.errors import GramLoopError
from gramloop.mitigations.mitigation import Mitigation, number
from gramloop.mitigations.source import Source
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor


@dataclass(frozen=True)
class Norms(Mitigation):
    """A share ``weight`` of each image's own mean in every batch norm outside the ViT."""

    weight: float

    name = "norms"
    stage = "features"

    @classmethod
    def parse(cls, arguments: str) -> Self:
        """``norms:0.1``."""
        return cls(number("norms", arguments, 0, 1))

    @property
    def arguments(self) -> str:
        """The weight."""
        return f"{self.weight:g}"

    def check(
        self, predictor: Predictor[Prediction], stack: Sequence[Mitigation], source: Source | None
    ) -> None:
        """It needs batch norms that remember the images of their training."""
        if not any(_norms(predictor, part) for part in _parts(predictor).values()):
            raise GramLoopError(
                f"{self.text} acts on the batch norms of a head, and {type(predictor).__name__} shows none with a "
                "running mean"
            )

    def prepare(self, predictor: Predictor[Prediction], source: Source | None) -> Predictor[Prediction]:
        """The predictor with a copy of its head whose norms mix means; all weights and the ViT are shared."""
        if self.weight == 0:
            return predictor
        changed = copy.copy(predictor)
        for name, part in _parts(predictor).items():
            shared = [*part.parameters(), *part.buffers(), *_vit(predictor)]
            twin = copy.deepcopy(part, {id(each): each for each in shared})
            for norm in _norms(predictor, twin):
                norm.register_forward_pre_hook(self._mixed)
            vars(changed)[name] = twin
        return changed

    def _mixed(self, norm: nn.Module, args: tuple[Any, ...]) -> tuple[Tensor] | None:
        given, mean = args[0], norm.running_mean
        assert isinstance(given, Tensor)
        assert isinstance(mean, Tensor)
        if given.ndim < 3:  # one value per channel, so it is its own mean
            return None
        places = tuple(range(2, given.ndim))
        ordinary = mean.view(1, -1, *(1 for _ in places))
        away = given.float().mean(places, keepdim=True) - ordinary
        return (given - (self.weight * away).to(given.dtype),)


def _vit(predictor: Predictor[Prediction]) -> list[nn.Module]:
    """The modules that stay the same: the ViT, and what wraps it with taps."""
    host, backbone = predictor.host, getattr(predictor, "backbone", None)
    return [each for each in (host and host.vit, backbone) if isinstance(each, nn.Module)]


def _parts(predictor: Predictor[Prediction]) -> dict[str, nn.Module]:
    """The predictor's own modules beside its ViT, by attribute."""
    own = getattr(predictor, "__dict__", {})
    kept = _vit(predictor)
    return {
        name: part
        for name, part in own.items()
        if isinstance(part, nn.Module) and not any(part is each for each in kept)
    }


def _norms(predictor: Predictor[Prediction], part: nn.Module) -> list[_BatchNorm]:
    inside = {module for each in _vit(predictor) for module in each.modules()}
    return [each for each in _batch_norms(part) if each not in inside]


def _batch_norms(part: nn.Module) -> Iterator[_BatchNorm]:
    return (each for each in part.modules() if isinstance(each, _BatchNorm) and each.running_mean is not None)
