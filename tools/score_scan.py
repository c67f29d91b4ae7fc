"""Which label-free score of a scan orders windows like their true gains? Measured on the embedded model.

    python tools/score_scan.py --scenes 16

True gains: Δ mIoU of every window of 1 to 3 blocks, one Gram-gated replay at two strengths, against the ordinary
prediction. The scan sees other scenes (split "scan") under other shifts, and no label. Intervals: scenes are
resampled, the scores stay. Predictions are kept in ``--out`` and not made twice.
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from scipy.stats import spearmanr

from gramloop.data.scenes.drawing import CLASSES, scene
from gramloop.metrics.miou import count_pixels, mean_iou
from gramloop.models.tiny import TinyModel, load_tiny
from gramloop.replay.config import Window
from gramloop.shifts.corruptions import corrupt
from gramloop.shifts.seeds import generator
from gramloop.tasks.images import to_tensor
from gramloop.tune.scan.files import to_json
from gramloop.tune.scan.scanning import scan_windows
from gramloop.tune.scan.scores import SCORES
from gramloop.tune.scan.sweep import all_windows
from gramloop.util.files import atomic_write
from window_gains import predict

SIZE = 192
SPLIT = "scan-gains"  # nothing else looks at these scenes
SHIFTS = ("shot_noise", "motion_blur", "frost", "pixelate")  # none of the scan's own
STRENGTHS = (1.0, 0.2)
LENGTHS = 3
REPLICATES = 500


def main() -> None:
    """Measure or read the gains, scan, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenes", type=int, default=16, help="scenes for the true gains")
    parser.add_argument("--first", type=int, default=0, help="index of the first of them")
    parser.add_argument("--scanned", type=int, default=4, help="scenes that the scan sees")
    parser.add_argument("--severity", type=int, default=3, help="of the shifts under which gains are taken")
    parser.add_argument("--out", type=Path, default=Path("out/score_scan"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    tiny = load_tiny()
    windows = all_windows(tiny.backbone.shape.depth, LENGTHS)
    counts = _counts(args.out, tiny, windows, args)
    found = scan_windows(
        tiny.backbone,
        [scene(index, SIZE, "scan").image for index in range(args.scanned)],
        preprocess=lambda pixels: lambda: tiny.backbone(to_tensor(pixels), [len(tiny.backbone.blocks) - 1]),
        max_length=LENGTHS,
    )
    atomic_write(args.out / "scan.json", to_json(found))
    rows = compare({name: score(found) for name, score in SCORES.items()}, counts)
    console = Console(width=160)
    console.print(
        f"{len(windows)} windows, scenes {args.first} to {args.first + args.scenes - 1}, shifts {', '.join(SHIFTS)} at {args.severity}"
    )
    console.print("\n".join(markdown(rows)), markup=False)
    _print_best(console, windows, counts)
    atomic_write(args.out / f"correlations-{args.first}.json", (json.dumps(rows, indent=1) + "\n").encode())


def _counts(
    folder: Path, tiny: TinyModel, windows: tuple[Window, ...], args: argparse.Namespace
) -> np.ndarray:
    """Pixel counts (settings, conditions, scenes, 3, classes): ordinary and clean come first."""
    each = []
    for index in track(range(args.first, args.first + args.scenes), "True gains, scene by scene"):
        path = folder / f"scene-{index}-severity-{args.severity}.npy"
        if not path.is_file():
            buffer = io.BytesIO()
            np.save(buffer, _count_scene(tiny, windows, index, args.severity))
            atomic_write(path, buffer.getvalue())
        each.append(np.load(path))
    return np.stack(each, axis=2)


def _count_scene(tiny: TinyModel, windows: tuple[Window, ...], index: int, severity: int) -> np.ndarray:
    """(settings, conditions, 3, classes) of one scene."""
    truth = scene(index, SIZE, SPLIT)
    true_labels = np.where(truth.labels == 0, 255, truth.labels - 1).astype(np.uint8)
    shown = [truth.image]
    for name in SHIFTS:
        noise = generator("scenes-c", name, severity, f"{SPLIT}-{index}")
        shown.append(corrupt(truth.image, name, severity, noise))
    counts = [
        [
            count_pixels(labels, true_labels, len(CLASSES))
            for labels in predict(tiny, image, windows, STRENGTHS)
        ]
        for image in shown
    ]
    return np.array(counts).swapaxes(0, 1)


def gains(counts: np.ndarray, scenes: np.ndarray) -> dict[str, np.ndarray]:
    """Δ mIoU per window on these scenes: per strength under shift (mean over shifts), and clean."""
    scores = mean_iou(counts[:, :, scenes].sum(2))  # (settings, conditions)
    change = (scores[1:] - scores[0]).reshape(len(STRENGTHS), -1, scores.shape[1])
    found = {}
    for strength, each in zip(STRENGTHS, change, strict=True):
        found[f"shifted, {strength}"] = each[:, 1:].mean(1)
        found[f"clean, {strength}"] = each[:, 0]
    return found


def compare(scores: dict[str, np.ndarray], counts: np.ndarray) -> list[dict]:
    """Spearman's rho of every score with every kind of gain, and the middle 95% over resampled scenes."""
    every = np.arange(counts.shape[2])
    rng = np.random.default_rng(0)
    estimate = gains(counts, every)
    resampled = [gains(counts, rng.choice(every, len(every))) for _ in range(REPLICATES)]
    rows = []
    for name, values in scores.items():
        row: dict = {"score": name}
        for kind, true in estimate.items():
            spread = [spearmanr(values, again[kind]).statistic for again in resampled]
            row[kind] = [
                float(spearmanr(values, true).statistic),
                *np.percentile(spread, [2.5, 97.5]).tolist(),
            ]
        rows.append(row)
    return sorted(rows, key=lambda row: -np.mean([row[f"shifted, {strength}"][0] for strength in STRENGTHS]))


def markdown(rows: list[dict]) -> Iterator[str]:
    """The rows as a table."""
    kinds = [kind for kind in rows[0] if kind != "score"]
    yield "| score | " + " | ".join(kinds) + " |"
    yield "|---|" + "---|" * len(kinds)
    for row in rows:
        cells = ("{:+.2f} ({:+.2f} … {:+.2f})".format(*row[kind]) for kind in kinds)
        yield f"| `{row['score']}` | " + " | ".join(cells) + " |"


def _print_best(console: Console, windows: tuple[Window, ...], counts: np.ndarray) -> None:
    for kind, true in gains(counts, np.arange(counts.shape[2])).items():
        order = np.argsort(-true)
        best = ", ".join(f"{list(windows[i])} {true[i]:+.2f}" for i in order[:5])
        worst = ", ".join(f"{list(windows[i])} {true[i]:+.2f}" for i in order[-3:])
        console.print(f"{kind}: best {best}; worst {worst}", markup=False)


if __name__ == "__main__":
    main()
