"""``gramloop evaluate``: methods side by side over the conditions of a suite, resumable at any moment."""

from __future__ import annotations

import sys
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gramloop.cli.options import MANY, CommandResult, command, flat_values, group, option
from gramloop.cli.output import NAMED, is_quiet, note, print_answer, print_failures, print_files, stop_code
from gramloop.cli.shared import (
    CALIBRATION_HELP,
    DataOptions,
    ModelOptions,
    WorkOptions,
    check_engine,
    engine_of,
    request_of,
)
from gramloop.errors import GramLoopError

if TYPE_CHECKING:
    from gramloop.evaluate.engines import Engine
    from gramloop.evaluate.evaluation import EvaluationOutcome
    from gramloop.evaluate.plan import Plan
    from gramloop.evaluate.results import Results

# options that say how a stored plan is run; every other one describes a new evaluation
_RESUMED = (
    "out", "status", "dry_run", "device", "workers", "prepare", "engine", "address", "jobs", "slurm", "threads",
    "clean_results", "coco_results", "pictures", "allow_failures",
)  # fmt: skip


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
class EvaluateOptions:
    """What is evaluated, or which folder is continued."""

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
    calibration: Path | None = option(CALIBRATION_HELP, None, metavar="FILE")
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


@command(
    EvaluateOptions,
    "DIR keeps the plan, one file per finished unit and results.csv. Stop it whenever you like: the same command, or just "
    "--out DIR, resumes. A method that is added later is the only thing that runs. An image that cannot be used counts for "
    "no method, is named at the end and makes the exit code 1; so does a unit that does not fit into memory.",
    [
        "gramloop evaluate --suite scenes-c --images 8 --condition noise --severity 3 --out out/first",
        "gramloop evaluate --suite my-photos-c --data photos --truth clean --model hf:FOLDER --severity 3 --out out/mine",
        "gramloop evaluate --suite scenes-c --images 8 --condition blur --severity 5 --dry-run --save-config run.yaml --out out/second",
        "gramloop evaluate --config run.yaml",
        "gramloop evaluate --out out/second --status --json",
    ],
    {
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
    },
)
def evaluate_command(options: EvaluateOptions) -> CommandResult:
    """Evaluate; 1 if images had to be excluded."""
    if options.status:
        return _status(options)
    check_engine(options.work, options.model.device)
    if options.dry_run:
        with tempfile.TemporaryDirectory() as scratch:
            return _dry_run(_plan(options, Path(scratch) / "scenes"), options)
    engine = engine_of(options.work)
    return _evaluate(_plan(options, options.out / "scenes"), options, engine)


def _plan(options: EvaluateOptions, scenes: Path) -> Plan:
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


def _stored_plan(options: EvaluateOptions) -> Plan:
    from gramloop.evaluate.store import PLAN, plan_in
    from gramloop.util.device import choose_device

    if not (options.out / PLAN).is_file():
        raise GramLoopError(f"{options.out} holds no evaluation to resume; begin one with --suite NAME")
    usual = flat_values(EvaluateOptions(out=options.out))
    for name, value in flat_values(options).items():
        if value != usual[name] and name not in _RESUMED:
            spelt = name.replace("_", "-")
            raise GramLoopError(f"--{spelt} belongs to a new evaluation; give --suite too, or leave it out")
    plan = plan_in(options.out)
    device = options.model.device
    if device is not None and (kind := choose_device(device).type) != plan.model.device:
        raise GramLoopError(
            f"{options.out} was begun on {plan.model.device}, whose numbers are not mixed with those of {kind}; "
            f"leave out --device {device}, or choose another folder"
        )
    return plan


def _evaluate(plan: Plan, options: EvaluateOptions, engine: Engine | None) -> CommandResult:
    from gramloop.evaluate.results import check_clean_results
    from gramloop.evaluate.store import RESULTS, Store, plan_with_stored

    out = options.out
    plan = plan_with_stored(out, plan)
    check_clean_results(plan, _clean_results(options, plan))
    store = Store(out, plan)
    note(f"{len(plan.units)} units, {plan.images} images, plan {plan.hash}")
    if plan.calibration_split is not None:
        note(str(plan.calibration_split))

    def stored() -> int:
        return sum(store.path(unit).is_file() for unit in plan.units)

    try:
        outcome = _run(store, options, engine)
    except KeyboardInterrupt as stop:
        print(
            f"gramloop evaluate: stopped with {stored()} of {len(plan.units)} units stored; "
            f"gramloop evaluate --out {out} resumes",
            file=sys.stderr,
        )
        return stop_code(stop), _document(options, plan, stored=stored())
    code = _report(outcome, options, engine)
    missed = [{"unit": str(one.part), "reason": one.reason} for one in outcome.missed]
    more = {"missed": missed, "results": out / RESULTS}
    return code, _document(options, plan, outcome.results, stored(), **more)


