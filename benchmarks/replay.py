"""What an attached replay costs in wall time and memory, next to its block count.

A random DINOv3 ViT-S (12 blocks, width 384, transformers' modules, float32) with and without the replay.
Times are medians of interleaved forwards. Memory is counted twice: tensors (weights, input and everything
alive at once inside the forward) and the peak of a fresh process.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from transformers import DINOv3ViTConfig, DINOv3ViTModel

import gramloop
from live_tensors import peak_of

SIDES = (512, 896)


def vit_small() -> nn.Module:
    torch.manual_seed(0)
    return DINOv3ViTModel(
        DINOv3ViTConfig(
            hidden_size=384, num_hidden_layers=12, num_attention_heads=6, intermediate_size=1536,
            num_register_tokens=4, layerscale_value=0.1,
        )
    ).eval()  # fmt: skip


def compare(model: nn.Module, x: Tensor, config: gramloop.ReplayConfig, budget: float) -> tuple[float, float]:
    """Median seconds of plain and attached forwards, taken in turns."""
    plain: list[float] = []
    attached: list[float] = []
    end = time.perf_counter() + budget
    while time.perf_counter() < end or len(plain) < 5:
        plain.append(_timed(model, x))
        with gramloop.attached(model, config):
            attached.append(_timed(model, x))
    return sorted(plain)[len(plain) // 2], sorted(attached)[len(attached) // 2]


def _timed(model: nn.Module, x: Tensor) -> float:
    begin = time.perf_counter()
    model(x)
    return time.perf_counter() - begin


def tensor_memory(model: nn.Module, x: Tensor, config: gramloop.ReplayConfig | None) -> float:
    """Megabytes of weights, input and the forward's own tensors at their peak."""
    given = [*model.parameters(), *model.buffers(), x]
    with nullcontext() if config is None else gramloop.attached(model, config):
        return (sum(tensor.nbytes for tensor in given) + peak_of(lambda: model(x), given)) / 1e6


def process_memory(side: int, attached: bool) -> float:
    """Peak megabytes of a fresh process that runs three forwards."""
    arguments = [sys.executable, __file__, "--child", str(side), "attached" if attached else "plain"]
    return float(subprocess.run(arguments, capture_output=True, text=True, check=True).stdout)


def child(side: int, attached: bool) -> None:
    model, x = vit_small(), torch.randn(1, 3, side, side)
    with torch.inference_mode():
        if attached:
            gramloop.attach(model)
        for _ in range(3):
            model(x)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=40.0, help="time to spend on each side and window")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(int(arguments.child[0]), arguments.child[1] == "attached")
        return
    model = vit_small()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; ViT-S/16, 12 blocks, K=2")
    print("side window   | plain      attached   ratio | blocks  multiplier | ratio / multiplier")
    with torch.inference_mode():
        for side in SIDES:
            x = torch.randn(1, 3, side, side)
            for window in (None, (3, 3), (10, 10)):
                config = gramloop.ReplayConfig(window=window)
                with gramloop.attached(model, config) as loop:
                    chosen = loop.config.window
                cost = gramloop.cost(12, chosen)
                plain, attached = compare(model, x, config, arguments.seconds)
                print(
                    f"{side:4d} {chosen!s:8s} | {plain:.3f} s   {attached:.3f} s   {attached / plain:.2f}x | "
                    f"{cost.blocks:4d}    {cost.multiplier:.2f}x      | {attached / plain / cost.multiplier:.3f}",
                    flush=True,
                )
    print("side | MB of tensors: plain  attached  ratio | MB of process: plain  attached  ratio")
    for side in SIDES:
        with torch.no_grad():
            x = torch.randn(1, 3, side, side)
            tensors = [tensor_memory(model, x, config) for config in (None, gramloop.ReplayConfig())]
        process = [process_memory(side, attached) for attached in (False, True)]
        print(
            f"{side:4d} | {tensors[0]:20.1f} {tensors[1]:9.1f} {tensors[1] / tensors[0]:6.3f} | "
            f"{process[0]:20.1f} {process[1]:9.1f} {process[1] / process[0]:6.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
