"""An evaluation from plan to results: what is stored is kept, the rest is run, everything is scored."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict, Unpack, cast

from torch import nn

from gramloop.data.scenes.files import COUNT, SUITE, SceneFiles, draw_scenes
from gramloop.data.suites import find_suite
from gramloop.errors import GramLoopError
from gramloop.evaluate.engines import Engine, Job, NotStarted, preparing_processes
from gramloop.evaluate.engines.local import default_workers, run_local
from gramloop.evaluate.methods import Method
from gramloop.evaluate.plan import DataSource, Part, Plan, TruthKind
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
from gramloop.evaluate.rows import Failure
from gramloop.evaluate.runner import Done, Missed
from gramloop.evaluate.store import (
    SCENES,
    Store,
    UnusableFile,
    check_before_drawing,
    open_folder,
    plan_with_stored,
    record_start,
    split_in,
)
from gramloop.tasks.custom import as_predictor
from gramloop.tasks.identity import hold_model
from gramloop.tasks.loading import WeightPrecision, check_precision, model_files
from gramloop.tasks.predictor import AnyPredictor
from gramloop.util.checksums import load_checksums
from gramloop.util.device import choose_device, numbered_device
from gramloop.util.files import locked
from gramloop.util.processes import worker_count
from gramloop.util.progress import tracked
from gramloop.util.table import Table, TableRepr

Model = str | AnyPredictor | nn.Module | Callable[..., object]


class Listener:
    """Called as an evaluation proceeds; the methods do nothing here."""

    def stored(self, part: Part) -> None:
        """A part was stored before."""

    def warning(self, message: str) -> None:
        """A stored file cannot be used."""

    def images(self, number: int) -> None:
        """So many more images were predicted."""

    def waiting(self, message: str) -> None:
        """Nothing was finished for a while: what a cluster is waited for, and why."""

    def finished(self, done: Done) -> None:
        """A part was run and stored."""

    def missed(self, missed: Missed) -> None:
        """A part was not stored, since an image of it did not fit into memory."""


@dataclass(frozen=True)
class StoreState:
    """What a folder holds of its plan; a part that lacks some methods is in both lists, with those it has and lacks."""

    stored: tuple[Part, ...]
    missing: tuple[Part, ...]
    damaged: tuple[str, ...]  # files that cannot be used, and why


@dataclass(frozen=True)
class EvaluationOutcome(TableRepr):
    """The results of an evaluation, and what went wrong."""

    results: Results
    rejected: tuple[str, ...]
    missed: tuple[Missed, ...] = ()  # parts that did not fit into memory: the next run tries them again

    @property
    def failures(self) -> tuple[tuple[str, Failure], ...]:
        """Images that count for no method, each with its condition."""
        return tuple((one.condition, failure) for one in self.results.conditions for failure in one.failures)

    def _table(self) -> Table:
        shown = self.results._table()
        return replace(shown, notes=(*shown.notes, *self.rejected))


def inspect_store(store: Store[Plan]) -> StoreState:
    """Read every stored unit of a plan."""
    stored, missing, damaged = [], [], []
    parts = store.plan.parts
    for part in tracked(parts, "reading units", len(parts)):
        held: list[Method] = []
        for unit in part.units:
            try:
                held += [unit.method] if store.read(unit) is not None else []
            except UnusableFile as problem:
                damaged.append(str(problem))
        lacking = tuple(method for method in part.methods if method not in held)
        stored += [replace(part, methods=tuple(held))] if held else []
        missing += [replace(part, methods=lacking)] if lacking else []
    return StoreState(tuple(stored), tuple(missing), tuple(damaged))


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
) -> EvaluationOutcome:
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

    Returns:
        The scores of everything that the folder holds, and what could not be used.
    """
    listener = listener or Listener()
    if engine is not None:  # whose processes may have another working directory
        folder = folder.absolute()
    with open_evaluation(plan, folder, listener=listener, prepare=prepare) as opened:
        missed: tuple[Missed, ...] = ()
        if opened.parts:
            workload = plan_workload(opened.store.plan, folder)
            job = Job(
                workload, opened.store, opened.parts, listener.images, listener.waiting, device, prepare
            )
            record_start(opened.store, start_entry(job, engine_name, workers))
            missed = _run(engine(job) if engine is not None else run_local(job, workers), listener)
        return opened.finish(missed)


