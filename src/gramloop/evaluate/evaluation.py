"""An evaluation from plan to results: what is stored is kept, the rest is run, everything is scored."""

from __future__ import annotations

import platform
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, cast

from torch import nn

from gramloop.data.scenes import COUNT, SUITE, SceneFiles, draw_scenes
from gramloop.data.suites import find_suite
from gramloop.errors import GramLoopError
from gramloop.evaluate.cost import TRIED, time_methods
from gramloop.evaluate.engines import (
    Engine,
    Job,
    Listener,
    default_workers,
    preparing_processes,
    run_local,
)
from gramloop.evaluate.methods import BASELINE, read_methods
from gramloop.evaluate.options import DataOptions, EvaluateOptions, PlannedWork, StoredOptions, TruthOptions
from gramloop.evaluate.plan import TRUTH_SCORE, DataSource, Part, Plan
from gramloop.evaluate.planning import Request, make_plan
from gramloop.evaluate.provenance import (
    CLEAN_SET,
    PlannedImages,
    check_origin,
    load_calibration,
    plan_workload,
    save_known_checksums,
)
from gramloop.evaluate.results import Results, collect, write_results
from gramloop.evaluate.runner import Missed
from gramloop.evaluate.store import (
    MANIFEST,
    PLAN,
    SCENES,
    Store,
    check_before_drawing,
    open_folder,
    plan_in,
    plan_with_stored,
    record_start,
)
from gramloop.tasks.base import get_task
from gramloop.tasks.custom import as_predictor
from gramloop.tasks.identity import hold_model
from gramloop.tasks.images import has_photographs_alone
from gramloop.tasks.loading import check_precision
from gramloop.tasks.options import ModelOptions
from gramloop.tasks.predictor import AnyPredictor
from gramloop.util.device import choose_device, device_kind, numbered_device
from gramloop.util.files import CHECKSUM_CACHE, LOCK, load_checksums, locked
from gramloop.util.options import from_keywords, shared_values
from gramloop.util.progress import tracked

Model = str | AnyPredictor | nn.Module | Callable[..., object]
_Options = TypeVar("_Options")


def evaluate(
    plan: Plan,
    folder: Path,
    *,
    workers: int | None = None,
    engine: Engine | None = None,
    engine_name: str = "local",
    listener: Listener | None = None,
    device: str | None = None,
    prepare: int | None = None,
    command: str = "",
) -> Results:
    """Run what is missing of a plan and score the whole.

    Args:
        plan: what to evaluate; its methods are added to those that the folder holds.
        folder: for plan and results.
        workers: processes; one per core or GPU by default.
        engine: runs parts elsewhere than on this machine.
        engine_name: what the manifest calls it.
        listener: called as the work proceeds.
        device: one of this machine's GPUs.
        prepare: processes that read images; see `Job`.
        command: that was typed, for the manifest.

    Returns:
        The scores of everything that the folder holds, and what could not be used.
    """
    if engine is not None:  # whose processes may have another working directory
        folder = folder.absolute()
    with (
        listener or Listener() as listener,
        open_evaluation(plan, folder, listener=listener, prepare=prepare) as opened,
    ):
        store, missed = opened.store, list[Missed]()
        if opened.parts:
            many = store.plan.images
            listener.started(many, many - sum(map(len, opened.parts)))
            job = Job(plan_workload(store.plan, folder), store, opened.parts, listener, device, prepare)
            record_start(store, start_entry(job, engine_name, workers, command))
            left = Counter(part.condition for part in opened.parts)
            for outcome in engine(job) if engine is not None else run_local(job, workers):
                listener.outcome(outcome)
                missed += [outcome] if isinstance(outcome, Missed) else []
                key = outcome.part.condition
                left[key] -= 1
                if not left[key]:
                    listener.scored(collect(store, [key]))
        return score_all(opened, missed)


@dataclass(frozen=True)
class OpenEvaluation:
    """An evaluation whose folder is locked: its store, the parts that are still to be run, and damaged files."""

    store: Store[Plan]
    parts: Sequence[Part]
    warnings: tuple[str, ...]


def score_all(opened: OpenEvaluation, missed: Sequence[Missed] = ()) -> Results:
    """Score what is stored and write the table."""
    results = replace(collect(opened.store), missed=tuple(missed), warnings=opened.warnings)
    write_results(opened.store, results)
    return results


