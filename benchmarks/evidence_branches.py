"""Many replays of one image that share its ordinary pass: per window one batch of suffixes with a gate each.

Heads, and which of the blocks that they read show the replay, cost next to nothing beside that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evidence_study import Study, load_backbone, load_deep_head, prepare, read_labels, spread
from gramloop.metrics.miou import count_pixels, mean_iou
from gramloop.models.backbone import TappedViT, default_taps
from gramloop.models.linear import load_linear_head
from gramloop.replay.adaptive import length_spread as spread_of_lengths
from gramloop.replay.adaptive import patch_length as length
from gramloop.replay.config import Window
from gramloop.replay.gram import GramAnchor, interpolate, token_gate
from gramloop.shifts.corruptions import corrupt
from gramloop.shifts.seeds import generator
from gramloop.tasks.images import Normalisation, read_image

Gates = dict[str, Tensor]  # name -> a gate for every patch, (N,)
Condition = tuple[str, int]  # corruption and severity; severity 0 is clean
Counted = Mapping[str, np.ndarray]  # "window|gate|head|until" or "ordinary|head" -> (3, classes); "signal|…"
CLEAN: Condition = ("clean", 0)


@dataclass(frozen=True)
class Branches:
    """What to run on every image.

    gates_of: the gates to try, given the drift of a window's proposal, (1, N).
    probed: whether gates depend on drift; otherwise they are given zeros, and no probe is run.
    """

    name: str
    split: str
    many: int
    conditions: Sequence[Condition]
    windows: Sequence[Window]
    gates_of: Callable[[Tensor], Gates]
    probed: bool
    heads: Sequence[str]
    until: Sequence[int]  # of the taps, those at which a replay may end


class Pass:
    """The ordinary pass of one image, from which replays of any window branch off."""

    def __init__(self, backbone: TappedViT, pixels: Tensor) -> None:
        self.backbone, self.grid = backbone, backbone.grid(pixels)
        self.prefix = 1 + backbone.shape.registers
        self.states: list[Tensor] = []  # what enters the first block, and what leaves each
        hooks = [backbone.blocks[0].register_forward_pre_hook(lambda _, given: self.states.append(given[0]))]
        hooks += [
            block.register_forward_hook(lambda _, given, out: self.states.append(out))
            for block in backbone.blocks
        ]
        backbone(pixels, [0])
        for hook in hooks:
            hook.remove()

    def patches(self, state: Tensor) -> Tensor:
        return self.backbone.norm(state[:, self.prefix :])  # type: ignore[no-any-return]

    def proposal(self, window: Window) -> Tensor:
        state = self.states[window[1] + 1]
        for block in self.backbone.blocks[window[0] : window[1] + 1]:
            state = block(state)
        return state

    def drift(self, window: Window, proposal: Tensor) -> Tensor:  # (1, N)
        last = len(self.backbone.blocks) - 1
        state = self._run(window[1], proposal, last)[last]
        return GramAnchor(self.patches(self.states[-1])).drift(self.patches(state))

    def replayed(self, window: Window, proposal: Tensor, gates: Gates, reach: int) -> dict[int, Tensor]:
        """The states from the window's end to block ``reach``, one image of the batch per gate."""
        gate = torch.stack(list(gates.values()))
        state = self.states[window[1] + 1].expand(len(gate), -1, -1)
        state = interpolate(state, proposal.expand_as(state), token_gate(gate, self.prefix))
        return self._run(window[1], state, reach)

    def maps(self, states: Mapping[int, Tensor], taps: Sequence[int], until: int) -> Tensor:
        """The patches of all taps side by side (B, C, h, w), replayed up to block ``until``, ordinary behind it."""
        many = len(next(iter(states.values()))) if states else 1
        chosen = [
            states[tap] if tap in states and tap <= until else self.states[tap + 1].expand(many, -1, -1)
            for tap in taps
        ]
        joined = torch.cat([self.patches(state) for state in chosen], dim=-1)
        return joined.transpose(1, 2).reshape(many, -1, *self.grid)

    def _run(self, behind: int, state: Tensor, reach: int) -> dict[int, Tensor]:
        states = {behind: state}
        for index in range(behind + 1, reach + 1):
            states[index] = state = self.backbone.blocks[index](state)
        return states


