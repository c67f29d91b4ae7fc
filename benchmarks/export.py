"""The same model eager, compiled and in onnxruntime, plain and with mitigations, side by side on one thread.

The embedded model segments images of one size. Every round times all of them one after the other, in an order that
rotates; ratios are medians over rounds of time by that of the eager model in the same round.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from gramloop import Adaptive, ReplayConfig
from gramloop.export import export_model
from gramloop.export.programs import subject_of
from gramloop.mitigations.mitigated import mitigate
from gramloop.mitigations.stack import read_stack
from gramloop.models.tiny import SOURCE, SUGGESTED
from gramloop.replay.config import read_replay
from gramloop.tasks.loading import open_model

Run = Callable[[], object]


def variants() -> dict[str, tuple[object, Path | None]]:
    """What is compared: the mitigations, and calibration statistics where they are needed."""
    replay = read_replay(SUGGESTED)
    return {
        "plain": ((), None),
        "replayed": (ReplayConfig(window=(2, 3), replays=1), None),
        "adaptive": (ReplayConfig(window=(2, 3), replays=1, adaptive=Adaptive("noise", 0.0, 1e6)), None),
        "suggested": (replay, None),
        "recentred": ("recentre:c=2", SOURCE),
    }


def onnx_run(path: Path, image: np.ndarray) -> Run:
    """The file in onnxruntime on one thread."""
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"image": image})


def timed(runs: dict[str, Run], rounds: int) -> dict[str, list[float]]:
    """Seconds of the processor for every run in every round."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for run in runs.values():
        run()
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            start = time.process_time()
            runs[name]()
            found[name].append(time.process_time() - start)
    return found


def compare(name: str, wanted: object, source: Path | None, side: int, rounds: int, compiled: bool) -> None:
    """Print one variant's times."""
    stack, stats = read_stack(wanted, source)  # type: ignore[arg-type]
    predictor = open_model("tiny", "semantic")
    subject = subject_of(predictor, (side, side), "tiny")
    image = subject.example(1)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        began = time.process_time()
        file = export_model(
            predictor,
            Path(folder) / "model.onnx",
            mitigations=wanted,  # type: ignore[arg-type]
            stats=source,
            height=side,
            width=side,
        )
        exporting = time.process_time() - began
        with mitigate(subject.root, stack, stats, predictor=predictor):
            runs: dict[str, Run] = {"eager": lambda: subject.program(image)}
            if compiled:
                torch._dynamo.reset()
                fast = torch.compile(subject.program, fullgraph=True)
                runs["compiled"] = lambda: fast(image)
            runs["onnxruntime"] = onnx_run(file.path, image.numpy())
            times = timed(runs, rounds)
    eager = times.pop("eager")
    words = [f"eager {1e3 * statistics.median(eager):6.1f} ms"]
    for other, found in times.items():
        ratio = statistics.median(mine / base for mine, base in zip(found, eager, strict=True))
        words.append(f"{other} {1e3 * statistics.median(found):6.1f} ms, {ratio:.2f} of eager")
    print(
        f"{name:10} {'; '.join(words)}; difference {file.difference:.0e}; exported in {exporting:.0f} s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=192, help="pixels of the image")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--variant", action="append", choices=tuple(variants()), help="some alone")
    parser.add_argument(
        "--no-compile", action="store_true", help="leave torch.compile out: it needs a C++ compiler"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"the embedded model, {args.side} x {args.side}, one thread, medians of {args.rounds} rounds, processor time"
    )
    for name, (wanted, source) in variants().items():
        if not args.variant or name in args.variant:
            compare(name, wanted, source, args.side, args.rounds, not args.no_compile)


if __name__ == "__main__":
    main()
