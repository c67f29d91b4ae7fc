"""How to make one list of boxes from several looks: weighted box fusion or soft suppression, on the embedded model.

The same looks are merged in each way, so that a pair of numbers differs by nothing else. Scenes that nothing else
sees; AP in points with a paired 95% interval over scenes.

    python benchmarks/box_merging.py --scenes 20
"""

from __future__ import annotations

import argparse

import numpy as np

from gramloop.data.scenes.drawing import THINGS, Scene, scene
from gramloop.evaluate.predicting import deterministic
from gramloop.metrics.ap import ap_score
from gramloop.metrics.bootstrap import image_bootstrap, image_draws, mean_interval, paired_delta
from gramloop.metrics.boxes import BoxPredictions, GroundTruthBoxes
from gramloop.mitigations import apply
from gramloop.mitigations.fusion import fused
from gramloop.mitigations.merging import mirrored
from gramloop.models.tiny import WEIGHTS
from gramloop.shifts import corrupt
from gramloop.tasks import load_predictor
from gramloop.tasks.detection import Detection

CONDITIONS = ("clean", "gaussian_noise", "defocus_blur", "fog")
SIGMA = 0.5  # of soft suppression, as its authors have it
SIZES = (0.75, 1.25)


def softly_suppressed(looks: list[Detection], sigma: float = SIGMA) -> Detection:
    """All boxes of all looks, each score lowered by exp(-overlap² / sigma) for every better box of its class."""
    boxes = np.concatenate([look.boxes for look in looks]).astype(np.float64)
    scores = np.concatenate([look.scores for look in looks]).astype(np.float64)
    labels = np.concatenate([look.labels for look in looks])
    order, left = [], np.arange(len(scores))
    while len(left):
        best = left[scores[left].argmax()]
        order.append(best)
        left = left[left != best]
        rivals = left[labels[left] == labels[best]]
        shared = (
            (np.minimum(boxes[best, 2:], boxes[rivals, 2:]) - np.maximum(boxes[best, :2], boxes[rivals, :2]))
            .clip(min=0)
            .prod(1)
        )
        areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
        overlap = shared / np.maximum(areas[rivals] + areas[best] - shared, 1e-9)
        scores[rivals] *= np.exp(-(overlap**2) / sigma)
    order = order[: max(len(look.scores) for look in looks)]
    return Detection(boxes[order].astype(np.float32), scores[order].astype(np.float32), labels[order])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenes", type=int, default=20)
    parser.add_argument("--severity", type=int, default=3)
    args = parser.parse_args()
    predictor = load_predictor("detection", {"folder": str(WEIGHTS)})
    resized = [apply(f"resize:{size}", predictor) for size in SIZES]
    drawn = [scene(index, split="box-merging") for index in range(args.scenes)]
    truth = _truth(drawn)
    found: dict[tuple[str, str], dict[int, Detection]] = {}
    with deterministic(1):
        for condition in CONDITIONS:
            for index, one in enumerate(drawn):
                rng = np.random.default_rng([index, len(condition)])
                shown = (
                    one.image if condition == "clean" else corrupt(one.image, condition, args.severity, rng)
                )
                plain = predictor.predict(shown)
                turned = mirrored(predictor.predict(np.ascontiguousarray(shown[:, ::-1])), shown.shape[1])
                looks = {
                    "flip": [plain, turned],
                    "scales": [plain, *(each.predict(shown) for each in resized)],
                }
                found.setdefault(("plain", condition), {})[index] = plain
                for name, each in looks.items():
                    found.setdefault((f"{name}, fused", condition), {})[index] = fused(each)
                    found.setdefault((f"{name}, suppressed", condition), {})[index] = softly_suppressed(each)
    print(f"{args.scenes} scenes, severity {args.severity}, points of AP")
    print(
        f"| looks | {' | '.join(f'Δ {each}' for each in CONDITIONS)} | Δ mean of shifts |\n|{'---|' * (len(CONDITIONS) + 2)}"
    )
    for looks in ("flip", "scales"):
        names = (f"{looks}, fused", f"{looks}, suppressed")
        for name, against in ((names[0], "plain"), (names[1], "plain"), names[::-1]):
            deltas = [
                paired_delta(
                    *(ap_score(truth, BoxPredictions.of(found[way, each])) for way in (against, name))
                )
                for each in CONDITIONS
            ]
            cells = [str(image_bootstrap(each, args.scenes)) for each in deltas]
            mean = mean_interval([image_draws(each, args.scenes) for each in deltas[1:]], args.scenes)
            print(f"| {name} against {against} | {' | '.join(cells)} | {mean} |", flush=True)


def _truth(drawn: list[Scene]) -> GroundTruthBoxes:
    owners = np.repeat(np.arange(len(drawn)), [len(one.categories) for one in drawn])
    boxes = np.concatenate([one.boxes for one in drawn]).astype(np.float64)
    return GroundTruthBoxes(
        images=list(range(len(drawn))),
        categories=list(range(1, len(THINGS) + 1)),
        image_ids=owners,
        boxes=boxes,
        labels=np.concatenate([one.categories for one in drawn]) + 1,
        areas=boxes[:, 2:].prod(1),
        crowd=np.zeros(len(boxes), dtype=bool),
    )


if __name__ == "__main__":
    main()
