"""``gramloop evaluate``: methods side by side over the conditions of a suite, resumable at any moment."""

from __future__ import annotations

import sys
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gramloop.cli.options import MANY, default_of, group, option
from gramloop.cli.output import Ended, is_quiet, note, print_answer, stop_code
from gramloop.cli.shared import EXAMPLES, NAMED, DataOptions, ModelOptions, device_kind, note_embedded
from gramloop.errors import GramLoopError

if TYPE_CHECKING:
    from gramloop.evaluate.engines import Engine
    from gramloop.evaluate.evaluation import EvaluationOutcome
    from gramloop.evaluate.plan import Plan
    from gramloop.evaluate.planning import Request
    from gramloop.evaluate.results import Results

KEYS = {
    "out": "the folder",
    "suite": "the suite",
    "task": "semantic, detection, depth, panoptic or instance",
    "plan": "the plan's hash",
    "methods": "their names, in the plan's order",
    "images": "over all conditions",
    "units": "stored and missing: how many",
    "metric": "the main one, in percent",
    "scores": "condition: method: metric: value, of every complete condition",
    "means": "method: mPC, the mean over shifted conditions; empty until all are complete",
    "gains": "method: its mean less the baseline's",
    "rPC": "method: mPC in percent of the clean score, where that is known",
    "mCE": "method: errors against the baseline's in percent, 100 is the baseline",
    "ER": "method: effective robustness on coco-o, where it is known",
    "excluded": "images that count for no method: condition, image, reason",
    "missed": "units that could not be run: unit, reason",
    "results": "the table in full precision; null where none is written",
    "estimate": "lines of --dry-run; null elsewhere",
}
EPILOG = (
    "DIR keeps the plan, one file per finished unit and results.csv. Stop it whenever you like: the same command, or just "
    "--out DIR, resumes. A method that is added later is the only thing that runs. An image that cannot be used counts for "
    "no method, is named at the end and makes the exit code 1; so does a unit that does not fit into memory."
    f"{EXAMPLES}  gramloop evaluate --suite scenes-c --images 8 --condition noise --severity 3 --out out/first\n"
    "  gramloop evaluate --suite my-photos-c --data photos --truth clean --model hf:FOLDER --severity 3 --out out/mine\n"
    "  gramloop evaluate --suite scenes-c --images 8 --condition blur --severity 5 --dry-run --save-config run.yaml --out out/second\n"
    "  gramloop evaluate --config run.yaml\n"
    "  gramloop evaluate --out out/second --status --json"
)


@dataclass(frozen=True)
class WorkOptions:
    """Where and how the work is done."""

    shards: int | None = option("parts of each condition (of 50 images)", None, metavar="N", limits=(1, MANY))
    workers: int | None = option("processes (all cores or GPUs)", None, metavar="N", limits=(1, 4096))
    prepare: int | None = option(
        "processes that prepare images for each of them, 0 for a thread (0 on the CPU, else the cores divided by the GPUs)",
        None,
        metavar="N",
        limits=(0, 4096),
    )
    batch: int = option(
        "images of one size given to the model at once (1); the plan records it",
        1,
        metavar="N",
        limits=(1, MANY),
    )
    engine: Literal["local", "ray", "slurm"] = option("where units run (local)", "local")
    address: str = option("of the Ray cluster (auto: this machine's)", "auto", metavar="A")
    jobs: int = option("jobs in the Slurm array (8)", 8, metavar="N", limits=(1, MANY))
    slurm: list[str] = option(
        "an option of sbatch: partition=gpu, time=600, …; can be repeated", [], metavar="NAME=VALUE"
    )
    threads: int = option("threads per process (1); numbers depend on it", 1, metavar="N", limits=(1, 1024))


