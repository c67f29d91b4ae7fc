"""A mean that is carried over a stream of images, such as the frames of a camera: state, so off unless asked for.

After each view the mean moves a share of the way to that of its patches; the first view is its beginning. What is
predicted depends on what came before, in its order.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from gramloop.errors import GramLoopError


class StreamMean:
    """The mean of every tap so far. It belongs to the thread that predicts first."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._means: dict[int, Tensor] = {}
        self._thread: int | None = None

    def update(self, tap: int, means: Tensor) -> Tensor:
        """The mean after each of these views, (B, 1, C) -> (B, 1, C)."""
        here = threading.get_ident()
        if self._thread not in (None, here):
            raise GramLoopError(
                "the mean of a stream is carried by the thread that began it; make a predictor for each stream, or "
                "reset() this one"
            )
        self._thread = here
        carried = []
        for mean in means:
            before = self._means.get(tap)
            now = mean if before is None else before.to(mean.device).lerp(mean, self._share)
            carried.append(now)
            self._means[tap] = now
        return torch.stack(carried)
