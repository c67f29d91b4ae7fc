"""From the traces of views to the maps that a prediction carries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from gramloop.replay.trace import Trace
from gramloop.tasks.prediction import ReplayMaps, WindowMaps
from gramloop.tasks.sliding import Canvas, Crop


class CropMaps:
    """The traces of all crops, laid over the image."""

    def __init__(self, height: int, width: int) -> None:
        self._size = (height, width)
        self._canvases: dict[str, Canvas] = {}

    def add(self, crops: Sequence[Crop], trace: Trace | None, first: int = 0) -> None:
        """Lay the trace of some crops, from the ``first`` of its batch on, on the image; nothing if nothing was measured."""
        if trace is None or not trace.drift:
            return
        for kind, values in trace_kinds(trace).items():
            canvas = self._canvases.setdefault(kind, Canvas(*self._size))
            for index, crop in enumerate(crops, first):
                canvas.add(crop, F.interpolate(values[index : index + 1], (crop.height, crop.width))[0])

    def finish(self, patch: int) -> ReplayMaps | None:
        """The maps of the image, seen by a model with patches of this side."""
        if not self._canvases:
            return None
        means = {kind: canvas.mean().numpy() for kind, canvas in self._canvases.items()}
        return ReplayMaps(means["drift"], means["gate"], _only(means), patch)


def per_patch(
    maps: NDArray[np.float32], cell: int, longest: int | None = None
) -> NDArray[np.float32]:  # (n, H, W) → (n, h, w)
    """Means over patches of ``cell`` entries a side, or over larger cells where a side has more than ``longest``."""
    patches = [max(1, round(side / cell)) for side in maps.shape[1:]]
    share = 1.0 if longest is None else min(1.0, longest / max(patches))
    rows, columns = (max(1, round(count * share)) for count in patches)
    pooled = F.adaptive_avg_pool2d(torch.from_numpy(maps).double(), (rows, columns))
    means: NDArray[np.float32] = pooled.float().numpy()
    return means


def trace_kinds(trace: Trace) -> dict[str, Tensor]:
    """The maps (B, K, h, w) of one view by kind; post_drift, where it was measured, has K = 1."""
    kinds = {"drift": trace.drift, "gate": trace.gate}
    if trace.post_drift is not None:
        kinds["post_drift"] = [trace.post_drift]
    return {kind: torch.stack(maps, dim=1).float().cpu() for kind, maps in kinds.items()}


def window_maps(
    whole: Mapping[str, NDArray[np.float32]], overview: Mapping[str, NDArray[np.float32]]
) -> WindowMaps:
    """From maps (K, h, w) by kind: drift, gate and, where it was measured, post_drift (1, h, w)."""
    return WindowMaps(
        whole["drift"],
        whole["gate"],
        _only(whole),
        overview_drift=overview["drift"],
        overview_gate=overview["gate"],
        overview_post_drift=_only(overview),
    )


def _only(maps: Mapping[str, NDArray[np.float32]]) -> NDArray[np.float32] | None:
    """The one post_drift (h, w) of maps by kind."""
    return maps["post_drift"][0] if "post_drift" in maps else None
