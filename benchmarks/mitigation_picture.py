"""What the chosen mitigation and replay gain by family, on both models, as the picture of docs/evidence.md.

    python benchmarks/mitigation_picture.py --weights dinov2s.pt --data camvid --out out/mitigations \\
        --scenes out/scenes --picture docs/images/evidence.png

after mitigation_evidence.py and mitigation_scenes.py, whose results it reads.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evidence_study import SEARCHED
from mitigation_heads import Heads
from mitigation_passes import Passes, Sizes
from mitigation_scenes import CHOSEN, FAMILIES, PIXELS, Task, judged, mean_gain
from mitigation_tables import Tables, everywhere

COLOURS = ("#15803d", "#f59e0b", "#1d4ed8")
Gains = Mapping[str, Sequence[float]]  # of each way, family by family


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("weights", "data", "out", "scenes", "picture"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    arguments = parser.parse_args()
    tables = Tables(Heads(Passes(arguments.weights, arguments.data, arguments.out, Sizes())))
    ways = {
        "chosen on other drives": tables.chosen,
        "recentre:c=2": everywhere("recentre:c=2"),
        "replay": everywhere("replay"),
    }
    real = {name: [tables.family(family, 3, each) for family in FAMILIES] for name, each in ways.items()}
    task, shown = Task("semantic", arguments.scenes / "semantic", PIXELS), list(judged(200))
    drawn = {way: mean_gain(task, shown, way, FAMILIES)[1] for way in (CHOSEN, "denoise", "levels")}
    panels = {
        "DINOv2-S, CamVid: unseen drives, severity 3": (FAMILIES, real),
        "embedded model: 200 unseen scenes, severities 1 to 5": (FAMILIES, drawn),
    }
    draw(panels, arguments.picture)


def draw(panels: Mapping[str, tuple[Sequence[str], Gains]], path: Path) -> None:
    """A panel of bars for each title: families down, points of mIoU across."""
    figure = Figure(figsize=(11, 5.4), layout="constrained")
    for axes, (title, (families, ways)) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        _bars(axes, families, ways)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("points of mIoU above the plain model")
        axes.legend(frameon=False, fontsize=8, loc="lower right")
    figure.savefig(path, dpi=150)
    print(path)


def _bars(axes: Axes, families: Sequence[str], ways: Gains) -> None:
    height = 0.8 / len(ways)
    for place, ((name, gains), colour) in enumerate(zip(ways.items(), COLOURS, strict=False)):
        rows = np.arange(len(families))[::-1] + 0.4 - height * (place + 0.5)
        axes.barh(rows, gains, height * 0.9, color=colour, label=name)
    names = [name.replace("_", " ") + ("" if name in SEARCHED else " *") for name in families]
    axes.set_yticks(np.arange(len(families))[::-1], names, fontsize=8)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main()
