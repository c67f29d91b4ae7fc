"""One image and all candidates: what they have in common is done once.

The ordinary prediction comes out of the first replay's own pass where there is one. Filters on pixels run once for all
candidates that begin with them; where a filter changes nothing, its candidates share the prediction without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext

from gramloop.errors import GramLoopError
from gramloop.mitigations.calibration import CalibrationStats
from gramloop.mitigations.pixels import PixelMitigation
from gramloop.mitigations.replay import Replay
from gramloop.mitigations.stack import replay_alone, stack_text
from gramloop.tasks.block_runs import observing
from gramloop.tasks.images import RGB
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor
from gramloop.tune.search.stacks import Stack

Applied = Callable[[Stack], Predictor[Prediction]]  # a stack → its predictor


class Looks:
    """The predictions of one image."""

    def __init__(
        self,
        predictor: Predictor[Prediction],
        pixels: RGB,
        applied: Applied,
        source: CalibrationStats | None = None,
    ) -> None:
        self.predictor, self.pixels, self.applied, self.source = predictor, pixels, applied, source
        self.seconds: dict[str, float] = {}  # that filters took, by their text
        self._filtered: dict[Stack, RGB] = {(): pixels}
        self._found: dict[tuple[int, Stack], Prediction] = {}

    def ordinary(self, stacks: Sequence[Stack]) -> tuple[Prediction, dict[str, list[float]] | None]:
        """The ordinary prediction, and the signals of its pass where the ViT is at hand."""
        host = self.predictor.host
        config = next((each for each in map(replay_alone, stacks) if each is not None), None)
        with observing(host) if host is not None else nullcontext() as observed:
            if config is None:
                found = self.predictor.predict(self.pixels, trace=False)
            else:
                pair = self.predictor.predict(self.pixels, config, paired=True, trace=False)
                found = pair.ordinary
                self._found[id(self.pixels), (Replay(config),)] = pair.replayed
        self._found[id(self.pixels), ()] = found
        return found, None if observed is None else observed.means()

    def of(self, stack: Stack) -> Prediction | str:
        """The prediction with a stack; or a sentence about why there is none."""
        first = filters_of(stack)
        pixels, rest = self._pixels(first), stack[len(first) :]
        key = id(pixels), rest
        if key not in self._found:
            try:
                self._found[key] = self._predict(pixels, rest)
            except GramLoopError as error:
                if replay_alone(stack) is not None:
                    raise
                return str(error)
        return self._found[key]

    def _pixels(self, filters: Stack) -> RGB:
        """After the filters, each of which runs once; kept, so that an array's identity tells it from others."""
        if filters not in self._filtered:
            before, last = self._pixels(filters[:-1]), filters[-1]
            assert isinstance(last, PixelMitigation)
            began = time.perf_counter()
            self._filtered[filters] = last.filtered(before, self.source)
            self.seconds[stack_text(filters)] = time.perf_counter() - began
        return self._filtered[filters]

    def _predict(self, pixels: RGB, rest: Stack) -> Prediction:
        if not rest:
            return self.predictor.predict(pixels, trace=False)
        if (config := replay_alone(rest)) is not None:
            return self.predictor.predict(pixels, config, trace=False)
        return self.applied(rest).predict(pixels, trace=False)


def filters_of(stack: Stack) -> Stack:
    """The filters that a stack begins with; none where something else acts on pixels."""
    first = tuple(each for each in stack if each.stage == "pixels")
    return first if all(isinstance(each, PixelMitigation) for each in first) else ()
