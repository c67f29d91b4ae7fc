"""What a replay does in one image: drift, gate and what is left of the drift, as numbers and as a figure.

diagnosis = diagnose(model, pixels, ReplayConfig(window=(8, 10)))
diagnosis.as_json()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gramloop.errors import GramLoopError
from gramloop.replay.attach import Loop, attached
from gramloop.replay.config import ReplayConfig, ReplaySettings
from gramloop.replay.cost import Cost, extra_blocks
from gramloop.tasks.images import RGB
from gramloop.tasks.maps import per_patch
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor, check_replay

Map = NDArray[np.float32]


@dataclass(frozen=True)
class Spread:
    """How the values of a map are distributed; those that are not finite are left out."""

    mean: float
    median: float
    low: float  # the 5th percentile
    high: float  # the 95th percentile
    largest: float

    @classmethod
    def of(cls, values: NDArray[Any]) -> Spread:
        """Of any array."""
        finite = np.asarray(values, dtype=np.float64).ravel()
        finite = finite[np.isfinite(finite)]
        if not len(finite):
            return cls(*[float("nan")] * 5)
        low, median, high = np.percentile(finite, [5, 50, 95])
        return cls(float(finite.mean()), float(median), float(low), float(high), float(finite.max()))


@dataclass(frozen=True)
class Diagnosis:
    """One image's replays; maps have one entry per replay, over the patches."""

    replay: ReplayConfig  # with its window spelled out
    drift: Map  # (K, h, w) of each proposal
    gate: Map  # (K, h, w)
    post_drift: Map | None  # (h, w) of the accepted state; None where update and probe lie apart
    displacement: Map | None  # (K, h, w) length of each patch's accepted step
    cost: Cost  # of the replay without looking inside

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.drift.shape[1], self.drift.shape[2]

    def as_json(self) -> dict[str, Any]:
        """All numbers as plain values."""
        after = None if self.post_drift is None else Spread.of(self.post_drift)
        return {
            "grid": list(self.grid),
            "blocks": self.cost.blocks,
            "ordinary_blocks": self.cost.baseline,
            "multiplier": self.cost.multiplier,
            "replays": [self._step(index) for index in range(len(self.drift))],
            "post_drift": None if after is None else asdict(after),
            "share_of_drift_left": None
            if after is None
            else _ratio(after.mean, Spread.of(self.drift[-1]).mean),
        }

    def _step(self, index: int) -> dict[str, Any]:
        moved = None if self.displacement is None else asdict(Spread.of(self.displacement[index]))
        return {
            "drift": asdict(Spread.of(self.drift[index])),
            "gate": asdict(Spread.of(self.gate[index])),
            "mean_gate": float(self.gate[index].mean(dtype=np.float64)),
            "accepted_displacement": moved,
            "patches_not_finite": int((~np.isfinite(self.drift[index])).sum()),
        }


def diagnose(
    model: nn.Module,
    pixels: Any,
    config: ReplayConfig | None = None,
    *,
    run: Callable[[Any], Any] | None = None,
    grid: tuple[int, int] | None = None,
    blocks: Sequence[nn.Module] | None = None,
    norm: nn.Module | Callable[[Tensor], Tensor] | None = None,
    prefix: int | None = None,
    **settings: Unpack[ReplaySettings],
) -> Diagnosis:
    """Run one image through a model with a replay attached, and keep what the replay measured.

    model: any model that `gramloop.attach` takes; ``blocks``, ``norm`` and ``prefix`` are as there.
    pixels: what the model is called with: a tensor (1, 3, H, W), normalised as the model wants it, or a mapping
        of keywords, as a transformers image processor gives it.
    config, settings: the replay, as for ``attach``.
    run: how to call the model with ``pixels``, where ``model(pixels)`` is not the way.
    grid: rows and columns of patches, where the model does not reveal them.
    """
    call = run or (lambda given: model(**given) if isinstance(given, Mapping) else model(given))
    with attached(
        model, config, trace=True, blocks=blocks, norm=norm, prefix=prefix, this_thread=True, **settings
    ) as loop:
        if not loop.config.replays:
            raise GramLoopError("a replay of 0 passes has nothing to diagnose; replays must be at least 1")
        with torch.no_grad():
            call(pixels)
    return _diagnosis(loop, grid)


def _diagnosis(loop: Loop, grid: tuple[int, int] | None) -> Diagnosis:
    if len(loop.traces) != 1:
        raise GramLoopError(
            f"the model saw {len(loop.traces)} inputs in its last pass; a diagnosis is of one image at one size"
        )
    trace = loop.traces[0]
    if not trace.drift:
        raise GramLoopError("nothing was replayed in this image, so there is nothing to diagnose")
    if trace.drift[0].shape[0] != 1:
        raise GramLoopError(f"{trace.drift[0].shape[0]} images were given; a diagnosis is of one image")
    place = grid or trace.grid
    if place is None:
        raise GramLoopError(f"{loop.vit.name} does not reveal its grid of patches; pass grid=(rows, columns)")
    if place[0] * place[1] != trace.drift[0].numel():
        raise GramLoopError(
            f"a grid of {place[0]} x {place[1]} does not hold the {trace.drift[0].numel()} patches of this image"
        )
    after = trace.post_drift
    depth = loop.vit.depth
    return Diagnosis(
        loop.config,
        _maps(trace.drift, place),
        _maps(trace.gate, place),
        None if after is None else _maps([after], place)[0],
        _maps(trace.displacement, place),
        Cost(depth + extra_blocks(loop.config, depth), depth),
    )


def _maps(values: Sequence[Tensor], grid: tuple[int, int]) -> Map:  # (1, ...) each → (K, h, w)
    maps: Map = np.stack([each.detach().float().cpu().reshape(grid).numpy() for each in values])
    return maps


def diagnose_prediction(predictor: Predictor[Prediction], image: RGB, config: ReplayConfig) -> Diagnosis:
    """The same for a predictor, which looks at the image in its own sizes and windows.

    Maps are laid over the whole image, and averaged where windows overlap.
    """
    place = check_replay(predictor, config)
    config = replace(config, window=(place.start, place.end))
    trace = predictor.predict(image, config, trace=True).trace
    if trace is None:
        raise GramLoopError("nothing was replayed in this image, so there is nothing to diagnose")
    after = trace.post_drift
    return Diagnosis(
        config,
        per_patch(trace.drift, trace.cell),
        per_patch(trace.gate, trace.cell),
        None if after is None else per_patch(after[None], trace.cell)[0],
        None,
        predictor.cost(config),
    )


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
