"""How long the command line takes to say its help, against Python that does nothing.

    python benchmarks/startup.py [--rounds N]

Both are started in turn, so that a busy machine slows both; the median of each and their ratio are printed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

START = "import sys; from gramloop.cli import main; sys.exit(main(sys.argv[1:]))"
BARE = "bare Python"
CASES = {
    BARE: ["-c", "pass"],
    "gramloop --version": ["-c", START, "--version"],
    "gramloop --help": ["-c", START, "--help"],
    "gramloop evaluate --help": ["-c", START, "evaluate", "--help"],
    "gramloop tune --help": ["-c", START, "tune", "--help"],
    "gramloop predict --help": ["-c", START, "predict", "--help"],
}


def seconds(words: list[str]) -> tuple[float, float]:
    """By the clock, and of the processor."""
    before, begin = os.times(), time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    took, after = time.perf_counter() - begin, os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return took, used


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15, help="how often each is started (15)")
    rounds = parser.parse_args().rounds
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in CASES}
    for _ in range(rounds):
        for name, words in CASES.items():
            found[name].append(seconds(words))
    bare = statistics.median(took for took, _ in found[BARE])
    for name, each in found.items():
        took = statistics.median(took for took, _ in each)
        used = statistics.median(used for _, used in each)
        print(
            f"{name:26} {took:.3f} s by the clock, {used:.3f} s of a core, {took / bare:4.1f} x bare Python"
        )


if __name__ == "__main__":
    main()
