"""``gramloop.tune(model, data, suite=…, out=…)``: a search in one call, of a model by name or in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gramloop.data.records import Task
from gramloop.data.scenes.files import COUNT, SceneFiles
from gramloop.data.suites import find_suite
from gramloop.evaluate.from_python import Model, data_of, files_of
from gramloop.evaluate.planning import Request
from gramloop.evaluate.truth import TruthKind
from gramloop.io.device import choose_device
from gramloop.tune.search.plan import Options
from gramloop.tune.search.space import Space
from gramloop.tune.search.suites import SCENE_SPLIT, suite_subject
from gramloop.tune.search.tuning import Tuning, tune

SEVERITY = 3  # where nothing else is said


def tune_model(
    model: Model,
    data: Path | str | None = None,
    *,
    suite: str,
    out: Path | str,
    task: Task | None = None,
    budget: int = 2000,
    space: Space | None = None,
    options: Options | None = None,
    conditions: Sequence[str] = (),
    severities: Sequence[int] = (),
    images: int | None = None,
    truth: TruthKind = "labels",
    split: str = "validation",
    classes: Path | str | None = None,
    device: str | None = None,
    workers: int | None = None,
) -> Tuning:
    """Find a replay for a model over a suite, or go on where an earlier call stopped.

    Args:
        model, data, suite, out, task, conditions, severities, images, truth, split, classes, device, workers: as for
            `gramloop.evaluate.evaluate_model`; severity 3 where none is given.
        budget: image predictions, everything included.
        space, options: what to choose from, and how candidates are compared.
    """
    files, many = files_of(model, task, device, workers)
    generated = find_suite(suite).generated
    request = Request(
        suite=suite,
        task="semantic" if task is None and "folder" in files else task,
        files=files,
        data=data_of(data, suite, Path(out), SceneFiles(images or COUNT, split=SCENE_SPLIT), split, classes),
        conditions=conditions,
        severities=list(severities) or ([SEVERITY] if generated else []),
        images=images,
        truth=truth,
        device=choose_device(device).type,
    )
    return tune(suite_subject(request), space=space, budget=budget, options=options, out=out, workers=many)
