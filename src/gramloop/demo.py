"""The demonstration: the embedded model on drawn scenes, with replay, filters on pixels, and both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gramloop.data.records import TaskName
from gramloop.data.scenes.files import SceneFiles, draw_scenes
from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.plan import DataSource, Plan
from gramloop.evaluate.planning import Request, make_plan
from gramloop.models.tiny import SOURCE, WEIGHTS, suggested_replay
from gramloop.replay.config import replay_text

SPLIT = "demo"  # neither the model nor any choice has seen these scenes
SHIFTS = ("gaussian_noise", "impulse_noise", "defocus_blur", "fog", "jpeg_compression", "contrast")
SEVERITY = 3
# what gained most for each task on scenes of another split, among those that docs/evidence.md lists
FILTERS: Mapping[TaskName, str] = {
    "semantic": "denoise:11+levels",
    "detection": "denoise:11+levels",
    "depth": "levels",
}


def method_names(task: TaskName) -> tuple[str, str]:
    """The names of the filters, and of the filters with the replay."""
    name = "-".join(part.partition(":")[0] for part in FILTERS[task].split("+"))
    return name, f"{name}-replay"


def plan_demo(folder: Path, scenes: int, shifts: Sequence[str]) -> dict[Path, Plan]:
    """Draw the scenes and plan three tasks on them, shifted ones first; plans by their folders.

    Folders are named by their content, so that a run of another size or version is not in the way.
    """
    drawn = draw_scenes(folder / f"scenes-{scenes}", SceneFiles(scenes, split=SPLIT))
    plans = {}
    for suite, conditions in (("scenes-c", shifts), ("scenes", ())):
        for task, filters in FILTERS.items():
            alone, both = method_names(task)
            replay = f"replay:{replay_text(suggested_replay())}"
            plan = make_plan(
                Request(
                    suite=suite,
                    task=task,
                    files={"folder": str(WEIGHTS)},
                    calibration=str(SOURCE),
                    data=DataSource(str(drawn.resolve())),
                    conditions=conditions,
                    severities=[SEVERITY] if conditions else (),
                    shards=min(4, scenes),  # so that a few cores have something to share
                    methods=[BASELINE, replay, f"{alone}={filters}", f"{both}={filters}+{replay}"],
                )
            )
            plans[folder / "results" / f"{suite}-{task}-{plan.hash[:8]}"] = plan
    return plans
