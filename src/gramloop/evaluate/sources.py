"""The data of a plan, opened and compared with what was planned; and checksums of the model's files."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gramloop import __version__
from gramloop.data.checks import Problems, with_contents
from gramloop.data.manifest import fingerprint, package_versions
from gramloop.data.opening import OpenSuite, ReadOptions, Verify, open_suite
from gramloop.data.records import DataSet, Task
from gramloop.data.suites import Condition
from gramloop.errors import GramLoopError
from gramloop.evaluate.plan import DataSource, Plan, condition_of
from gramloop.evaluate.truth import LABELS, TruthKind
from gramloop.models.tiny import DEPTH_HEAD
from gramloop.shifts.seeds import RECIPE_VERSION
from gramloop.tasks.predictor import ViTPredictor
from gramloop.util.checksums import file_digest, first_changed
from gramloop.util.files import files_below

if TYPE_CHECKING:
    from gramloop.mitigations.source import Source
    from gramloop.tasks.prediction import Prediction
    from gramloop.tasks.predictor import Predictor

SUGGESTION = "replay.json"  # may lie beside weights, and decides no prediction
WEIGHTS = (".json", ".safetensors", ".pth")
OTHER_WEIGHTS = (".bin", ".pt", ".txt")  # that transformers may have, too
CLEAN = "clean"  # the fingerprint of the set that conditions are made from


def check_categories(predictor: Predictor[Prediction], data: DataSet) -> None:
    """Refuse a set with classes that the model has no number for."""
    listed, known = set(data.categories), set(predictor.classes)
    if not known:  # a function of somebody's own may not say
        return
    if data.task == "semantic" and len(known) != len(listed):
        raise GramLoopError(
            f"the model tells {len(known)} classes apart, but {data.root} lists {len(listed)}"
        )
    if strangers := sorted(listed - known):
        name = data.categories[strangers[0]]
        raise GramLoopError(
            f"{data.root} lists the category {strangers[0]} ({name}), which the model does not know; "
            f"it knows {min(known)}..{max(known)}"
        )


def check_sizes(predictor: Predictor[Prediction], data: DataSet, images: int) -> None:
    """Refuse images that the model cannot look at in reasonable time, all of them at once, before any is decoded."""
    if not isinstance(predictor, ViTPredictor):
        return
    problems = Problems(data.root)
    seen: set[tuple[int, int]] = set()
    for record in data[:images]:
        size = record.height, record.width
        if size in seen:
            continue
        seen.add(size)
        try:
            predictor.check_size(*size)
        except GramLoopError as error:
            problems.add(f"{record.path}: {error}")
    problems.raise_if_any()


def open_data(
    plan_suite: str,
    data: DataSource,
    task: Task | None,
    conditions: Sequence[Condition],
    truth: TruthKind = "labels",
    verify: Verify = "quick",
) -> OpenSuite:
    """The suite of a plan with these conditions; its labels are read where they are the truth."""
    names = list(dict.fromkeys(condition.name for condition in conditions))
    severities = sorted({condition.severity for condition in conditions if condition.severity})
    return open_suite(
        plan_suite,
        data.root,
        conditions=names or None,
        severities=severities or None,
        origin=cast(Any, data.origin),
        options=ReadOptions(
            split=data.split,
            classes=Path(data.classes) if data.classes else None,
            task=task,
            partial=data.partial,
            labels=truth == LABELS,
            verify=verify,
        ),
        encoding=cast(Any, data.encoding),
    )


def open_planned(plan: Plan, verify: Verify = "none") -> OpenSuite:
    """The data of a plan; a clean set that conditions are made from must be the one that was planned."""
    conditions = [condition_of(key) for key in plan.conditions]
    opened = open_data(plan.suite, plan.data, plan.task, conditions, plan.truth, verify)
    if opened.clean is None:
        return opened
    images = max(plan.conditions.values())
    return replace(opened, clean=_unchanged(plan, CLEAN, opened.clean, images, {}))


def open_condition(plan: Plan, opened: OpenSuite, key: str) -> DataSet:
    """The set of one condition; one with a folder of its own must be the one that was planned."""
    condition = condition_of(key)
    data = opened.open(condition)
    if opened.clean is not None:
        return data
    return _unchanged(plan, key, data, plan.conditions[key], opened.listed(condition))


def _unchanged(plan: Plan, key: str, data: DataSet, images: int, listed: Mapping[Path, str]) -> DataSet:
    """The set, whose records know what their files held; or a sentence about what changed."""
    named = fingerprint(data) == plan.data.fingerprints.get(key)
    if named and not plan.data.contents:
        return data  # a plan of a time when names and sizes were all that was kept
    marked, whole = with_contents(data, images, listed) if named else (data, "")
    if whole != plan.data.contents.get(key):
        other = first_changed(path for record in data for path in record.files)
        raise GramLoopError(
            f"the images or annotations in {data.root} changed since the evaluation was planned"
            f"{f' ({other} is another file)' if other else ''}; "
            "put them back, or choose another folder for the results"
        )
    return marked


def open_source(files: Mapping[str, str]) -> Source | None:
    """What ordinary images look like, where a file of the model's says so."""
    from gramloop.mitigations.source import read_source

    return read_source(files["source"]) if "source" in files else None


def weight_files(files: Mapping[str, str], task: Task | None = None) -> dict[str, Path]:
    """Every weight file that takes part in a task, by the name of its checksum. Code is no weight."""
    found = {}
    # the depth head decides predictions of depth alone
    passed_over = (SUGGESTION,) if task == "depth" else (SUGGESTION, DEPTH_HEAD)
    for name, place in files.items():
        if name in ("make", "object"):
            continue
        path = Path(place)
        if not path.exists():
            raise GramLoopError(f"the {name} {path} does not exist")
        inside = [
            each
            for each in files_below(path)
            if each.suffix in (WEIGHTS if name != "hf" else (*WEIGHTS, *OTHER_WEIGHTS))
            and each.name not in passed_over
        ]
        for part in inside if path.is_dir() else [path]:
            found[name if part == path else f"{name}/{part.relative_to(path).as_posix()}"] = part
    return found


def checksums(files: Mapping[str, str], task: Task | None = None) -> dict[str, str]:
    """The sha256 of every weight file that takes part in a task; a folder is hashed file by file."""
    return {name: file_digest(path) for name, path in weight_files(files, task).items()}


def versions() -> dict[str, str]:
    """Of everything that takes part in making images and predictions."""
    found = {"gramloop": __version__, "shifts": str(RECIPE_VERSION), "python": platform.python_version()}
    for name in ("torch", "transformers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return {**found, **package_versions()}
