"""Drift without Gram matrices next to the textbook form: time, peak memory and error of two replays.

The textbook form computes the anchor's Gram matrix once, then for each replay the proposal's, their
difference, and the mean square of its rows. Times are medians of interleaved runs; memory is the sum of live
tensors that the operators of one run returned; errors are the largest over patches, relative to float64.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from gramloop.replay.gram import GramAnchor
from live_tensors import peak_of

SHAPES = [(196, 384), (784, 384), (3136, 384), (12288, 384), (3136, 1024), (2400, 4096)]
REPLAYS = 2


def textbook(anchor: Tensor, proposals: list[Tensor]) -> list[Tensor]:
    Q0 = F.normalize(anchor, dim=-1)
    G0 = Q0 @ Q0.mT
    drifts = []
    for proposal in proposals:
        Q1 = F.normalize(proposal, dim=-1)
        drifts.append((Q1 @ Q1.mT - G0).square().mean(-1))
    return drifts


def ours(anchor: Tensor, proposals: list[Tensor]) -> list[Tensor]:
    fixed = GramAnchor(anchor)
    return [fixed.drift(proposal) for proposal in proposals]


def features(N: int, C: int) -> tuple[Tensor, list[Tensor]]:
    """Patches that resemble each other, and proposals 2% away: drift of 1e-5 to 1e-4, as in the paper."""
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(1, 1, C, generator=generator)
    anchor = common + torch.randn(1, N, C, generator=generator)
    return anchor, [anchor + 0.02 * torch.randn(1, N, C, generator=generator) for _ in range(REPLAYS)]


def seconds(methods: list[Callable[..., object]], arguments: tuple, budget: float) -> list[float]:
    """Median time of each method, runs interleaved so that both see the same machine."""
    taken: list[list[float]] = [[] for _ in methods]
    end = time.perf_counter() + budget
    while time.perf_counter() < end or len(taken[0]) < 5:
        for method, times in zip(methods, taken, strict=True):
            begin = time.perf_counter()
            method(*arguments)
            times.append(time.perf_counter() - begin)
    return [sorted(times)[len(times) // 2] for times in taken]


def worst_error(
    method: Callable[..., list[Tensor]], anchor: Tensor, proposals: list[Tensor], truth: list[Tensor]
) -> float:
    return max(
        ((got.double() - true).abs() / true).max().item()
        for got, true in zip(method(anchor, proposals), truth, strict=True)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=8.0, help="time to spend on each shape")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"torch {torch.__version__}, {arguments.threads} threads, {REPLAYS} replays, float32")
    print("    N     C | textbook   gramloop  speed-up | MB textbook  gramloop | error textbook  gramloop")
    for N, C in SHAPES:
        anchor, proposals = features(N, C)
        with torch.inference_mode():
            old, new = seconds([textbook, ours], (anchor, proposals), arguments.seconds)
            truth = textbook(anchor.double(), [p.double() for p in proposals])
            errors = [worst_error(method, anchor, proposals, truth) for method in (textbook, ours)]
        with torch.no_grad():
            memory = [
                peak_of(partial(method, anchor, proposals), [anchor, *proposals]) / 1e6
                for method in (textbook, ours)
            ]
        print(
            f"{N:5d} {C:5d} | {old:7.4f} s {new:8.4f} s {old / new:7.2f}x | "
            f"{memory[0]:10.1f} {memory[1]:10.1f} | {errors[0]:12.1e} {errors[1]:12.1e}",
            flush=True,
        )


if __name__ == "__main__":
    main()
