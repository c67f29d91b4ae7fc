"""What counts against labels and against clean predictions say of each other, as the tables of docs/label-free.md."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from gramloop.metrics.miou import mean_iou

DRAWS, HALVES = 1000, 500
SURE = 0.1  # points; a sign below that is noise


@dataclass(frozen=True)
class Measured:
    """Counts of the plain model and of every way: (1 + ways, clean and families, images, truths, 3, classes)."""

    ways: tuple[str, ...]
    families: tuple[str, ...]
    counts: NDArray[np.int64]
    replayed: tuple[bool, ...]

    def gains(self, images: NDArray[np.intp] | None = None) -> NDArray[np.float64]:
        """mIoU points above the plain model, (ways, clean and families, true and label-free)."""
        chosen = self.counts if images is None else self.counts[:, :, images]
        scores = np.asarray(mean_iou(chosen.sum(axis=2)))  # (1 + ways, conditions, truths)
        return scores[1:] - scores[:1]

    def scores(self) -> NDArray[np.float64]:
        return np.asarray(mean_iou(self.counts.sum(axis=2)))


def correlation(pairs: NDArray[np.float64]) -> float:  # (..., 2)
    flat = pairs.reshape(-1, 2)
    return float(spearmanr(flat[:, 0], flat[:, 1]).statistic)


def tell(name: str, found: Measured) -> None:
    gains = found.gains()
    shifted, mean = gains[:, 1:], gains[:, 1:].mean(axis=1)  # (ways, families, 2), (ways, 2)
    images = found.counts.shape[2]
    plain = found.scores()[0]
    print(f"\n## {name}: {len(found.ways)} ways, {len(found.families)} families, {images} images")
    print(
        f"plain model: clean mIoU {plain[0, 0]:.2f}, shifted {plain[1:, 0].mean():.2f}, agreement {plain[1:, 1].mean():.2f}\n"
    )
    rng = np.random.default_rng(0)
    drawn = [found.gains(rng.integers(0, images, images))[:, 1:] for _ in range(DRAWS)]
    replays = np.array(found.replayed)
    print("| rank correlation of | value | 95% over images |\n|---|---|---|")
    rows = {
        "mean gains of all ways": lambda each: correlation(each.mean(axis=1)),
        "mean gains of replays alone": lambda each: correlation(each[replays].mean(axis=1)),
        "gains of ways x families": correlation,
        "gains of replays x families": lambda each: correlation(each[replays]),
    }
    for words, value in rows.items():
        low, high = np.percentile([value(each) for each in drawn], (2.5, 97.5))
        print(f"| {words} | {value(shifted):.2f} | {low:.2f} to {high:.2f} |")
    signs = _signs(shifted)
    slope = float((mean[:, 0] * mean[:, 1]).sum() / (mean[:, 1] ** 2).sum())
    clean = gains[:, 0]
    print(
        f"\nsigns agree in {signs[0]:.0%} of ways x families, in {signs[1]:.0%} where both are above {SURE} points"
    )
    print(f"true mean gain = {slope:.2f} x label-free mean gain (least squares through 0)")
    print(f"on clean images: rank correlation of true gain and agreement {correlation(clean):.2f}")
    print(_choice(found, mean))
    print(_halves(found, rng))
    print(
        "\n| family | rank correlation over ways | signs agree | best by agreement | its true gain | best by labels | its true gain |"
    )
    print("|---|---|---|---|---|---|---|")
    for place, family in enumerate(found.families):
        each = shifted[:, place]
        blind, seeing = int(each[:, 1].argmax()), int(each[:, 0].argmax())
        print(
            f"| {family.replace('_', ' ')} | {correlation(each):.2f} | {_signs(each)[0]:.0%} | {found.ways[blind]} | "
            f"{each[blind, 0]:+.2f} | {found.ways[seeing]} | {each[seeing, 0]:+.2f} |"
        )
    print(
        "\n| way | true gain | label-free gain | true gain on clean | clean agreement |\n|---|---|---|---|---|"
    )
    for place in np.argsort(-mean[:, 0]):
        agreement = 100 + clean[place, 1]
        print(
            f"| {found.ways[place]} | {mean[place, 0]:+.2f} | {mean[place, 1]:+.2f} | {clean[place, 0]:+.2f} | {agreement:.1f} |"
        )


def _signs(pairs: NDArray[np.float64]) -> tuple[float, float]:
    flat = pairs.reshape(-1, 2)
    same = np.sign(flat[:, 0]) == np.sign(flat[:, 1])
    sure = (np.abs(flat) > SURE).all(axis=1)
    return float(same.mean()), float(same[sure].mean())


def _choice(found: Measured, mean: NDArray[np.float64]) -> str:
    blind, seeing = int(mean[:, 1].argmax()), int(mean[:, 0].argmax())
    return (
        f"best by agreement: {found.ways[blind]} (true gain {mean[blind, 0]:+.2f}); "
        f"best by labels: {found.ways[seeing]} ({mean[seeing, 0]:+.2f}); "
        f"the label-free choice costs {mean[seeing, 0] - mean[blind, 0]:.2f} points"
    )


def _halves(found: Measured, rng: np.random.Generator) -> str:
    """Both choices made on half of the images and judged by labels on the other half."""
    images = found.counts.shape[2]
    blind, seeing = [], []
    for _ in range(HALVES):
        order = rng.permutation(images)
        here, there = (found.gains(half)[:, 1:].mean(axis=1) for half in np.array_split(order, 2))
        blind.append(there[here[:, 1].argmax(), 0])
        seeing.append(there[here[:, 0].argmax(), 0])
    return (
        f"chosen on half of the images, judged by labels on the other half: by agreement {np.mean(blind):+.2f}, "
        f"by labels {np.mean(seeing):+.2f}, {np.mean(np.array(seeing) - blind):+.2f} between them"
    )