@dataclass(frozen=True)
class OpenEvaluation:
    """An evaluation whose folder is locked: its store, the parts that are still to be run, and damaged files."""

    store: Store[Plan]
    parts: Sequence[Part]
    warnings: tuple[str, ...]

    def finish(self, missed: Sequence[Missed] = ()) -> EvaluationOutcome:
        """Score what is stored and write the table."""
        results = collect(self.store)
        write_results(self.store, results)
        return EvaluationOutcome(results, self.warnings, tuple(missed))


@contextmanager
def open_evaluation(
    plan: Plan,
    folder: Path,
    *,
    listener: Listener | None = None,
    prepare: int | None = None,
) -> Iterator[OpenEvaluation]:
    """Check a plan and lock its folder, for as long as the ``with`` block lasts; see `evaluate` for the arguments."""
    listener = listener or Listener()
    load_checksums(folder)
    plan = plan_with_stored(folder, plan)  # a folder that is refused stays untouched: no lock, no scratch
    if any(not Store(folder, plan).path(unit).is_file() for unit in plan.units):
        check_can_run(plan)
    with _without_traces(folder), locked(folder):
        store = open_folder(folder, plan)
        state = inspect_store(store)
        warnings = tuple(f"{problem}; the unit is computed again" for problem in state.damaged)
        for warning in warnings:
            listener.warning(warning)
        incomplete = {str(part) for part in state.missing}
        for part in state.stored:
            if str(part) not in incomplete:
                listener.stored(part)
        parts: Sequence[Part] = state.missing
        if parts:
            save_known_checksums(plan, folder)
            if preparing_processes(plan.model.device, prepare) and CLEAN_SET in plan.data.contents:
                # Some shifts take twenty times as long as others. Condition by condition, the model would wait for all of
                # the slow ones, and the processes that read images would have nothing to do during the fast ones.
                parts = sorted(parts, key=lambda part: part.images[0])
        yield OpenEvaluation(store, parts, warnings)


@contextmanager
def _without_traces(folder: Path) -> Iterator[None]:
    """Remove the files that a run wrote into its folder where a cluster refuses to run anything."""
    before = set(folder.iterdir()) if folder.is_dir() else None
    try:
        yield
    except NotStarted:
        for path in set(folder.iterdir()) - (before or set()):
            path.unlink()
        if before is None:
            folder.rmdir()
        raise


def _run(outcomes: Iterable[Done | Missed], listener: Listener) -> tuple[Missed, ...]:
    missed = []
    for one in outcomes:
        if isinstance(one, Missed):
            missed.append(one)
            listener.missed(one)
        else:
            listener.finished(one)
    return tuple(missed)


def check_can_run(plan: Plan) -> None:
    """Refuse a plan whose versions, weights, calibration or images are not those that it was made with."""
    check_origin(plan)
    load_calibration(plan)
    PlannedImages(plan)


def start_entry(job: Job, engine: str, workers: int | None) -> dict[str, object]:
    """What the manifest keeps of a start."""
    device = job.device or job.workload.device
    here = default_workers(device, job.workload.threads) if workers is None else workers
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": platform.node(),
        "device": device,
        "engine": engine,
        "workers": here if engine == "local" else None,
    }


def missed_message(missed: Sequence[Missed]) -> str:
    """Which parts are not stored for lack of memory, and what would help."""
    names = ", ".join(str(one.part) for one in missed)
    many = "1 part is" if len(missed) == 1 else f"{len(missed)} parts are"
    reasons = "; ".join(dict.fromkeys(one.reason for one in missed))
    return (
        f"{many} not stored ({names}): {reasons}; all others are kept, and the same command tries these again"
    )


