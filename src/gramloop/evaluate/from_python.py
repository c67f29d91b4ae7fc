"""``gramloop.evaluate(model, data, suite=…, out=…)``: an evaluation in one call, of a model by name or in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from torch import nn

from gramloop.data.records import Task
from gramloop.data.scenes.files import COUNT, SUITE, SceneFiles, draw_scenes
from gramloop.data.suites import find_suite
from gramloop.errors import GramLoopError
from gramloop.evaluate.evaluation import evaluate
from gramloop.evaluate.plan import DataSource
from gramloop.evaluate.planning import Request, make_plan
from gramloop.evaluate.results import Results
from gramloop.evaluate.truth import TruthKind
from gramloop.io.device import choose_device
from gramloop.tasks.held_models import hold_model
from gramloop.tasks.model_spec import model_files
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor
from gramloop.tasks.user_models import as_predictor

Model = str | Predictor[Prediction] | nn.Module | Callable[..., object]


def evaluate_model(
    model: Model,
    data: Path | str | None = None,
    *,
    suite: str,
    out: Path | str,
    task: Task | None = None,
    methods: Sequence[str] = (),
    conditions: Sequence[str] = (),
    severities: Sequence[int] = (),
    images: int | None = None,
    truth: TruthKind = "labels",
    split: str = "validation",
    classes: Path | str | None = None,
    device: str | None = None,
    workers: int | None = None,
) -> Results:
    """Evaluate methods on a model over a suite, or go on where an earlier call stopped.

    Args:
        model: what ``--model`` takes; or a predictor, a torch module with ``preprocess`` and ``postprocess``, or a
            function from an image to a prediction, which runs in this process.
        data: the folder of the set; scenes are drawn where the suite is one of scenes.
        suite: such as "scenes-c", "coco-c" or "my-set-c".
        out: the folder for plan and results.
        task: what is predicted, where the model has several tasks.
        methods: as ``--method``; the plain model and, where it can be replayed, the published replay by default.
        conditions, severities, images: fewer of them.
        truth: "clean" compares with what the plain model says on the clean image, and needs no labels.
        split, classes: of a set of label pictures.
        device, workers: where it runs, and in how many processes.
    """
    files, many = files_of(model, task, device, workers)
    request = Request(
        suite=suite,
        task="semantic" if task is None and "folder" in files else task,
        files=files,
        data=data_of(data, suite, Path(out), SceneFiles(images or COUNT), split, classes),
        methods=methods,
        conditions=conditions,
        severities=severities,
        images=images,
        truth=truth,
        device=choose_device(device).type,
    )
    return evaluate(make_plan(request), Path(out), workers=many).results


def data_of(
    data: Path | str | None,
    suite: str,
    out: Path,
    scenes: SceneFiles,
    split: str = "validation",
    classes: Path | str | None = None,
) -> DataSource:
    """The set of a call; scenes are drawn below ``out`` where a suite of scenes has no folder."""
    if data is None and find_suite(suite).base != SUITE:
        raise GramLoopError(f"data is missing: the folder of {suite}")
    root = Path(data) if data is not None else draw_scenes(out / "scenes", scenes)
    return DataSource(str(root.resolve()), split=split, classes=None if classes is None else str(classes))


def files_of(
    model: Model, task: Task | None, device: str | None, workers: int | None
) -> tuple[dict[str, str], int | None]:
    """The model as a plan names it, and the number of processes: an object in memory stays in this one."""
    if isinstance(model, str):
        return model_files(model), workers
    if workers not in (None, 1):
        raise GramLoopError(
            f"workers is {workers}; a model in memory cannot be sent to other processes: name a function that makes it, "
            "such as my_models.py:make, or use one worker"
        )
    return hold_model(as_predictor(model, task, device=choose_device(device))), 1
