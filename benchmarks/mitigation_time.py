"""CPU time of mitigations relative to the baseline, on noisy and foggy photographs, one thread, image by image.

    python benchmarks/mitigation_time.py PHOTOS examples/saliency.py:make levels+recentre:c=2 replay:window=2-2,replays=1

Half of the photographs, at most 12, calibrate; up to 8 of the others are timed under two shifts.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from pathlib import Path

import cv2
import torch

from gramloop.errors import UntunedWindowWarning
from gramloop.mitigations import apply, calibrate
from gramloop.shifts import corrupt
from gramloop.tasks import open_model, read_image


def main(folder: str, model: str, *methods: str) -> None:
    """Print the median over images of each method's time, alone and relative to the baseline's."""
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    warnings.simplefilter("ignore", UntunedWindowWarning)
    files = sorted(path for path in Path(folder).iterdir() if path.suffix.lower() in (".jpg", ".png"))
    predictor, some = open_model(model), min(12, len(files) // 2)
    stats = calibrate(predictor, files[:some])
    compared = {"baseline": predictor, **{text: apply(text, predictor, stats) for text in methods}}
    seconds: dict[str, list[float]] = {name: [] for name in compared}
    for file in files[some : some + 8]:
        for shift in ("gaussian_noise", "fog"):
            pixels = corrupt(read_image(file), corruption_name=shift, severity=3, seed=0)
            for name, each in compared.items():
                begin = time.process_time()
                each.predict(pixels)
                seconds[name].append(time.process_time() - begin)
    for name, took in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(took, seconds["baseline"], strict=True))
        print(f"{name}: {1000 * statistics.median(took):.0f} ms, {ratio:.2f}x")


if __name__ == "__main__":
    main(*sys.argv[1:])