class SetOptions(TypedDict, total=False):
    """What `evaluate_model` and `gramloop.tune` take alike, as keywords.

    task: what is predicted, where the model has several tasks.
    conditions, severities, images: fewer of them.
    truth: "clean" compares with what the plain model predicts on the clean image, and needs no labels.
    split, classes: of a set of label pictures.
    device: where it runs: auto, cpu, cuda, cuda:1 or mps.
    version: what you call a model of your own code, where its content may change or its predictions vary.
    trust_remote_code: let a transformers folder, hf:FOLDER, run Python code that it holds.
    """

    task: str | None
    conditions: Sequence[str]
    severities: Sequence[int]
    images: int | None
    truth: TruthKind
    split: str
    classes: Path | str | None
    device: str | None
    version: str
    trust_remote_code: bool


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
    dtype: WeightPrecision = "float32",
    **options: Unpack[SetOptions],
) -> Results:
    """Evaluate methods on a model over a suite, or resume an earlier call.

    Args:
        model: what ``--model`` takes; or a predictor, a torch module with ``preprocess`` and ``postprocess``, or a
            function from an image to a prediction, which runs in this process.
        data: the folder of the set; scenes are drawn where the suite is one of scenes.
        suite: such as "scenes-c", "coco-c" or "my-set-c".
        out: the folder for plan and results; methods are added to those it holds.
        methods: as ``--method``; the plain model and, where it can be replayed, the published replay by default.
        workers: processes; as many as the cores hold, or one per GPU, by default.
        batch: images of one size that the model is given at once, where it can.
        prepare: processes that read images for each worker, 0 for a thread; all cores next to GPUs by default.
        dtype: of the backbone's weights; "bfloat16" halves their memory, where the model is loaded by name.
        options: see `SetOptions`.

    Returns:
        The scores of everything that the folder holds.
    """
    check_precision(dtype)
    folder = Path(out)
    if data is None:
        check_before_drawing(folder, folder / SCENES)
    load_checksums(folder)
    request, many = request_for(model, data, suite, folder, workers, **options)
    more: dict[str, Any] = {
        "methods": methods,
        "batch": batch,
        "dtype": dtype,
        "calibration_split": split_in(folder),
    }
    device = numbered_device(options.get("device"))
    outcome = evaluate(
        make_plan(replace(request, **more)), folder, workers=many, device=device, prepare=prepare
    )
    if outcome.missed:
        raise GramLoopError(missed_message(outcome.missed))
    return outcome.results


def request_for(
    model: Model,
    data: Path | str | None,
    suite: str,
    out: Path,
    workers: int | None,
    scenes: str = "val",
    **options: Unpack[SetOptions],
) -> tuple[Request, int | None]:
    """What a call asks for, and the number of processes; ``scenes`` is the split of those that are drawn."""
    if workers is not None:
        worker_count(workers)  # refused before scenes are drawn
    if data is None and find_suite(suite).base != SUITE:
        raise GramLoopError(f"data is missing: the folder of {suite}")
    task, images, classes = options.get("task"), options.get("images"), options.get("classes")
    device = choose_device(options.get("device"))
    if isinstance(model, str):
        files = model_files(model, options.get("trust_remote_code", False))
    elif workers not in (None, 1):
        raise GramLoopError(
            f"workers is {workers}; a model in memory cannot be sent to other processes: name a function that makes it, "
            "such as my_models.py:make, or use one worker"
        )
    else:
        files, workers = hold_model(as_predictor(model, cast(Any, task), device=device)), 1
    drawn = SceneFiles(COUNT if images is None else images, split=scenes)
    root = Path(data) if data is not None else draw_scenes(out / SCENES, drawn)
    source = DataSource(
        str(root.resolve()),
        split=options.get("split", "validation"),
        classes=None if classes is None else str(classes),
    )
    task = "semantic" if task is None and "folder" in files else task
    same = ("conditions", "severities", "images", "truth", "version")
    more: dict[str, Any] = {name: options[name] for name in same if name in options}  # type: ignore[literal-required]
    return Request(suite=suite, task=task, files=files, data=source, device=device.type, **more), workers