@contextmanager
def open_evaluation(
    plan: Plan, folder: Path, *, listener: Listener, prepare: int | None = None
) -> Iterator[OpenEvaluation]:
    """Check a plan and lock its folder, for as long as the ``with`` block lasts; see `evaluate` for the arguments."""
    load_checksums(folder)
    plan = plan_with_stored(folder, plan)  # a folder that is refused stays untouched: no lock, no scratch
    if any(not Store(folder, plan).path(unit).is_file() for unit in plan.units):
        check_origin(plan)
        load_calibration(plan)
        PlannedImages(plan)
    with _without_traces(folder), locked(folder):
        store = open_folder(folder, plan)
        parts, damaged = store.survey(tracked(plan.parts, "reading units", len(plan.parts)))
        warnings = tuple(f"{problem}; the unit is computed again" for problem in damaged)
        for warning in warnings:
            listener.message(warning)
        if parts:
            save_known_checksums(plan, folder)
            if preparing_processes(plan.model.device, prepare) and CLEAN_SET in plan.data.contents:
                # Some shifts take twenty times as long as others. Condition by condition, the model would wait for all of
                # the slow ones, and the processes that read images would have nothing to do during the fast ones.
                parts.sort(key=lambda part: part.images[0])
        yield OpenEvaluation(store, parts, warnings)


@contextmanager
def _without_traces(folder: Path) -> Iterator[None]:
    """Remove the files that a run wrote into its folder where it failed before anything was stored."""
    existed = folder.is_dir()
    before = set(folder.iterdir()) if existed else set()
    try:
        yield
    except GramLoopError:
        new = set(folder.iterdir()) - before if folder.is_dir() else set()
        if {path.name for path in new} <= {PLAN, MANIFEST, CHECKSUM_CACHE, LOCK}:
            for path in new:
                path.unlink()
            if not existed:
                folder.rmdir()
        raise


def start_entry(job: Job, engine: str, workers: int | None, command: str = "") -> dict[str, object]:
    """What the manifest keeps of a start."""
    device = job.device or job.workload.device
    here = default_workers(device, job.workload.threads, workers)
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": platform.node(),
        "device": device,
        "engine": engine,
        "workers": here if engine == "local" else None,
        **({"command": command} if command else {}),
    }


def evaluate_model(
    model: Model,
    data: Path | str | None = None,
    *,
    suite: str,
    out: Path | str,
    listener: Listener | None = None,
    command: str = "",
    **options: Any,
) -> Results:
    """Evaluate methods on a model over a suite, or resume an earlier call.

    Args:
        model: what ``--model`` takes; or a predictor, a torch module with ``preprocess`` and ``postprocess``, or a
            function from an image to a prediction, which runs in this process.
        data: the folder of the set; scenes are drawn where the suite is one of scenes.
        suite: such as "scenes-c", "coco-c" or "my-set-c".
        out: the folder for the plan and results; methods are added to those it holds.
        listener: called as the work proceeds; on a terminal, a bar by default.
        command: what was typed to get here, for the report.
        options: any other field of `EvaluateOptions` and its groups: methods, task, conditions, severities, images, truth,
            calibration, diagnostics, short_side, workers, batch, engine, device, version and more.

    Returns:
        The scores of everything that the folder holds.
    """
    asked, held = options_for(EvaluateOptions, model, data, suite=suite, out=out, **options)
    if listener is None and sys.stderr.isatty():
        from gramloop.evaluate.display import Display

        listener = Display()
    results = run_evaluation(asked, listener or Listener(), held, command)
    if results.missed:
        names = ", ".join(str(one.part) for one in results.missed)
        reasons = "; ".join(dict.fromkeys(one.reason for one in results.missed))
        raise GramLoopError(
            f"not stored ({names}): {reasons}; all others are kept, and the same command tries these again"
        )
    return results


def options_for(
    kind: type[_Options], model: Model, data: Path | str | None, **options: Any
) -> tuple[_Options, Model | None]:
    """The options of a call from Python, and the model if it exists in memory alone."""
    held = None if isinstance(model, str) else model
    if held is not None:
        if options.get("workers") not in (None, 1):
            raise GramLoopError(
                f"workers is {options['workers']}; a model in memory cannot be sent to other processes: name a function "
                "that makes it, such as my_models.py:make, or use one worker"
            )
        options["workers"] = 1
    named = {"model": model} if held is None else {}
    return from_keywords(kind, {**options, **named, "data": data}), held


