"""True against label-free gains, a dot for every way and family, as the picture of docs/label-free.md."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np

from label_free_results import Measured, correlation

matplotlib.use("Agg")
from matplotlib import pyplot as plt


def draw(found: dict[str, Measured], path: Path) -> None:
    figure, panels = plt.subplots(1, len(found), figsize=(4.6 * len(found), 4.4), squeeze=False)
    for panel, (name, measured) in zip(panels[0], found.items(), strict=True):
        shifted = measured.gains()[:, 1:]
        mean = shifted.mean(axis=1)
        kinds = (
            ("replays", np.array(measured.replayed), "#1b6ca8"),
            ("others", ~np.array(measured.replayed), "#d1660f"),
        )
        for word, which, colour in kinds:
            points = shifted[which].reshape(-1, 2)
            panel.scatter(points[:, 1], points[:, 0], s=9, color=colour, alpha=0.35, linewidths=0)
            panel.scatter(
                mean[which, 1],
                mean[which, 0],
                s=42,
                color=colour,
                edgecolors="white",
                linewidths=0.8,
                label=word,
                zorder=3,
            )
        low, high = np.percentile(shifted, 1) - 1, np.percentile(shifted, 99) + 1
        outside = int(((shifted < low) | (shifted > high)).any(axis=-1).sum())
        panel.plot([low, high], [low, high], color="#888888", linewidth=0.8, linestyle=":", zorder=0)
        panel.axhline(0, color="#bbbbbb", linewidth=0.7, zorder=0)
        panel.axvline(0, color="#bbbbbb", linewidth=0.7, zorder=0)
        panel.set_xlim(low, high)
        panel.set_ylim(low, high)
        panel.set_aspect("equal")
        panel.set_xlabel("gain in agreement with the clean prediction (points)")
        panel.set_ylabel("true gain in mIoU (points)")
        panel.set_title(f"{name}: rank correlation {correlation(shifted):.2f}", fontsize=9)
        if outside:
            panel.text(
                0.98, 0.02, f"{outside} dots lie outside", transform=panel.transAxes, ha="right", fontsize=7
            )
        panel.legend(
            frameon=False, loc="upper left", fontsize=8, title="large: means over families", title_fontsize=8
        )
    figure.tight_layout()
    figure.savefig(path, dpi=150)
