"""The embedded model's segmentation of one image, ordinary and replayed at every window, in shared sweeps.

Every labelling equals that of ``Segmenter.predict(image, ReplayConfig(window=..., replays=1, strength=...))``; one
ordinary pass, one proposal and one probe serve all strengths, which makes about a third of the blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gramloop.models.tiny import TinyModel
from gramloop.replay.blocks import BlockCall
from gramloop.replay.config import ReplayConfig, Window
from gramloop.replay.gram import GramAnchor, gram_gate, interpolate, token_gate
from gramloop.replay.vit import find_vit
from gramloop.tasks.images import to_tensor
from gramloop.tune.scan.sweep import listening, replay_windows


@torch.no_grad()
def predict(
    tiny: TinyModel, image: np.ndarray, windows: Sequence[Window], strengths: Sequence[float]
) -> Iterator[np.ndarray]:
    """Label maps (H, W): the ordinary one, then every window at the first strength, at the second, ..."""
    host = find_vit(tiny.backbone)
    seen: list[tuple[BlockCall, list[Tensor]]] = []
    pixels = to_tensor(image)
    with listening(host, lambda call, states: seen.append((call, list(states)))):
        tiny.backbone(pixels, [host.depth - 1])
    ((call, ordinary),) = seen
    yield from _labels(tiny, pixels, {tap: ordinary[tap] for tap in tiny.segment.taps})
    state = torch.cat([ordinary[end] for _, end in windows])  # (W, T, C)
    proposal, final, _ = replay_windows(call.chain, host.depth, windows, state)
    drift = GramAnchor(call.chain.patches(ordinary[-1])).drift(call.chain.patches(final))
    gate = gram_gate(drift, ReplayConfig().eps)
    for strength in strengths:
        accepted = interpolate(state, proposal, token_gate(gate * strength, host.prefix))
        yield from _labels(tiny, pixels, _taps(tiny, call, ordinary, windows, accepted))


def _taps(
    tiny: TinyModel, call: BlockCall, ordinary: list[Tensor], windows: Sequence[Window], accepted: Tensor
) -> dict[int, Tensor]:
    """What the head reads of every window, (W, T, C): refined from the window's end on, ordinary before."""
    order = sorted(range(len(windows)), key=lambda place: windows[place][1])
    alive, taps = accepted[order], {}
    for index in range(len(ordinary)):
        passed = sum(end < index for _, end in windows)
        if passed:
            alive[:passed] = call.chain.run(index, index, [alive[:passed]])[0]
        if index in tiny.segment.taps:
            refined = sum(end <= index for _, end in windows)
            both = torch.cat([alive[:refined], ordinary[index].expand(len(windows) - refined, -1, -1)])
            taps[index] = torch.empty_like(both)
            taps[index][order] = both
    return taps


def _labels(tiny: TinyModel, pixels: Tensor, taps: dict[int, Tensor]) -> Iterator[np.ndarray]:
    grid = tiny.backbone.grid(pixels)
    logits = tiny.segment([tiny.backbone.tap(taps[tap], grid, tap).map for tap in tiny.segment.taps])
    for one in logits:
        scores = F.interpolate(one[None], pixels.shape[-2:], mode="bilinear", align_corners=False)
        yield scores[0].argmax(0).to(torch.int32).numpy()
