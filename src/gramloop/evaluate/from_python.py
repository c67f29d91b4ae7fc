"""``gramloop.evaluate(model, data, suite=…, out=…)``: an evaluation in one call, of a model by name or in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict, Unpack

from torch import nn

from gramloop.data.records import Task
from gramloop.data.scenes.files import COUNT, SUITE, SceneFiles, draw_scenes
from gramloop.data.suites import find_suite
from gramloop.errors import GramLoopError
from gramloop.evaluate.beginning import SCENES, check_before_drawing
from gramloop.evaluate.evaluation import evaluate, missed_words
from gramloop.evaluate.plan import DataSource
from gramloop.evaluate.planning import Request, make_plan
from gramloop.evaluate.results import Results
from gramloop.evaluate.truth import TruthKind
from gramloop.tasks.held_models import hold_model
from gramloop.tasks.loading import Precision, check_precision
from gramloop.tasks.model_spec import model_files
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor
from gramloop.tasks.user_models import as_predictor
from gramloop.util.checksums import load_checksums
from gramloop.util.device import choose_device, numbered_device
from gramloop.util.processes import worker_count

Model = str | Predictor[Prediction] | nn.Module | Callable[..., object]


class SetOptions(TypedDict, total=False):
    """What `evaluate_model` and `gramloop.tune.tune_model` take alike, as keywords.

    task: what is predicted, where the model has several tasks.
    conditions, severities, images: fewer of them.
    truth: "clean" compares with what the plain model says on the clean image, and needs no labels.
    split, classes: of a set of label pictures.
    device: where it runs: auto, cpu, cuda, cuda:1 or mps.
    """

    task: Task | None
    conditions: Sequence[str]
    severities: Sequence[int]
    images: int | None
    truth: TruthKind
    split: str
    classes: Path | str | None
    device: str | None


def evaluate_model(
    model: Model,
    data: Path | str | None = None,
    *,
    suite: str,
    out: Path | str,
    methods: Sequence[str] = (),
    workers: int | None = None,
    batch: int = 1,
    prepare: int | None = None,
    dtype: Precision = "float32",
    **options: Unpack[SetOptions],
) -> Results:
    """Evaluate methods on a model over a suite, or go on where an earlier call stopped.

    Args:
        model: what ``--model`` takes; or a predictor, a torch module with ``preprocess`` and ``postprocess``, or a
            function from an image to a prediction, which runs in this process.
        data: the folder of the set; scenes are drawn where the suite is one of scenes.
        suite: such as "scenes-c", "coco-c" or "my-set-c".
        out: the folder for plan and results.
        methods: as ``--method``; the plain model and, where it can be replayed, the published replay by default.
        workers: processes; as many as the cores hold, or one per GPU, where nothing is said.
        batch: images of one size that are shown to the model at once, where it can.
        prepare: processes that prepare images for each of these, 0 for a thread; all cores beside GPUs by default.
        dtype: of the backbone's weights; "bfloat16" halves their memory, where the model is loaded by name.
        options: see `SetOptions`.
    """
    check_precision(dtype)
    if data is None:
        check_before_drawing(Path(out), Path(out) / SCENES)
    load_checksums(Path(out))
    device = options.get("device")
    request, many = request_for(model, data, suite, Path(out), workers, **options)
    plan = make_plan(replace(request, methods=methods, batch=batch, dtype=dtype))
    outcome = evaluate(plan, Path(out), workers=many, device=numbered_device(device), prepare=prepare)
    if outcome.missed:
        raise GramLoopError(missed_words(outcome.missed))
    return outcome.results


def request_for(
    model: Model,
    data: Path | str | None,
    suite: str,
    out: Path,
    workers: int | None,
    scenes: str = "val",
    *,
    task: Task | None = None,
    conditions: Sequence[str] = (),
    severities: Sequence[int] = (),
    images: int | None = None,
    truth: TruthKind = "labels",
    split: str = "validation",
    classes: Path | str | None = None,
    device: str | None = None,
) -> tuple[Request, int | None]:
    """What a call asks for, and the number of processes; ``scenes`` is the split of those that are drawn."""
    if workers is not None:
        worker_count(workers)  # a slip is told before scenes are drawn
    files, many = files_of(model, task, device, workers)
    drawn = SceneFiles(COUNT if images is None else images, split=scenes)
    request = Request(
        suite=suite,
        task="semantic" if task is None and "folder" in files else task,
        files=files,
        data=data_of(data, suite, out, drawn, split, classes),
        conditions=conditions,
        severities=severities,
        images=images,
        truth=truth,
        device=choose_device(device).type,
    )
    return request, many


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
    root = Path(data) if data is not None else draw_scenes(out / SCENES, scenes)
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
