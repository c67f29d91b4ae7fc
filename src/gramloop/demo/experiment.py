"""The demonstration's experiment: six evaluations of the embedded model, on scenes that nothing else sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gramloop.data.records import TaskName as Task
from gramloop.data.scenes.files import SceneFiles, draw_scenes
from gramloop.demo.methods import methods_of
from gramloop.errors import GramLoopError
from gramloop.evaluate.cost import time_methods
from gramloop.evaluate.evaluation import Listener, evaluate
from gramloop.evaluate.plan import DataSource, Plan
from gramloop.evaluate.planning import Request, make_plan
from gramloop.models.tiny import SOURCE, SUGGESTED, WEIGHTS

TASKS: tuple[Task, ...] = ("semantic", "detection", "depth")  # those that the embedded model has heads for
SPLIT = "demo"  # neither the model nor any choice has seen these scenes
SHIFTS = ("gaussian_noise", "impulse_noise", "defocus_blur", "fog", "jpeg_compression", "contrast")
SEVERITY = 3
_SHARDS = 4  # of every condition, so that a few cores have something to share


@dataclass(frozen=True)
class Size:
    """How much is run."""

    scenes: int = 14
    shifts: Sequence[str] = SHIFTS

    def __post_init__(self) -> None:
        if self.scenes < 2:
            raise GramLoopError(f"--scenes is {self.scenes}; an interval needs at least 2")


QUICK = Size(8, SHIFTS[:2])


@dataclass(frozen=True)
class PlannedEvaluation:
    """One evaluation: a task on clean or on shifted scenes."""

    plan: Plan
    folder: Path


@dataclass(frozen=True)
class Experiment:
    """Three tasks on the same scenes."""

    segmentation: PlannedEvaluation  # under shift
    detection: PlannedEvaluation
    depth: PlannedEvaluation
    clean: tuple[PlannedEvaluation, ...]  # the same tasks on clean scenes

    @property
    def parts(self) -> tuple[PlannedEvaluation, ...]:
        """All six; what a report shows first comes first."""
        return self.segmentation, self.detection, self.depth, *self.clean


def prepare(folder: Path, size: Size) -> Experiment:
    """Draw the scenes, and plan the three tasks on them, shifted and clean.

    Folders are called by what they hold, so that a run of another size or version is not in the way.
    """
    drawn = draw_scenes(folder / f"scenes-{size.scenes}", SceneFiles(size.scenes, split=SPLIT))

    def part(task: Task, shifts: Sequence[str] = ()) -> PlannedEvaluation:
        plan = make_plan(
            Request(
                suite="scenes-c" if shifts else "scenes",
                task=task,
                files={"folder": str(WEIGHTS)},
                calibration=str(SOURCE),
                data=DataSource(str(drawn.resolve())),
                conditions=shifts,
                severities=[SEVERITY] if shifts else (),
                shards=min(_SHARDS, size.scenes),
                methods=methods_of(task),
                replay=str(SUGGESTED),
            )
        )
        return PlannedEvaluation(plan, folder / "results" / f"{plan.suite}-{task}-{plan.hash[:8]}")

    return Experiment(
        part("semantic", size.shifts),
        part("detection", size.shifts),
        part("depth", size.shifts),
        tuple(part(task) for task in TASKS),
    )


def run(experiment: Experiment, listener: Listener, workers: int | None = None) -> None:
    """Evaluate what is not stored yet."""
    for part in experiment.parts:
        evaluate(part.plan, part.folder, workers=workers, listener=listener)
    for part in (experiment.segmentation, experiment.detection, experiment.depth):
        time_methods(part.plan, part.folder)
