"""The evidence run's result as a picture: two replays by family of shifts, and by drive."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evidence_results import by_drive, results_of
from evidence_study import SEARCHED, Study

SHOWN = {  # results folders and method: title and colour
    ("camvid-c", "camvid", "block-2-until-2-adaptive"): ("tune's nearest candidate", "#c2410c"),
    ("gram-camvid-c", "gram-camvid", "noise-gram"): ("only where patches are long, Gram gate", "#1d4ed8"),
}
SEEN, UNSEEN = ("0016E5", "0006R0"), "0001TP"


def picture_stage(study: Study) -> None:
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    _families(left, study)
    _drives(right, study)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    path = Path(study.out / "replay_evidence.png")
    figure.savefig(path, dpi=150)
    print(f"  {path}")


def _families(axes: Axes, study: Study) -> None:
    for shift, ((shifted, _, method), (title, colour)) in enumerate(SHOWN.items()):
        families: dict[str, list[float]] = {}
        for one in results_of(study, shifted).conditions:
            gain = one.scores[method]["mIoU"] - one.scores["baseline"]["mIoU"]
            families.setdefault(one.condition.split("/")[0], []).append(gain)
        places = np.arange(len(families))[::-1] + 0.2 - 0.4 * shift
        axes.barh(places, [np.mean(gains) for gains in families.values()], 0.38, color=colour, label=title)
    names = [name.replace("_", " ") + ("" if name in SEARCHED else " *") for name in families]
    axes.set_yticks(np.arange(len(names))[::-1], names)
    axes.set_xlabel("Δ mIoU, mean of five severities")
    axes.set_title("By family (* not tuned on)", loc="left")
    _clean(axes)


def _drives(axes: Axes, study: Study) -> None:
    rows = [(drive, suite) for drive in (*SEEN, UNSEEN) for suite in ("shifted", "clean")]
    for shift, ((shifted, clean, method), (_, colour)) in enumerate(SHOWN.items()):
        gains = {"shifted": by_drive(study, shifted, method), "clean": by_drive(study, clean, method)}
        places = np.arange(len(rows))[::-1] + 0.2 - 0.4 * shift
        axes.barh(places, [gains[suite][drive] for drive, suite in rows], 0.38, color=colour)
    names = [f"{drive}{'' if drive in SEEN else ' (never seen)'}, {suite}" for drive, suite in rows]
    axes.set_yticks(np.arange(len(rows))[::-1], names)
    axes.set_xlabel("Δ mIoU")
    axes.set_title("By drive", loc="left")
    _clean(axes)


def _clean(axes: Axes) -> None:
    axes.axvline(0, color="black", linewidth=0.8)
    axes.grid(axis="x", color="#e5e7eb")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
