"""What mitigations gain on the embedded model, beside each other: scenes that nothing else sees, all corruptions.

For each: the change in mIoU on clean scenes and on the mean over families, with a paired 95% interval over scenes,
and milliseconds per image against the plain model's. Source statistics come from other scenes, without labels.

    python benchmarks/mitigations.py --scenes 16 --severity 3
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict

import numpy as np

from gramloop.data.scenes.drawing import scene
from gramloop.evaluate.predicting import deterministic
from gramloop.metrics.bootstrap import image_bootstrap, image_draws, mean_interval, miou_delta
from gramloop.metrics.miou import count_pixels
from gramloop.mitigations import apply, calibrate, stack_cost
from gramloop.models.tiny import WEIGHTS, suggested_replay
from gramloop.replay.config import replay_text
from gramloop.shifts import CORRUPTIONS, corrupt
from gramloop.tasks import load_predictor

REPLAY = f"replay:{replay_text(suggested_replay())}"
WAYS = [
    "recentre:0.1", "recentre:0.3", "recentre:0.5", "recentre:0.8", "recentre:c=1", "recentre:c=2", "median",
    "denoise", "levels", "sharpen", "flip", "resize:1.25", REPLAY, "substeps:2,window=6-6",
    f"recentre:0.3+{REPLAY}", "recentre:0.3+denoise", "recentre:0.3+denoise+levels",
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenes", type=int, default=16)
    parser.add_argument("--severity", type=int, default=3)
    parser.add_argument("--source", type=int, default=30, help="ordinary scenes for the statistics")
    parser.add_argument("--family", action="append", choices=CORRUPTIONS, help="some only; can be repeated")
    args = parser.parse_args()
    families = args.family or list(CORRUPTIONS)
    predictor = load_predictor("semantic", {"folder": str(WEIGHTS)})
    source = calibrate(predictor, [scene(index, split="source").image for index in range(args.source)])
    ways = {"plain": predictor, **{text: apply(text, predictor, source) for text in WAYS}}
    counts = defaultdict[tuple[str, str], list[np.ndarray]](list)
    spent = defaultdict[str, float](float)
    with deterministic(1):
        for index in range(args.scenes):
            drawn = scene(index, split="mitigations")
            truth = drawn.labels - 1  # bytes: 0, which is unlabelled, becomes 255
            for family in ("clean", *families):
                rng = np.random.default_rng([index, len(family), ord(family[0])])
                shown = drawn.image if family == "clean" else corrupt(drawn.image, family, args.severity, rng)
                for name, way in ways.items():
                    began = time.perf_counter()
                    labels = way.predict(shown).labels
                    spent[name] += time.perf_counter() - began
                    found = count_pixels(labels, truth, len(predictor.classes))
                    counts[name, family].append(found)
    print(f"{args.scenes} scenes, {len(families)} families at severity {args.severity}, mIoU points")
    print("| mitigation | Δ clean | Δ mPC | families up | work | time |\n|---|---|---|---|---|---|")
    for name in WAYS:
        stacked = {family: np.stack(counts[name, family]) for family in ("clean", *families)}
        plain = {family: np.stack(counts["plain", family]) for family in stacked}
        deltas = {family: miou_delta(plain[family], stacked[family]) for family in stacked}
        clean = image_bootstrap(deltas["clean"], args.scenes)
        draws = [image_draws(deltas[family], args.scenes) for family in families]
        up = sum(float(draw[0]) > 0 for draw in draws)
        cost = stack_cost(ways[name].stack, predictor).multiplier
        ratio = spent[name] / spent["plain"]
        print(
            f"| `{name}` | {clean} | {mean_interval(draws, args.scenes)} | {up} of {len(draws)} "
            f"| {cost:.2f}x | {ratio:.2f}x |"
        )


if __name__ == "__main__":
    main()
