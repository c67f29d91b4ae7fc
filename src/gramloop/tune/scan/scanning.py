"""Where does replay act gently on this backbone? Every window, a few images and shifts, no labels.

found = gramloop.tune.scan_windows(model, photographs, preprocess=prepare)
gramloop.tune.ranked(found)[:5]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from gramloop.data.suites import Condition
from gramloop.errors import GramLoopError
from gramloop.replay.attach import attached
from gramloop.replay.config import Window
from gramloop.replay.cost import Cost, cost
from gramloop.replay.guards import check_reach
from gramloop.shifts.corruptions import corrupt
from gramloop.shifts.seeds import generator
from gramloop.tasks.images import RGB, ImageLike, read_image
from gramloop.tune.scan.sweep import all_windows, measure, naive_blocks

# What a model is given: its one argument, its keywords, or a function that runs the forward itself.
Input = Tensor | Mapping[str, Any] | Callable[[], Any]

CLEAN = "clean"
_BLANK = np.zeros((64, 64, 3), np.uint8)
DEFAULT_SHIFTS = tuple(
    Condition(name, 3) for name in ("gaussian_noise", "defocus_blur", "fog", "contrast", "jpeg_compression")
)


@dataclass(frozen=True)
class Scan:
    """What was measured. ``values`` maps a statistic to (conditions, images, windows).

    drift_mean, drift_median: Gram drift of the first proposal at the last block, over the patches.
    step: its length at the window's end, relative to the state's; the median over the patches.
    amplification: sqrt(drift_median) / step, what the blocks after the window make of a step.
    growth_2, growth_3, ...: drift of the second, third, ... ungated replay against the first.
    cosine: between first and second step; 1 walks on, -1 turns back.
    step_ratio: length of the second step against the first; below 1 the window contracts.
    blocks, naive_blocks: executed per image, and by one attached forward per window.
    """

    host: str
    depth: int
    replays: int
    windows: tuple[Window, ...]
    conditions: tuple[str, ...]
    images: tuple[str, ...]
    values: Mapping[str, NDArray[np.float64]]
    blocks: int
    naive_blocks: int

    def __post_init__(self) -> None:
        """Refuse values that are not one per condition, image and window."""
        expected = (len(self.conditions), len(self.images), len(self.windows))
        for name, values in self.values.items():
            if values.shape != expected:
                raise GramLoopError(f"the values of {name} have the shape {values.shape}, not {expected}")

    @property
    def paired(self) -> bool:
        """Whether shifted images can be held against clean ones."""
        return CLEAN in self.conditions and len(self.conditions) > 1

    def typical(self, statistic: str) -> NDArray[np.float64]:
        """The median over all images and conditions, (W,)."""
        return _quiet_median(self._of(statistic).reshape(-1, len(self.windows)))

    def shifted_to_clean(self, statistic: str) -> NDArray[np.float64]:
        """The median, over images and shifts, of a statistic against the same image's clean value, (W,)."""
        clean, shifted = self._sides(statistic)
        with np.errstate(divide="ignore", invalid="ignore"):
            return _quiet_median((shifted / clean[None]).reshape(-1, len(self.windows)))

    def separation(self, statistic: str) -> NDArray[np.float64]:
        """How often a shifted image's value exceeds a clean image's (the area under the ROC curve), (W,).

        0.5 tells nothing; near 0 or 1, one threshold would tell shifted from clean images.
        """
        clean, shifted = self._sides(statistic)
        pairs = shifted.reshape(-1, 1, len(self.windows)) - clean[None]
        above: NDArray[np.float64] = ((pairs > 0) + 0.5 * (pairs == 0)).mean((0, 1))
        return above

    def costs(self) -> tuple[Cost, ...]:
        """What one gated replay of each window costs."""
        return tuple(cost(self.depth, window, 1) for window in self.windows)

    def _of(self, statistic: str) -> NDArray[np.float64]:
        if statistic not in self.values:
            raise GramLoopError(f"the scan has no {statistic!r}; it has {', '.join(self.values)}")
        return self.values[statistic]

    def _sides(self, statistic: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Clean (images, W) and shifted (shifts, images, W)."""
        values = self._of(statistic)
        if not self.paired:
            raise GramLoopError(
                f"shifted against clean needs the condition {CLEAN!r} and another; "
                f"the scan has {', '.join(self.conditions)}"
            )
        at = self.conditions.index(CLEAN)
        return values[at], np.delete(values, at, axis=0)


def scan_windows(
    model: nn.Module,
    images: Sequence[Any] | Mapping[str, Sequence[Input]],
    *,
    preprocess: Callable[[RGB], Input] | None = None,
    shifts: Sequence[Condition] = DEFAULT_SHIFTS,
    max_length: int = 4,
    replays: int = 3,
    chunk: int | None = None,
    blocks: Sequence[nn.Module] | None = None,
    norm: nn.Module | Callable[[Tensor], Tensor] | None = None,
    prefix: int | None = None,
    progress: Callable[[], None] = lambda: None,
) -> Scan:
    """Measure every window of ``model``'s ViT, whatever its depth, on a few images.

    images: pictures (paths, PIL images, arrays) together with ``preprocess``, which makes of RGB bytes (H, W, 3)
        what the model takes; they are seen clean and under every one of ``shifts``. Or inputs that are ready,
        in a list, or in a dictionary of one list per condition, of which one may be called "clean".
    max_length: blocks in the longest window. replays: how often each is replayed, without a gate.
    chunk: trajectories that are held at once; None bounds their memory.
    blocks, norm, prefix: as in `gramloop.attach`, for a ViT of an unknown family.
    progress: called after every image and condition.
    """
    _check_counts(max_length, replays, chunk)
    names, ready = _inputs(images, preprocess, shifts)
    measured = []
    # A replay that does nothing: it finds the host, and refuses what could not be replayed.
    with attached(model, replays=0, blocks=blocks, norm=norm, prefix=prefix) as loop:
        host = loop.vit
        check_reach(host, replace(loop.route, reach=host.depth - 1))
        windows = all_windows(host.depth, max_length)
        for inputs in ready.values():
            for make in inputs:
                measured.append(measure(host, _forward(model, make()), windows, replays, chunk))
                progress()
    shape = (len(ready), len(names), len(windows))
    return Scan(
        host=host.name,
        depth=host.depth,
        replays=replays,
        windows=windows,
        conditions=tuple(ready),
        images=names,
        values={
            name: np.stack([one.statistics[name] for one in measured]).reshape(shape)
            for name in measured[0].statistics
        },
        blocks=measured[0].blocks,
        naive_blocks=naive_blocks(host.depth, windows, replays),
    )


def _check_counts(max_length: int, replays: int, chunk: int | None) -> None:
    if max_length < 1:
        raise GramLoopError(f"max_length is {max_length}; a window has 1 block or more")
    if replays < 2:
        raise GramLoopError(f"replays is {replays}; whether a window contracts shows from 2 on")
    if chunk is not None and chunk < 1:
        raise GramLoopError(f"chunk is {chunk}; it is 1 trajectory or more")


Made = Callable[[], Input]  # pictures are shifted and prepared when their turn comes


def _inputs(
    images: Sequence[Any] | Mapping[str, Sequence[Input]],
    preprocess: Callable[[RGB], Input] | None,
    shifts: Sequence[Condition],
) -> tuple[tuple[str, ...], dict[str, list[Made]]]:
    """Names of the images, and per condition how to make each one's input."""
    if preprocess is None:
        given = images if isinstance(images, Mapping) else {"given": images}
        counts = {len(inputs) for inputs in given.values()}
        if len(counts) != 1 or counts == {0}:
            raise GramLoopError(
                f"a scan needs the same images, at least one, under every condition, not {sorted(counts)}"
            )
        names = tuple(str(index) for index in range(counts.pop()))
        return names, {key: [partial(_as_it_is, one) for one in inputs] for key, inputs in given.items()}
    if isinstance(images, Mapping):
        raise GramLoopError(
            "inputs per condition are ready as they are; preprocess is for pictures in a list"
        )
    if not len(images):
        raise GramLoopError("a scan needs at least one image")
    if len(set(shifts)) != len(shifts):
        raise GramLoopError(f"a shift is given twice: {', '.join(map(str, shifts))}")
    for shift in shifts:  # one that does not exist shows now, and not after the clean images
        corrupt(_BLANK, shift.name, shift.severity, np.random.default_rng(0))
    names = tuple(
        Path(one).name if isinstance(one, str | Path) else str(index) for index, one in enumerate(images)
    )
    conditions = [Condition(CLEAN), *shifts]
    return names, {
        condition.key: [
            partial(_prepared, preprocess, one, index, condition) for index, one in enumerate(images)
        ]
        for condition in conditions
    }


def _as_it_is(given: Input) -> Input:
    return given


def _prepared(
    preprocess: Callable[[RGB], Input], image: ImageLike, index: int, condition: Condition
) -> Input:
    pixels = read_image(image)
    if condition.severity:
        rng = generator("scan-c", condition.name, condition.severity, index)
        pixels = corrupt(pixels, condition.name, condition.severity, rng)
    return preprocess(pixels)


def _forward(model: nn.Module, given: Input) -> Callable[[], Any]:
    if isinstance(given, Tensor):
        return lambda: model(given)
    if isinstance(given, Mapping):
        return lambda: model(**given)
    if callable(given):
        return given
    raise GramLoopError(
        f"an input of the scan is a tensor, a dictionary of keywords or a function, not {type(given).__name__}"
    )


def _quiet_median(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Over the first axis, passing over NaN; NaN where nothing else is."""
    empty = np.isnan(values).all(0)
    median: NDArray[np.float64] = np.nanmedian(np.where(empty, 0.0, values), axis=0)
    return np.where(empty, np.nan, median)
