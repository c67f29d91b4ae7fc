"""Seconds per image of every corruption, next to the package `imagecorruptions`, one thread for both.

Both see the same image, each time the best of a few runs. Corruptions on which the package fails with the
installed numpy and scikit-image are timed for ours alone and left out of the ratio.
"""

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
from scipy import ndimage

from gramloop.shifts.common import generator
from gramloop.shifts.recipes import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt

sys.path.append(
    str(Path(sys.prefix) / "test-packages")
)  # where make puts what only it and tests compare with
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import imagecorruptions

SIZES = ((640, 480, 0.5), (2048, 1536, 0.25))  # width, height, the share of the package's time to stay below


def picture(width: int, height: int) -> np.ndarray:
    """Soft coloured noise with hard edges, so that no corruption meets an easy case."""
    rng = np.random.default_rng(1)
    soft = ndimage.zoom(rng.random((height // 16, width // 16, 3)), (16, 16, 1), order=1)[:height, :width]
    soft[height // 4 : height // 2, width // 4 : width // 2] *= 0.3
    return (255 * soft).astype(np.uint8)


def best(call: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def package_time(image: np.ndarray, name: str, severity: int, repeats: int) -> float | None:
    try:
        return best(lambda: imagecorruptions.corrupt(image, severity, name), repeats)
    except (AttributeError, TypeError):
        return None


def compare(width: int, height: int, bar: float, severity: int, repeats: int) -> None:
    print(f"\n{width} x {height}, severity {severity}: seconds per image, best of {repeats}")
    print(f"{'':20}{'package':>10}{'gramloop':>10}{'ratio':>8}")
    image = picture(width, height)
    sums = {"benchmark": [0.0, 0.0], "all": [0.0, 0.0]}
    for name in CORRUPTIONS + EXTRA_CORRUPTIONS:
        for seed in range(
            24 if name == "frost" else 1
        ):  # warm: the frost textures are painted once per process
            corrupt(image, name, severity, generator("bench", name, severity, seed))
        rng = generator("bench", name, severity, 0)
        ours = best(lambda name=name, rng=rng: corrupt(image, name, severity, rng), repeats)
        theirs = package_time(image, name, severity, repeats)
        if theirs is None:
            print(f"{name:20}{'fails':>10}{ours:10.4f}")
            continue
        print(f"{name:20}{theirs:10.4f}{ours:10.4f}{ours / theirs:8.2f}")
        for group in ("benchmark", "all") if name in CORRUPTIONS else ("all",):
            sums[group][0] += theirs
            sums[group][1] += ours
    for group, (theirs, ours) in sums.items():
        print(f"{'sum, ' + group:20}{theirs:10.4f}{ours:10.4f}{ours / theirs:8.3f}   (bar {bar})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--severity", type=int, nargs="+", default=[3, 5])
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    cv2.setNumThreads(1)
    for width, height, bar in SIZES:
        for severity in args.severity:
            compare(width, height, bar, severity, args.repeats)


if __name__ == "__main__":
    main()
