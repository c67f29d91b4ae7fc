"""How often intervals that should hold together do not: methods that are all alike, and any pair told apart is wrong.

For each kind of effects, number of units (families or images) and number of methods: the share of suites in which
some joint 95% interval, of all pairs or of all gains over the first method, leaves out zero. 5% is meant.

    python benchmarks/joint_intervals.py --trials 800
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

from gramloop.metrics.bootstrap import joint_intervals

RNG = np.random.default_rng(0)
EFFECTS = {
    "normal": lambda size: RNG.normal(size=size),
    "heavy tails (t4)": lambda size: RNG.standard_t(4, size=size),
    "skewed (exponential)": lambda size: RNG.exponential(size=size) - 1,
}


def wrong(effects: NDArray[np.float64], replicates: int) -> tuple[bool, bool]:
    """Whether any pair, and any gain over the first method, is told apart; effects are (units, methods)."""
    units, methods = effects.shape
    drawn = RNG.multinomial(units, np.full(units, 1 / units), size=replicates) @ effects / units
    scores = np.concatenate([effects.mean(axis=0)[None], drawn]).T  # (methods, 1 + replicates)
    first, second = np.triu_indices(methods, 1)
    sets = scores[first] - scores[second], scores[1:] - scores[:1]
    apart = [any(each.low > 0 or each.high < 0 for each in joint_intervals(draws, units)) for draws in sets]
    return apart[0], apart[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=800)
    parser.add_argument("--replicates", type=int, default=1000)
    args = parser.parse_args()
    print(
        "| effects | units | 4 methods, pairs | gains | 15 methods, pairs | gains |\n|---|---|---|---|---|---|"
    )
    for name, draw in EFFECTS.items():
        for units in (3, 6, 15, 50, 200):
            shares = []
            for methods in (4, 15):
                told = [
                    wrong(draw((units, methods)) + draw((units, 1)), args.replicates)
                    for _ in range(args.trials)
                ]  # half of the variance is common to all methods
                shares += [f"{share:.1%}" for share in np.mean(told, axis=0)]
            print(f"| {name} | {units} | {' | '.join(shares)} |", flush=True)


if __name__ == "__main__":
    main()