def measure(study: Study, branches: Branches) -> dict[Condition, list[Counted]]:
    """Counts of every branch for each condition and frame; every frame is stored as soon as it is done."""
    folder = study.out / branches.name
    folder.mkdir(parents=True, exist_ok=True)
    frames = spread(sorted((study.sets / "images" / branches.split).iterdir()), branches.many)
    task = partial(_measure_frame, study, folder, branches)
    with ProcessPoolExecutor(study.workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for done, _ in enumerate(pool.map(task, frames), 1):
            print(f"\r{branches.name}: {done} of {len(frames)} frames", end="", flush=True)
    print()
    return {one: [_read(_path(folder, frame, one)) for frame in frames] for one in branches.conditions}


def gains(frames: Sequence[Counted]) -> dict[str, float]:
    """mIoU of every branch less that of the ordinary pass with the same head, all frames together."""
    keys = [key for key in frames[0] if key.count("|") == 3]
    return {key: _score(frames, key) - ordinary_score(frames, key.split("|")[2]) for key in keys}


def ordinary_score(frames: Sequence[Counted], head: str) -> float:
    return _score(frames, f"ordinary|{head}")


def _score(frames: Sequence[Counted], key: str) -> float:
    return float(mean_iou(np.sum([frame[key] for frame in frames], axis=0)))


def _measure_frame(study: Study, folder: Path, branches: Branches, frame: Path) -> None:
    (backbone, normalisation), heads = _model(study, tuple(branches.heads))
    original = read_image(frame)
    for condition in branches.conditions:
        path = _path(folder, frame, condition)
        if path.exists():
            continue
        name, severity = condition
        pixels = original
        if condition != CLEAN:
            pixels = corrupt(original, name, severity, generator("camvid-c", name, severity, frame.stem))
        image = prepare(pixels, backbone, normalisation)
        label = study.sets / "annotations" / branches.split / f"{frame.stem}.png"
        truth = read_labels(label, image.shape[-2:])
        with torch.inference_mode():
            found = _branch_off(Pass(backbone, image), heads, branches, truth.where(truth >= 0, 255).numpy())
        partial_path = path.with_suffix(".part.npz")
        np.savez(partial_path, **found)  # type: ignore[arg-type]
        partial_path.replace(path)


def _branch_off(
    ordinary: Pass, heads: Mapping[str, nn.Module], branches: Branches, truth: np.ndarray
) -> dict[str, np.ndarray]:
    taps = default_taps(len(ordinary.backbone.blocks))
    patches = [state[:, ordinary.prefix :] for state in ordinary.states[1:]]
    found = {
        "signal|length": np.array([length(each).item() for each in patches]),
        "signal|spread": np.array([spread_of_lengths(each).item() for each in patches]),
    }
    for name, head in heads.items():
        found[f"ordinary|{name}"] = _count(head, ordinary.maps({}, taps, -1), truth)[0]
    for window in branches.windows:
        ends = [tap for tap in branches.until if tap >= window[1]]
        proposal = ordinary.proposal(window)
        none = proposal.new_zeros(1, proposal.shape[1] - ordinary.prefix)
        gates = branches.gates_of(ordinary.drift(window, proposal) if branches.probed else none)
        states = ordinary.replayed(window, proposal, gates, max(ends, default=window[1]))
        for until in ends:
            maps = ordinary.maps(states, taps, until)
            for name, head in heads.items():
                for gate, counts in zip(gates, _count(head, maps, truth), strict=True):
                    found[f"{window[0]}-{window[1]}|{gate}|{name}|{until}"] = counts
    return found


def _count(head: nn.Module, maps: Tensor, truth: np.ndarray) -> list[np.ndarray]:
    logits = F.interpolate(head([maps]), truth.shape, mode="bilinear", align_corners=False)
    return [count_pixels(one.numpy(), truth, logits.shape[1]) for one in logits.argmax(1)]


@cache
def _model(
    study: Study, heads: tuple[str, ...]
) -> tuple[tuple[TappedViT, Normalisation], dict[str, nn.Module]]:
    load = {"linear": lambda: load_linear_head(study.head), "deep": lambda: load_deep_head(study)}
    return load_backbone(study), {name: load[name]() for name in heads}


def _path(folder: Path, frame: Path, condition: Condition) -> Path:
    return folder / f"{frame.stem} {condition[0]} {condition[1]}.npz"


def _read(path: Path) -> Counted:
    with np.load(path) as stored:
        return dict(stored)
