"""How often an interval of AP over images holds the truth, where that is known.

A population of images with predictions made up by rule (`simulated_set`) stands for all images there are; sets are drawn
from it, and each is resampled as a report does. An interval of level 95% should hold the population's own score in 95 of
100 sets. Percentile intervals are what reports use; basic ones, 2 x estimate - percentiles, are beside them.

    python benchmarks/ap_intervals.py                     # sets of 100, 500 and 2,000 images, some minutes
    python benchmarks/ap_intervals.py --images 500 --sets 100
"""

from __future__ import annotations

import argparse
import sys
from datetime import date

import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from ap_draws import matched
from gramloop.metrics.bootstrap import LEVEL

METHODS = ("baseline", "gramloop")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--images", type=int, nargs="+", default=[100, 500, 2000], help="of a set")
    parser.add_argument("--population", type=int, default=5000, help="images that sets are drawn from")
    parser.add_argument("--sets", type=int, default=300)
    parser.add_argument("--draws", type=int, default=400, help="of each set")
    parser.add_argument("--detections", type=int, default=30, help="boxes an image (30)")
    args = parser.parse_args()
    methods = [matched(args.population, args.detections, method) for method in METHODS]

    def scores(
        weights: NDArray[np.int64],
    ) -> NDArray[np.float64]:  # (draws, images) → (draws, 2): AP and gain
        baseline, replayed = (method(weights) for method in methods)
        return np.stack([baseline, replayed - baseline], axis=1)

    truth = scores(np.ones((1, args.population), np.int64))[0]
    print(
        f"{args.sets} sets, {args.draws} draws of each, {date.today()}; AP {truth[0]:.2f}, gain {truth[1]:+.2f}"
    )
    print("| images | | off by | draws off by | width | percentile holds | basic holds |")
    print("|---:|---|---:|---:|---:|---:|---:|")
    rng = np.random.default_rng(0)
    for images in args.images:
        found, drawn = [], []
        for _ in track(range(args.sets), f"{images} images", disable=not sys.stdout.isatty()):
            own = rng.multinomial(images, np.full(args.population, 1 / args.population))
            found.append(scores(own[np.newaxis])[0])
            drawn.append(scores(rng.multinomial(images, own / images, size=args.draws)))
        tell(images, truth, np.array(found), np.array(drawn))


def tell(
    images: int, truth: NDArray[np.float64], found: NDArray[np.float64], drawn: NDArray[np.float64]
) -> None:
    """``found`` is (sets, 2), ``drawn`` (sets, draws, 2)."""
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=1)
    percentile = (low <= truth) & (truth <= high)
    basic = (2 * found - high <= truth) & (truth <= 2 * found - low)
    bias, again = (found - truth).mean(axis=0), (drawn.mean(axis=1) - found).mean(axis=0)
    for place, name in enumerate(("AP", "gain")):
        held = [100 * each[:, place].mean() for each in (percentile, basic)]
        width = (high - low)[:, place].mean()
        print(
            f"| {images} | {name} | {bias[place]:+.2f} | {again[place]:+.2f} | {width:.2f} "
            f"| {held[0]:.0f}% | {held[1]:.0f}% |",
            flush=True,
        )


if __name__ == "__main__":
    main()
