"""What a replay does in one image: drift, gate and the drift that remains, as numbers.

diagnosis = diagnose(model, pixels, ReplayConfig(window=(8, 10)))
diagnosis.as_json()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gramloop.errors import GramLoopError
from gramloop.models.tiny import TINY_SHORT_SIDE, load_tiny
from gramloop.replay.attach import attached
from gramloop.replay.config import Cost, ReplayConfig, extra_blocks, route
from gramloop.tasks.images import RGB, resize_short_side, to_tensor
from gramloop.tasks.predictor import AnyPredictor, check_replay, per_patch

_NOTHING = "nothing was replayed in this image, so there is nothing to diagnose"


@dataclass(frozen=True)
class Diagnosis:
    """One image's replays; maps have one entry per replay, over the patches."""

    replay: ReplayConfig  # with its window spelled out
    drift: NDArray[np.float32]  # (K, h, w) of each proposal
    gate: NDArray[np.float32]  # (K, h, w)
    displacement: NDArray[np.float32] | None  # (K, h, w) length of each patch's accepted step
    post_drift: NDArray[np.float32] | None  # (h, w) of the accepted state; None where no probe sees it
    cost: Cost  # of the replay without the diagnosis

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.drift.shape[1], self.drift.shape[2]

    def as_json(self) -> dict[str, Any]:
        """All numbers as plain values."""
        replays = [
            {
                "drift": spread(drift),
                "gate": spread(gate),
                "mean_gate": float(gate.mean(dtype=np.float64)),
                "accepted_displacement": None if self.displacement is None else spread(self.displacement[k]),
                "patches_not_finite": int((~np.isfinite(drift)).sum()),
            }
            for k, (drift, gate) in enumerate(zip(self.drift, self.gate, strict=True))
        ]
        after = None if self.post_drift is None else spread(self.post_drift)
        last = spread(self.drift[-1])["mean"]
        return {
            "grid": list(self.grid),
            "blocks": self.cost.blocks,
            "ordinary_blocks": self.cost.baseline,
            "multiplier": self.cost.multiplier,
            "replays": replays,
            "post_drift": after,
            "share_of_drift_left": after["mean"] / last if after is not None and last > 0 else None,
        }


def spread(values: NDArray[Any]) -> dict[str, float]:
    """How the values of a map are distributed; those that are not finite are left out."""
    finite = np.asarray(values, dtype=np.float64).ravel()
    finite = finite[np.isfinite(finite)]
    if not len(finite):
        return dict.fromkeys(("mean", "median", "low", "high", "largest"), float("nan"))
    low, median, high = np.percentile(finite, [5, 50, 95]).tolist()
    mean, largest = float(finite.mean()), float(finite.max())
    return {"mean": mean, "median": median, "low": low, "high": high, "largest": largest}


def diagnose(
    model: nn.Module,
    pixels: Any,
    config: ReplayConfig | None = None,
    *,
    run: Callable[[Any], Any] | None = None,
    grid: tuple[int, int] | None = None,
    **settings: Any,
) -> Diagnosis:
    """Run one image through a model with a replay attached, and keep what the replay measured.

    pixels: what the model is called with: a tensor (1, 3, H, W), normalised as the model wants it, or a mapping
        of keywords, as a transformers image processor gives it.
    run: how to call the model with ``pixels``, where it is not ``model(pixels)``.
    grid: rows and columns of patches, where the model does not reveal them.
    config, settings: the replay and the ViT, as for `gramloop.attach`.
    """
    call = run or (lambda given: model(**given) if isinstance(given, Mapping) else model(given))
    with attached(model, config, trace=True, this_thread=True, **settings) as loop:
        if not loop.config.replays:
            raise GramLoopError("a replay of 0 passes has nothing to diagnose; replays must be at least 1")
        with torch.no_grad():
            call(pixels)
    trace, depth = loop.trace, loop.vit.depth
    if trace is None or not trace.drift:
        raise GramLoopError(_NOTHING)
    images, patches = trace.drift[0].shape[0], trace.drift[0].numel()
    if images != 1:
        raise GramLoopError(f"{images} images were given; a diagnosis is of one image")
    place = grid or trace.grid
    if place is None:
        raise GramLoopError(f"{loop.vit.name} does not reveal its grid of patches; pass grid=(rows, columns)")
    if place[0] * place[1] != patches:
        raise GramLoopError(
            f"a grid of {place[0]} x {place[1]} does not hold the {patches} patches of this image"
        )

    def stacked(maps: Sequence[Tensor]) -> NDArray[np.float32]:
        return np.stack([each.detach().float().cpu().reshape(place).numpy() for each in maps])

    after = None if trace.post_drift is None else stacked([trace.post_drift])[0]
    cost = Cost(depth + extra_blocks(loop.config, depth), depth)
    drift, gate, displacement = map(stacked, (trace.drift, trace.gate, trace.displacement))
    return Diagnosis(loop.config, drift, gate, displacement, after, cost)


def diagnose_prediction(predictor: AnyPredictor, image: RGB, config: ReplayConfig) -> Diagnosis:
    """The same for a predictor, which is given the image in its usual sizes and windows.

    Maps are laid over the whole image, and averaged where windows overlap.
    """
    place = check_replay(predictor, config)
    config = replace(config, window=(place.start, place.end))
    trace = predictor.predict(image, config, trace=True).trace
    if trace is None:
        raise GramLoopError(_NOTHING)
    drift, gate = (per_patch(maps, trace.cell) for maps in (trace.drift, trace.gate))
    after = None if trace.post_drift is None else per_patch(trace.post_drift[None], trace.cell)[0]
    return Diagnosis(config, drift, gate, None, after, predictor.cost(config))


# models in files

# pixels → the image as the model takes it, and its diagnosis
DiagnoseImage = Callable[[RGB], tuple[RGB, Diagnosis]]


def diagnose_with(predictor: AnyPredictor, replay: ReplayConfig) -> DiagnoseImage:
    """With a predictor, in its usual sizes and windows."""
    check_replay(predictor, replay)
    return lambda pixels: (pixels, diagnose_prediction(predictor, pixels, replay))


def diagnose_with_embedded(
    folder: Path | str, replay: ReplayConfig, device: torch.device, short_side: int | None = None
) -> DiagnoseImage:
    """With the embedded model, or one in its format, which sees the whole image, its long side rounded to patches."""
    model = load_tiny(folder, device)
    patch, short = model.backbone.shape.patch, short_side or TINY_SHORT_SIDE
    route(replay, model.backbone.shape.depth)
    if short < patch or short % patch:
        raise GramLoopError(
            f"the short side is {short}; it is a multiple of the patches' side, {patch}, such as {8 * patch}"
        )

    def diagnose_image(pixels: RGB) -> tuple[RGB, Diagnosis]:
        seen = resize_short_side(pixels, short, multiple=patch)
        return seen, diagnose(model, to_tensor(seen).to(device), replay, run=model.features)

    return diagnose_image