def _run(store: Any, options: EvaluateOptions, engine: Engine | None) -> EvaluationOutcome:
    """Run what is missing, and time the methods alone where that costs little in comparison."""
    from gramloop.evaluate.cost import TRIED, time_methods
    from gramloop.evaluate.display import Display
    from gramloop.evaluate.evaluation import Listener, evaluate
    from gramloop.util.device import numbered_device

    plan = store.plan
    device = numbered_device(options.model.device) if engine is None else None
    with nullcontext(Listener()) if is_quiet() else Display(store) as listener:
        outcome = evaluate(
            plan,
            options.out,
            workers=options.work.workers,
            engine=engine,
            engine_name=options.work.engine,
            listener=listener,
            device=device,
            prepare=options.work.prepare,
        )
    if engine is None and not outcome.missed and len(plan.methods) > 1 and plan.images >= 20 * TRIED:
        time_methods(plan, options.out, device)
    return outcome


def _report(outcome: EvaluationOutcome, options: EvaluateOptions, engine: Engine | None) -> int:
    """Print the answer, the table and what is missing; the exit code that follows."""
    from rich.console import Console

    from gramloop.evaluate.display import results_table, unscored
    from gramloop.evaluate.store import RESULTS
    from gramloop.report.answers import read_answers

    out, results, missed = options.out, outcome.results, outcome.missed
    if len(results.plan.methods) > 1 and results.conditions and not is_quiet():
        for answer in read_answers([out], options.work.workers if engine is None else None):
            print_answer(answer)
    Console().print(results_table(results, _clean_results(options, results.plan)))
    print_files(out / RESULTS, out)
    failures = [f"{key}, image {one.image_id}: {one.reason}" for key, one in outcome.failures]
    print_failures(f"{len(failures)} predictions were left out for all methods:", failures)
    for reason in list(dict.fromkeys(one.reason for one in missed))[:NAMED]:
        print(reason, file=sys.stderr)
    title = f"{len(missed)} parts are missing; gramloop evaluate --out {out} tries them again:"
    print_failures(title, [str(one.part) for one in missed])
    excluded = bool(failures) and not options.stored.allow_failures
    return 1 if excluded or missed or unscored(results) else 0


def _clean_results(options: EvaluateOptions, plan: Plan) -> Path | None:
    """The folder with results on clean images."""
    from gramloop.evaluate.results import has_effective

    clean, coco = options.stored.clean_results, options.stored.coco_results
    if coco is not None and not has_effective(plan):
        raise GramLoopError(f"--coco-results belongs to --suite coco-o; {plan.suite} takes --clean-results")
    if clean is not None and coco is not None:
        raise GramLoopError(
            "--clean-results and --coco-results name the same thing for coco-o; give one of them"
        )
    return clean or coco


def _dry_run(plan: Plan, options: EvaluateOptions) -> CommandResult:
    from gramloop.evaluate.cost import describe_plan
    from gramloop.evaluate.engines.local import default_workers

    device = options.model.device or ""
    one = device if ":" in device else plan.model.device  # it need not be on this machine
    text = describe_plan(plan, options.work.workers or default_workers(one, plan.model.threads))
    print(text)
    return 0, _document(options, plan, estimate=text.splitlines())


def _status(options: EvaluateOptions) -> CommandResult:
    """Show how far a folder is."""
    from gramloop.evaluate.display import print_robustness, print_status
    from gramloop.evaluate.evaluation import inspect_store
    from gramloop.evaluate.results import check_clean_results, collect
    from gramloop.evaluate.store import RESULTS, Store, plan_in

    store = Store(options.out, plan_in(options.out))
    clean = _clean_results(options, store.plan)
    check_clean_results(store.plan, clean)
    state = inspect_store(store)
    unfinished = {part.condition for part in state.missing}
    results = collect(store, [key for key in store.plan.conditions if key not in unfinished])
    print_status(store, state, results)
    print_robustness(results, clean)
    table = options.out / RESULTS
    stored = sum(len(part.methods) for part in state.stored)
    return 0, _document(options, store.plan, results, stored, results=table if table.is_file() else None)


def _document(
    options: EvaluateOptions, plan: Plan, found: Results | None = None, stored: int = 0, **more: Any
) -> dict[str, Any]:
    """The values of the command's keys; ``more`` has those that only some calls know."""
    from gramloop.evaluate.methods import BASELINE
    from gramloop.evaluate.results import Results, metrics_of, robustness

    found = found or Results(plan, ())
    means = found.means()
    robust = robustness(found, _clean_results(options, plan))
    excluded = [
        {"condition": one.condition, "image": str(failure.image_id), "reason": failure.reason}
        for one in found.conditions
        for failure in one.failures
    ]
    return {
        "out": options.out,
        "suite": plan.suite,
        "task": plan.task,
        "plan": plan.hash,
        "methods": [method.name for method in plan.methods],
        "images": plan.images,
        "units": {"stored": stored, "missing": len(plan.units) - stored},
        "metric": metrics_of(plan)[0],
        "scores": {one.condition: one.scores for one in found.conditions},
        "means": means,
        "gains": {name: mean - means[BASELINE] for name, mean in means.items() if BASELINE in means},
        "rPC": robust.rpc,
        "mCE": robust.mce,
        "ER": robust.er,
        "excluded": excluded,
        **{"missed": [], "results": None, "estimate": None, **more},
    }