def run_evaluation(
    options: EvaluateOptions, listener: Listener, held: Model | None = None, command: str = ""
) -> Results:
    """Run what options ask for on their model or the one in memory; time methods alone where that costs little more."""
    folder, work = options.out, options.work
    work.check(options.model.device)
    engine = work.open_engine()
    plan = plan_with_stored(folder, plan_evaluation(options, held))
    listener.message(f"{len(plan.units)} units, {plan.images} images, plan {plan.hash}")
    if plan.calibration_split is not None:
        listener.message(str(plan.calibration_split))
    device = numbered_device(options.model.device) if engine is None else None
    how: dict[str, Any] = {
        "engine": engine,
        "engine_name": work.engine,
        "workers": work.workers,
        "prepare": work.prepare,
    }
    results = evaluate(plan, folder, listener=listener, device=device, command=command, **how)
    whole = results.plan
    if engine is None and not results.missed and len(whole.methods) > 1 and whole.images >= 20 * TRIED:
        time_methods(whole, folder, device)
    return results


def plan_evaluation(
    options: EvaluateOptions,
    held: Model | None = None,
    scenes: Path | None = None,
    elsewhere: bool = False,
) -> Plan:
    """The plan that options describe, or the one in the folder where they name no suite.

    Scenes are drawn in the folder by default; ``elsewhere`` is for what is run on another machine, or not at all.
    """
    folder, scenes = options.out, scenes or options.out / SCENES
    if options.suite is None:
        return _stored_plan(folder, options.model.device)
    if options.data.data is None:
        check_before_drawing(folder, scenes)
    load_checksums(folder)
    read_methods(options.methods or (BASELINE,))  # a typo is reported before scenes are drawn
    elsewhere = elsewhere or options.work.engine != "local"
    request = request_for(options.suite, options.data, options.model, scenes, held=held, elsewhere=elsewhere)
    whole = replace(
        request,
        methods=options.methods,
        calibration=None if options.calibration is None else str(options.calibration.resolve()),
        calibration_split=plan_in(folder).calibration_split if (folder / PLAN).is_file() else None,
        alignment=options.alignment or "auto",
        **shared_values(options.stored, StoredOptions),
        **shared_values(options.work, PlannedWork),
    )
    return make_plan(whole)


def _stored_plan(folder: Path, device: str | None) -> Plan:
    plan = plan_in(folder)
    if device is not None and (kind := choose_device(device).type) != plan.model.device:
        raise GramLoopError(
            f"{folder} was begun on {plan.model.device}, whose numbers are not mixed with those of {kind}; "
            f"leave out --device {device}, or choose another folder"
        )
    return plan


def request_for(
    suite: str,
    data: DataOptions,
    model: ModelOptions,
    scenes: Path,
    *,
    held: Model | None = None,
    split: str = "val",
    elsewhere: bool = False,
) -> Request:
    """The evaluation of a model on a suite; scenes of a split are drawn where a suite of scenes has no folder."""
    find_suite(suite).select(data.conditions, data.severities)  # a typo is reported before scenes are drawn
    if data.data is None and find_suite(suite).base != SUITE:
        raise GramLoopError(f"--data DIR is missing: the folder of {suite}")
    check_precision(model.dtype)
    device = choose_device(model.device) if held is not None else None
    if held is not None:
        task, files = model.task, hold_model(as_predictor(held, cast(Any, model.task), device=device))
    else:
        task, files = model.chosen_task(), model.files()
    thresholded = task is None or get_task(task).thresholded
    if data.truth_score is not None and not (data.truth == "clean" and thresholded):
        raise GramLoopError("--truth-score belongs to --truth clean with --task detection or instance")
    return Request(
        suite=suite,
        task=task,
        files=files,
        sizes=model.sizes(),
        device=device_kind(model.device, elsewhere),
        data=_source(data, scenes, split),
        dtype=model.dtype,
        truth_score=TRUTH_SCORE if data.truth_score is None else data.truth_score,
        version=model.version,
        **shared_values(data, TruthOptions),
    )


def _source(data: DataOptions, scenes: Path, split: str) -> DataSource:
    """The images; scenes are drawn where there is no folder."""
    if data.truth == "labels" and data.data is not None and has_photographs_alone(data.data):
        raise GramLoopError(
            f"--data {data.data} holds photographs without labels; add --truth clean, which compares predictions on "
            "shifted photographs with those on the clean ones"
        )
    many = COUNT if data.images is None else data.images
    root = data.data or draw_scenes(scenes, SceneFiles(many, split=split))
    return DataSource(
        str(root.resolve()),
        split=data.split,
        classes=str(data.classes) if data.classes else None,
        origin=data.origin,
        encoding=data.encoding,
        partial=data.partial,
        frost_textures=str(data.frost_textures.resolve()) if data.frost_textures else None,
    )
