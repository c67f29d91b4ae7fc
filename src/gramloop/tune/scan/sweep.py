"""Every window of a backbone on one image: one ordinary pass, then one sweep over the blocks per replay.

The replay of window [s, e] and its probe run the blocks s to the last, from the state at e. Trajectories of all
windows that are alive at a block are one batch there, so each block's weights are read once per sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gramloop.errors import GramLoopError
from gramloop.replay.blocks import BlockCall, states_of
from gramloop.replay.config import Window
from gramloop.replay.gram import GramAnchor, masked_median
from gramloop.replay.vit import ViT

ByWindow = dict[str, NDArray[np.float64]]  # name -> one number per window, (W,)

# A trajectory holds its states four times over, and a block's activations are about 12 times its state.
_NUMBERS_PER_STATE = 16
_BYTES_AT_ONCE = 1 << 30


@dataclass(frozen=True)
class WindowStatistics:
    """One image: statistics per window, and the blocks that were executed for them."""

    statistics: ByWindow
    blocks: int


def all_windows(depth: int, max_length: int) -> tuple[Window, ...]:
    """Every window of at most ``max_length`` blocks, by start and then by end."""
    return tuple(
        (start, end) for start in range(depth) for end in range(start, min(start + max_length, depth))
    )


def naive_blocks(depth: int, windows: Sequence[Window], replays: int) -> int:
    """Blocks of one traced forward per window with ``gramloop.attach``: each pays for its own ordinary pass."""
    ordinary = sum(depth + (depth - 1 - end) for _, end in windows)
    return ordinary + replays * sum(depth - start for start, _ in windows)


def measure(
    host: ViT, forward: Callable[[], Any], windows: Sequence[Window], replays: int, chunk: int | None = None
) -> WindowStatistics:
    """Run ``forward``, one image through the host, and measure every window inside it.

    windows: in the order of their start. chunk: trajectories that are held at once; None bounds their memory.
    """
    measured: list[WindowStatistics] = []

    def at_last_block(call: BlockCall, ordinary: list[Tensor]) -> None:
        measured.append(_measure_windows(host, call, ordinary, windows, replays, chunk))

    with torch.no_grad(), listening(host, at_last_block):
        forward()
    if len(measured) != 1:
        raise GramLoopError(
            f"an input of the scan ran {host.name} {len(measured)} times; it is one forward of one image"
        )
    return measured[0]


@contextmanager
def listening(host: ViT, at_last_block: Callable[[BlockCall, list[Tensor]], None]) -> Iterator[None]:
    """Hand over how the host calls its blocks, and all their outputs, at the end of each of its forwards.

    It happens inside the forward, so that the host's own autocast holds for whatever is run then.
    """
    ordinary: list[Tensor] = []

    def after_block(index: int, block: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if index == 0:
            ordinary.clear()
        ordinary.append(_one_image(host, output))
        if index == host.depth - 1:
            at_last_block(BlockCall.of(host, args, kwargs)[0], ordinary)

    handles = [
        block.register_forward_hook(partial(after_block, index), with_kwargs=True)
        for index, block in enumerate(host.blocks)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _one_image(host: ViT, output: Any) -> Tensor:
    states = states_of(output)
    if len(states) != 1 or len(states[0]) != 1:
        images = sum(len(each) for each in states)
        raise GramLoopError(
            f"an input of the scan showed {images} images to {host.name} at once; it shows one"
        )
    return host.layout.tokens(states[0])


def _measure_windows(
    host: ViT,
    call: BlockCall,
    ordinary: list[Tensor],
    windows: Sequence[Window],
    replays: int,
    chunk: int | None,
) -> WindowStatistics:
    anchor = GramAnchor(host.patches(ordinary[-1]))
    size = chunk or _affordable(ordinary[0])
    parts, blocks = [], host.depth
    for first in range(0, len(windows), size):
        sweep = _Sweep(host, call, ordinary, anchor, windows[first : first + size])
        parts.append(sweep.statistics(replays))
        blocks += sweep.blocks
    merged = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return WindowStatistics(merged, blocks)


def _affordable(state: Tensor) -> int:
    return max(1, _BYTES_AT_ONCE // (_NUMBERS_PER_STATE * 4 * state.numel()))


class _Sweep:
    """Some windows on one image; ``windows`` lie in the order of their start."""

    def __init__(
        self,
        host: ViT,
        call: BlockCall,
        ordinary: list[Tensor],
        anchor: GramAnchor,
        windows: Sequence[Window],
    ) -> None:
        self.blocks, self._host = 0, host
        self._depth, self._layout = host.depth, host.layout
        self._call, self._ordinary, self._anchor, self._windows = call, ordinary, anchor, windows

    def statistics(self, replays: int) -> ByWindow:
        """Ungated replays of every window: how far they step, in which direction, and what it does in the end."""
        found: dict[str, Tensor] = {}
        state = torch.cat([self._ordinary[end] for _, end in self._windows])  # (W, T, C)
        before: Tensor | None = None
        for replay in range(1, replays + 1):
            proposal, final, blocks = replay_windows(self._call, self._depth, self._windows, state)
            self.blocks += blocks
            drift = self._anchor.drift(self._host.patches(final))  # (W, N)
            step = self._layout.patches(proposal.float() - state.float())  # (W, N, C)
            relative = _median(_length(step) / _length(self._layout.patches(state).float()))
            if replay == 1:
                found |= {"drift_mean": _mean(drift), "drift_median": _median(drift), "step": relative}
                found["amplification"] = found["drift_median"].sqrt() / relative
            else:
                found[f"growth_{replay}"] = _median(drift) / found["drift_median"]
            if replay == 2 and before is not None:
                found["cosine"] = _median(torch.cosine_similarity(before, step, dim=-1))
                found["step_ratio"] = _median(_length(step) / _length(before))
            state, before = proposal, step
        return {name: value.cpu().double().numpy() for name, value in found.items()}


def replay_windows(
    call: BlockCall, depth: int, windows: Sequence[Window], state: Tensor
) -> tuple[Tensor, Tensor, int]:
    """Replay each window on its state and go on to the last block, all windows in one sweep.

    windows: in the order of their start; ``state`` holds what each replays, (W, T, C). Returns the proposals at the
    windows' ends, what becomes of them at the last block, and how many blocks were executed.
    """
    alive, proposal, blocks = state.clone(), torch.empty_like(state), 0
    for index in range(windows[0][0], depth):
        entered = sum(start <= index for start, _ in windows)
        alive[:entered] = call.run(index, index, alive[:entered])
        blocks += entered
        for place, (_, end) in enumerate(windows[:entered]):
            if end == index:
                proposal[place] = alive[place]
    return proposal, alive, blocks


def _length(vectors: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(vectors, dim=-1)
    return length


def _median(values: Tensor) -> Tensor:
    """Over the patches whose value is finite, (W, N) -> (W,); NaN where none is."""
    counted = values.isfinite()
    return torch.where(counted.any(1), masked_median(values, counted)[:, 0], torch.nan)


def _mean(values: Tensor) -> Tensor:
    return torch.where(values.isfinite(), values, torch.nan).nanmean(1)
