"""The demonstration: the embedded model on drawn scenes, with replay, filters on pixels, and both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gramloop.data.records import TaskName
from gramloop.data.scenes import SceneFiles, draw_scenes
from gramloop.evaluate.cost import time_methods
from gramloop.evaluate.engines import Listener
from gramloop.evaluate.evaluation import evaluate_model
from gramloop.evaluate.methods import BASELINE
from gramloop.models.tiny import SOURCE, SUGGESTED
from gramloop.replay.config import read_replay, replay_text

SPLIT = "demo"  # neither the model nor any choice has seen these scenes
SHIFTS = ("gaussian_noise", "impulse_noise", "defocus_blur", "fog", "jpeg_compression", "contrast")
SEVERITY = 3
# what gained most for each task on scenes of another split, among those that docs/evidence.md lists
FILTERS: Mapping[TaskName, str] = {
    "semantic": "denoise:11+levels",
    "detection": "denoise:11+levels",
    "depth": "levels",
}


def run_demo(
    folder: Path,
    scenes: int,
    shifts: Sequence[str],
    workers: int | None,
    listener: Callable[[], Listener],
    command: str = "",
) -> list[Path]:
    """Evaluate three tasks on drawn scenes, shifted ones first; the folders of results."""
    drawn = draw_scenes(folder / f"scenes-{scenes}", SceneFiles(scenes, split=SPLIT))
    replay = f"replay:{replay_text(read_replay(SUGGESTED))}"
    shifted: dict[str, Any] = {"conditions": shifts, "severities": [SEVERITY]}
    places = []
    for suite, chosen in (("scenes-c", shifted), ("scenes", {})):
        for task, filters in FILTERS.items():
            # another number of scenes or shifts is another evaluation
            places.append(folder / "results" / f"{suite}-{task}-{scenes}-{len(shifts)}")
            results = evaluate_model(
                "tiny",
                drawn,
                suite=suite,
                out=places[-1],
                listener=listener(),
                command=command,
                task=task,
                methods=[BASELINE, replay, f"filters={filters}", f"both={filters}+{replay}"],
                calibration=SOURCE,
                shards=min(4, scenes),  # so that a few cores have something to share
                workers=workers,
                **chosen,
            )
            if chosen:
                time_methods(results.plan, places[-1])
    return places
