"""When and how many times to replay, and cheaper probes: what the paper leaves for later, measured on models at hand.

One: replays of an image stop once the accepted step, or the drift of the proposals, settles. Against a fixed number of
replays: blocks, and the gain that is kept; and the best number for each image, which nothing can know.
Two: drift is measured at an earlier block, or against a sample of the patches. Against the exact gate: rank correlation
and mean difference of the gates of the first replay, blocks, and the gain.

    python benchmarks/adaptive_replays.py                                        # the embedded model on drawn scenes
    python benchmarks/adaptive_replays.py --model examples/saliency.py:make --photos DIR
    python benchmarks/adaptive_replays.py --street out/evidence/camvid           # DINOv2-S with linear heads, CamVid

The folder of the last one is made by ``python benchmarks/evidence.py street``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from scipy.stats import spearmanr

from evidence_camvid import DRIVES, SHORT_SIDE, label_of, spread
from gramloop.data.scenes import scene
from gramloop.metrics.bootstrap import image_bootstrap, miou_score, paired_delta
from gramloop.metrics.segmentation import count_pixels
from gramloop.replay import gram
from gramloop.replay.config import ReplayConfig, extra_blocks, parse_replay, route
from gramloop.replay.gram import Trace
from gramloop.shifts import corrupt
from gramloop.tasks import load_predictor
from gramloop.tasks.images import read_image
from gramloop.tasks.loading import model_files
from gramloop.util.device import deterministic

FAMILIES = ("gaussian_noise", "impulse_noise", "defocus_blur", "fog", "contrast", "jpeg_compression")
MOST = 4  # replays
SAMPLES = (2, 4, 16)  # one patch of so many


@dataclass
class Seen:
    """What is known of one image: pixel counts by method, and steps and drifts of its replays."""

    counts: dict[str, np.ndarray]
    steps: list[float]
    drifts: list[float]
    gates: dict[str, np.ndarray]


def models(
    arguments: argparse.Namespace,
) -> Iterator[tuple[Any, Iterator[tuple[np.ndarray, np.ndarray | None]]]]:
    """Each predictor with its pixels and truth; without labels the truth is None."""
    if arguments.street is None:
        yield load_predictor("semantic", model_files(arguments.model)), images(arguments)
        return
    for drive in DRIVES:
        files = {"backbone": str(arguments.street / "backbone.pt")}
        files["head"] = str(arguments.street / f"{drive}.safetensors")
        predictor = load_predictor("semantic", files, {"mode": "whole", "short_side": SHORT_SIDE})
        frames = spread(
            sorted((arguments.street / "images" / drive).iterdir()), arguments.images // len(DRIVES)
        )
        yield (
            predictor,
            ((read_image(frame), np.asarray(Image.open(label_of(frame))) - 1) for frame in frames),
        )


def images(arguments: argparse.Namespace) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """Drawn scenes, or photographs without labels."""
    if arguments.photos is None:
        for index in range(arguments.images):
            drawn = scene(index, split="adaptive")
            yield drawn.image, drawn.labels - 1  # bytes: 0, which is unlabelled, becomes 255
        return
    for path in sorted(arguments.photos.glob("*.jpg"))[: arguments.images]:
        yield read_image(path), None


@contextmanager
def watched() -> Iterator[list[tuple[float, float, np.ndarray]]]:
    """Mean accepted step, mean drift and gate of every replay."""
    found: list[tuple[float, float, np.ndarray]] = []
    record = Trace.record

    def keep(self: Trace, drift: Any, gate: Any, step: Any, valid: Any) -> None:
        length = float(torch.linalg.vector_norm(step.float(), dim=-1).mean())
        found.append((length, float(drift.mean()), gate[0].numpy().copy()))
        record(self, drift, gate, step, valid)

    Trace.record = keep  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Trace.record = record  # type: ignore[method-assign]


@contextmanager
def sampled(share: int) -> Iterator[None]:
    """Compare every patch with one of so many, evenly spread, in place of all."""
    exact = gram._squared_row_change

    def some(D: torch.Tensor, M2: torch.Tensor) -> torch.Tensor:
        chosen = slice(share // 2, None, share)
        change = D @ M2[chosen].T + M2 @ D[chosen].T
        return change.square().sum(1) * (len(D) / change.shape[1])

    gram._squared_row_change = some
    try:
        yield
    finally:
        gram._squared_row_change = exact


def look(
    predictor: Any, shown: np.ndarray, truth: np.ndarray, config: ReplayConfig, probes: list[Any]
) -> Seen:
    """Predict one image in every way."""
    many = len(predictor.classes)
    seen = Seen({"baseline": count_pixels(predictor.predict(shown).labels, truth, many)}, [], [], {})

    def run(name: str, used: ReplayConfig) -> list[tuple[float, float, np.ndarray]]:
        with watched() as found:
            labels = predictor.predict(shown, used, trace=True).labels
        seen.counts[name] = count_pixels(labels, truth, many)
        seen.gates[name] = found[0][2]
        return found

    for replays in range(1, MOST + 1):
        found = run(f"K={replays}", replace(config, replays=replays))
    seen.steps, seen.drifts = [each[0] for each in found], [each[1] for each in found]
    for block in probes:
        run(f"probe {block}", replace(config, gate_at=block))
    for share in SAMPLES:
        with sampled(share):
            run(f"1 of {share}", config)
    return seen


def halted(values: list[float], limit: float, change: bool) -> int:
    """Replays until a value falls to a share of the first or, with ``change``, moves by less than a share."""
    for number in range(1, len(values)):
        settled = abs(values[number] / max(values[number - 1], 1e-12) - 1) < limit if change else (
            values[number] < limit * values[0]
        )  # fmt: skip
        if settled:
            return number + 1
    return len(values)


def print_gain(
    name: str, seen: list[Seen], choose: Callable[[Seen], str], blocks: Callable[[str], float]
) -> None:
    """One line: blocks and the gain over the baseline with its interval over images."""
    chosen = [choose(each) for each in seen]
    many = len(FAMILIES)  # an image is drawn with all its shifts
    own = np.stack([each.counts[key] for each, key in zip(seen, chosen, strict=True)])
    base = np.stack([each.counts["baseline"] for each in seen])
    base, own = (each.reshape(-1, many, *each.shape[1:]).sum(1) for each in (base, own))
    found = image_bootstrap(paired_delta(miou_score(base), miou_score(own)), len(own))
    cost = np.mean([blocks(key) for key in chosen])
    print(f"  {name:32s} {cost:6.1f} blocks  {found.estimate:+.3f} [{found.low:+.3f}, {found.high:+.3f}]")


def image_score(counts: np.ndarray) -> float:
    both, found, true = counts
    union = found + true - both
    return float(np.mean(both[union > 0] / union[union > 0]))


def report(seen: list[Seen], config: ReplayConfig, depth: int, probes: list[Any]) -> None:
    """Both tables."""

    def blocks(key: str) -> float:
        used: Mapping[str, ReplayConfig] = {
            **{f"K={k}": replace(config, replays=k) for k in range(1, MOST + 1)},
            **{f"probe {p}": replace(config, gate_at=p) for p in probes},
        }
        return depth + (0 if key == "baseline" else extra_blocks(used.get(key, config), depth))

    print(f"When and how many times, {len(seen)} images:")
    for k in range(1, MOST + 1):
        print_gain(f"K={k}", seen, lambda each, k=k: f"K={k}", blocks)
    for limit in (0.75, 0.5, 0.25):
        print_gain(f"until the step is below {limit:g} of the first", seen,
                   lambda each, limit=limit: f"K={halted(each.steps, limit, False)}", blocks)  # fmt: skip
    for limit in (0.5, 0.2):
        print_gain(f"until drift changes by < {limit:.0%}", seen,
                   lambda each, limit=limit: f"K={halted(each.drifts, limit, True)}", blocks)  # fmt: skip
    names = ["baseline", *(f"K={k}" for k in range(1, MOST + 1))]
    print_gain("the best number of each image", seen,
               lambda each: max(names, key=lambda name: image_score(each.counts[name])), blocks)  # fmt: skip
    print(f"Cheaper probes, K={config.replays}:")
    exact = f"K={config.replays}"
    for name in [exact, *(f"probe {p}" for p in probes), *(f"1 of {share}" for share in SAMPLES)]:
        ranks = np.mean([spearmanr(each.gates[exact], each.gates[name]).statistic for each in seen])
        away = np.mean([np.abs(each.gates[exact] - each.gates[name]).mean() for each in seen])
        print_gain(f"{name}: rank {ranks:.2f}, off {away:.3f}", seen, lambda each, name=name: name, blocks)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="tiny", help="as gramloop evaluate takes it")
    parser.add_argument(
        "--photos", type=Path, help="a folder of JPEGs; the truth is then the clean prediction"
    )
    parser.add_argument("--street", type=Path, help="the folder camvid of evidence.py")
    parser.add_argument("--images", type=int, default=12)
    parser.add_argument("--every", type=int, default=1, help="probe at every Nth block only")
    parser.add_argument(
        "--replay", default="", help="settings of a Gram-gated replay; the published one by default"
    )
    parser.add_argument("--severity", type=int, default=4)
    arguments = parser.parse_args()
    config = parse_replay(arguments.replay) if arguments.replay else ReplayConfig()
    seen: list[Seen] = []
    index = 0
    for predictor, shown_images in models(arguments):
        depth = predictor.cost().baseline
        end = route(config, depth).end
        probes = ["end", *range(end + 1, depth - 1)][:: arguments.every]
        for pixels, truth in shown_images:
            with deterministic(1):
                labels = predictor.predict(pixels).labels.astype(np.uint8) if truth is None else truth
                for family in FAMILIES:
                    rng = np.random.default_rng([index, FAMILIES.index(family)])
                    shown = corrupt(pixels, family, arguments.severity, rng)
                    seen.append(look(predictor, shown, labels, config, probes))
            index += 1
    report(seen, config, depth, probes)


if __name__ == "__main__":
    main()