@dataclass(frozen=True)
class StoredOptions:
    """What is stored, and what it is compared with."""

    clean_results: Path | None = option(
        "a finished evaluation of the clean set, for the share of its score that is left under shift (rPC)",
        None,
        metavar="DIR",
    )
    coco_results: Path | None = option(
        "a finished evaluation of the suite coco, for the effective robustness on coco-o", None, metavar="DIR"
    )
    diagnostics: bool = option(
        "store mean drift, gate and drift after gating of every image, and run the first Gram-gated method also ungated "
        "and with its mean strength for every patch",
        False,
    )
    pictures: int = option(
        "keep predictions and the replay's maps of the first N images of every condition (4)",
        4,
        metavar="N",
        limits=(0, MANY),
    )
    keep_image: list[str] = option(
        "keep the same of the image with this id under every condition; can be repeated", [], metavar="ID"
    )
    allow_failures: bool = option("exit with 0 even if images are excluded", False)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is evaluated on what."""

    out: Path = option("folder for plan and results", metavar="DIR")
    suite: str | None = option("scenes-c, coco-c, ade20k-p, coco-o, nyu-c, my-set-c, …", None, metavar="NAME")
    status: bool = option("show how far DIR is, and run nothing", False)
    dry_run: bool = option("show what would be run and what it would cost", False)
    method: list[str] = option(
        "baseline, gramloop (both by default), ungated, uniform, matched, loop-loop, final-final, "
        "NAME:window=5-7,replays=3,… or NAME:FILE.json; any mitigations, as recentre:0.3 or NAME=recentre:0.3+gramloop "
        "(docs/mitigations.md); can be repeated",
        [],
        metavar="NAME",
    )
    calibration: Path | None = option(
        "statistics of in-distribution images, as gramloop calibrate writes them",
        None,
        metavar="FILE",
    )
    replay: str | None = option(
        "settings of the method gramloop, as gramloop tune writes them", None, metavar="FILE"
    )
    align: Literal["none", "median", "scale-shift"] | None = option(
        "how predicted depth is aligned with the true one, image by image (none; scale-shift for models of disparity)",
        None,
    )
    data: DataOptions = group(DataOptions, "images")
    model: ModelOptions = group(ModelOptions, "model")
    work: WorkOptions = group(WorkOptions, "work")
    stored: StoredOptions = group(StoredOptions, "results")


def run(options: Options) -> Ended:
    """Evaluate; 1 if images had to be excluded."""
    if options.status:
        return _status(options)
    if options.dry_run:
        with tempfile.TemporaryDirectory() as scratch:
            return _dry_run(_plan(options, Path(scratch) / "scenes"), options)
    engine = engine_of(options.work, options.model.device)
    return _evaluate(_plan(options, options.out / "scenes"), options, engine)


def request_of(
    suite: str,
    data: DataOptions,
    model: ModelOptions,
    scenes: Path,
    *,
    split: str = "val",
    threads: int = 1,
    elsewhere: bool = False,
) -> Request:
    """The evaluation of a model on a suite; scenes of a split are drawn where a suite of scenes has no folder."""
    from gramloop.data.suites import find_suite
    from gramloop.evaluate.plan import TRUTH_SCORE
    from gramloop.evaluate.planning import Request
    from gramloop.tasks.base import get_task

    find_suite(suite).select(data.condition, data.severity)  # a typo is reported before scenes are drawn
    if data.data is not None:
        note_embedded(model, [data.data])
    task = model.chosen_task()
    thresholded = task is None or get_task(task).thresholded
    if data.truth_score is not None and not (data.truth == "clean" and thresholded):
        raise GramLoopError("--truth-score belongs to --truth clean with --task detection or instance")
    return Request(
        suite=suite,
        task=task,
        files=model.files(),
        data=data.source(suite, scenes, split),
        conditions=data.condition,
        severities=data.severity,
        images=data.images,
        sizes=model.sizes(),
        device=device_kind(model.device, elsewhere),
        threads=threads,
        dtype=model.dtype,
        truth=data.truth,
        truth_score=TRUTH_SCORE if data.truth_score is None else data.truth_score,
        verify=data.verify,
        version=model.model_version,
    )


def _plan(options: Options, scenes: Path) -> Plan:
    """The plan that the options describe, or the one in the folder where they describe none."""
    from gramloop.evaluate.methods import BASELINE, read_methods
    from gramloop.evaluate.planning import make_plan
    from gramloop.evaluate.store import check_before_drawing, split_in
    from gramloop.util.checksums import load_checksums

    if options.suite is None:
        return _stored_plan(options)
    if options.data.data is None:
        check_before_drawing(options.out, scenes)
    load_checksums(options.out)
    read_methods(options.method or (BASELINE,), options.replay)  # a typo is reported before scenes are drawn
    elsewhere = options.dry_run or options.work.engine != "local"
    request = request_of(
        options.suite, options.data, options.model, scenes, threads=options.work.threads, elsewhere=elsewhere
    )
    return make_plan(
        replace(
            request,
            calibration=None if options.calibration is None else str(options.calibration.resolve()),
            calibration_split=split_in(options.out),
            methods=options.method,
            shards=options.work.shards,
            diagnostics=options.stored.diagnostics,
            pictures=options.stored.pictures,
            keep=options.stored.keep_image,
            replay=options.replay,
            batch=options.work.batch,
            alignment=options.align or "auto",
        )
    )


def _stored_plan(options: Options) -> Plan:
    from gramloop.evaluate.store import PLAN, plan_in
    from gramloop.util.device import choose_device

    if not (options.out / PLAN).is_file():
        raise GramLoopError(f"{options.out} holds no evaluation to resume; begin one with --suite NAME")
    if ignored := _describes(options):
        raise GramLoopError(f"{ignored} belongs to a new evaluation; give --suite too, or leave it out")
    plan = plan_in(options.out)
    device = options.model.device
    if device is not None and (kind := choose_device(device).type) != plan.model.device:
        raise GramLoopError(
            f"{options.out} was begun on {plan.model.device}, whose numbers are not mixed with those of {kind}; "
            f"leave out --device {device}, or choose another folder"
        )
    return plan


def _describes(options: Options) -> str:
    """The first option that describes an evaluation, although no suite is named."""
    parts: list[tuple[Any, tuple[str, ...]]] = [
        (options, ("method", "calibration", "replay", "align")),
        (options.data, tuple(field.name for field in fields(DataOptions) if field.name != "verify")),
        (options.model, tuple(field.name for field in fields(ModelOptions) if field.name != "device")),
        (options.work, ("shards", "batch")),
        (options.stored, ("diagnostics", "keep_image")),
    ]
    for part, names in parts:
        for name in names:
            if getattr(part, name) != default_of(type(part), name):
                return f"--{name.replace('_', '-')}"
    return ""


def engine_of(work: WorkOptions, device: str | None) -> Engine | None:
    """Where the units run; None is this machine."""
    device = device or ""
    if work.slurm and work.engine != "slurm":
        raise GramLoopError(
            f"--slurm {work.slurm[0]} belongs to --engine slurm, not to --engine {work.engine}"
        )
    if work.engine != "local" and ":" in device:
        raise GramLoopError(
            f"--device {device} is one GPU of this machine; --engine {work.engine} assigns GPUs itself: --device cuda"
        )
    if work.engine == "ray":
        from gramloop.evaluate.engines.ray import check_address, run_ray

        check_address(work.address)
        return partial(run_ray, address=work.address)
    if work.engine == "slurm":
        from gramloop.evaluate.engines.slurm import run_slurm

        return partial(run_slurm, jobs=work.jobs, settings=dict(_setting(text) for text in work.slurm))
    return None


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise GramLoopError(f"--slurm takes NAME=VALUE, such as partition=gpu, not {text!r}")
    return name, int(value) if value.isdecimal() else value


def _evaluate(plan: Plan, options: Options, engine: Engine | None) -> Ended:
    from rich.console import Console

    from gramloop.evaluate.cost import TRIED, time_methods
    from gramloop.evaluate.display import Display, print_robustness, results_table, unscored
    from gramloop.evaluate.evaluation import Listener, evaluate
    from gramloop.evaluate.results import check_clean_results, has_effective
    from gramloop.evaluate.store import RESULTS, Store, plan_with_stored
    from gramloop.report.answers import read_answers
    from gramloop.util.device import numbered_device

    out, clean = options.out, options.stored.clean_results or options.stored.coco_results
    plan = plan_with_stored(out, plan)
    check_clean_results(plan, clean)
    store = Store(out, plan)
    note(f"{len(plan.units)} units, {plan.images} images, plan {plan.hash}")
    if plan.calibration_split is not None:
        note(str(plan.calibration_split))
    stored = partial(_count_stored, store)
    try:
        with nullcontext(Listener()) if is_quiet() else Display(store) as listener:
            outcome = evaluate(
                plan,
                out,
                workers=options.work.workers,
                verify=options.data.verify,
                engine=engine,
                engine_name=options.work.engine,
                listener=listener,
                device=numbered_device(options.model.device) if engine is None else None,
                prepare=options.work.prepare,
            )
        worthwhile = (
            len(plan.methods) > 1 and plan.images >= 20 * TRIED
        )  # where it costs little in comparison
        if engine is None and worthwhile and not outcome.missed:
            time_methods(plan, out, numbered_device(options.model.device))
    except KeyboardInterrupt as stop:
        print(
            f"gramloop evaluate: stopped with {stored()} of {len(plan.units)} units stored; "
            f"gramloop evaluate --out {out} resumes",
            file=sys.stderr,
        )
        return Ended(stop_code(stop), lambda: document_of(options, plan, stored=stored()))
    results = outcome.results
    if len(plan.methods) > 1 and results.conditions and not is_quiet():
        for answer in read_answers([out], options.work.workers if engine is None else None):
            print_answer(answer)
    Console().print(results_table(results, clean))
    if has_effective(plan):
        print_robustness(results, clean)
    print(f"In full precision: {out / RESULTS}. As a page: gramloop report {out} --out {out}-report")
    code = max(_report_excluded(outcome, options.stored.allow_failures), _report_missed(outcome, out))
    code = max(code, 1 if unscored(results) else 0)
    missed = [{"unit": str(one.part), "reason": one.reason} for one in outcome.missed]
    more: dict[str, Any] = {"stored": stored(), "missed": missed, "table": out / RESULTS}
    return Ended(code, lambda: document_of(options, plan, results, **more))


def _count_stored(store: Any) -> int:
    return sum(store.path(unit).is_file() for unit in store.plan.units)


def _report_missed(outcome: EvaluationOutcome, folder: Path) -> int:
    """Print the units that did not fit into memory; the exit code that follows."""
    missed = outcome.missed
    if not missed:
        return 0
    for reason in list(dict.fromkeys(one.reason for one in missed))[:NAMED]:
        print(reason, file=sys.stderr)
    again = f"gramloop evaluate --out {folder} tries them again"
    print(f"{len(missed)} parts are missing; {again}:", file=sys.stderr)
    for one in missed:
        print(f"  {one.part}", file=sys.stderr)
    return 1


def _report_excluded(outcome: EvaluationOutcome, allowed: bool) -> int:
    """Print the images that count for no method; the exit code that follows."""
    many = len(outcome.failures)
    if not many:
        return 0
    print(f"{many} predictions were left out for all methods:", file=sys.stderr)
    for condition, failure in outcome.failures[:NAMED]:
        print(f"  {condition}, image {failure.image_id}: {failure.reason}", file=sys.stderr)
    if many > NAMED:
        print(f"  … and {many - NAMED} more", file=sys.stderr)
    return 0 if allowed else 1


def _dry_run(plan: Plan, options: Options) -> Ended:
    from gramloop.evaluate.cost import describe_plan
    from gramloop.evaluate.engines.local import default_workers

    device = options.model.device or ""
    one = device if ":" in device else plan.model.device  # it need not be on this machine
    text = describe_plan(plan, options.work.workers or default_workers(one, plan.model.threads))
    print(text)
    return Ended(0, lambda: document_of(options, plan, estimate=text.splitlines()))


def _status(options: Options) -> Ended:
    """Show how far a folder is."""
    from gramloop.evaluate.display import print_robustness, print_status
    from gramloop.evaluate.evaluation import inspect_store
    from gramloop.evaluate.results import check_clean_results, collect
    from gramloop.evaluate.store import RESULTS, Store, plan_in

    clean = options.stored.clean_results or options.stored.coco_results
    store = Store(options.out, plan_in(options.out))
    check_clean_results(store.plan, clean)
    state = inspect_store(store)
    unfinished = {part.condition for part in state.missing}
    results = collect(store, [key for key in store.plan.conditions if key not in unfinished])
    print_status(store, state, results)
    print_robustness(results, clean)
    table = options.out / RESULTS
    stored = sum(len(part.methods) for part in state.stored)
    more: dict[str, Any] = {"stored": stored, "table": table if table.is_file() else None}
    return Ended(0, lambda: document_of(options, store.plan, results, **more))


def document_of(
    options: Options,
    plan: Plan,
    results: Results | None = None,
    *,
    stored: int = 0,
    missed: list[dict[str, str]] | None = None,
    table: Path | None = None,
    estimate: list[str] | None = None,
) -> dict[str, Any]:
    """The values of `KEYS`."""
    from gramloop.evaluate.methods import BASELINE
    from gramloop.evaluate.results import Results, metrics_of, robustness

    results = results or Results(plan, ())
    means = results.means()
    baseline = means.get(BASELINE)
    found = robustness(results, options.stored.clean_results or options.stored.coco_results)
    return {
        "out": options.out,
        "suite": plan.suite,
        "task": plan.task,
        "plan": plan.hash,
        "methods": [method.name for method in plan.methods],
        "images": plan.images,
        "units": {"stored": stored, "missing": len(plan.units) - stored},
        "metric": metrics_of(plan)[0],
        "scores": {one.condition: one.scores for one in results.conditions},
        "means": means,
        "gains": {} if baseline is None else {name: mean - baseline for name, mean in means.items()},
        "rPC": found.rpc,
        "mCE": found.mce,
        "ER": found.er,
        "excluded": [
            {"condition": one.condition, "image": str(failure.image_id), "reason": failure.reason}
            for one in results.conditions
            for failure in one.failures
        ],
        "missed": missed or [],
        "results": table,
        "estimate": estimate,
    }
