"""``gramloop evaluate``: methods side by side over the conditions of a suite, resumable at any moment."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gramloop.cli.options import CommandResult, command
from gramloop.cli.output import (
    NAMED,
    is_quiet,
    listening,
    note_embedded,
    print_answer,
    print_failures,
    print_files,
    stop_code,
)
from gramloop.errors import GramLoopError
from gramloop.evaluate.options import EvaluateOptions
from gramloop.util.options import all_settings, flat_values, option

if TYPE_CHECKING:
    from gramloop.evaluate.plan import Plan
    from gramloop.evaluate.results import Results

# options that say how a stored plan is run; every other one describes a new evaluation
_RESUMED = (
    "out", "status", "dry_run", "device", "workers", "prepare", "engine", "address", "jobs", "slurm", "threads",
    "pictures", "allow_failures",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class EvaluateCall(EvaluateOptions):
    """What is evaluated, or which folder is continued or shown."""

    status: bool = option("show how far DIR is, and run nothing", False)
    dry_run: bool = option("show what would be run and what it would cost", False)
    allow_failures: bool = option("exit with 0 even if images are excluded", False)
    typed: str = ""  # the command as it was typed


@command(
    EvaluateCall,
    "DIR keeps the plan, one file per finished unit and results.csv. Stop it whenever you like: the same command, or just "
    "--out DIR, resumes. A method that is added later is the only thing that runs. An image that cannot be used counts for "
    "no method, is named at the end and makes the exit code 1; so does a unit that does not fit into memory.",
    [
        "gramloop evaluate --suite scenes-c --images 8 --condition noise --severity 3 --out out/first",
        "gramloop evaluate --suite my-photos-c --data photos --truth clean --model hf:FOLDER --severity 3 --out out/mine",
        "gramloop evaluate --suite scenes-c --images 8 --condition blur --severity 5 --out out/second",
        "gramloop evaluate --out out/second --status --json",
    ],
)
def evaluate_command(options: EvaluateCall) -> CommandResult:
    """Evaluate; 1 if images had to be excluded."""
    if options.status:
        return _status(options)
    _check_resumed(options)
    if options.data.data is not None:
        note_embedded(options.model, [options.data.data])
    if options.dry_run:
        return _dry_run(options)
    from gramloop.evaluate.evaluation import run_evaluation

    try:
        results = run_evaluation(options, listening(), command=options.typed)
    except KeyboardInterrupt as stop:
        return _stopped(options, stop)
    code = _report(results, options)
    return code, {"out": options.out, **results.as_json()}


def _check_resumed(options: EvaluateCall) -> None:
    """Refuse options of a new evaluation where a folder is resumed."""
    given = flat_values(options)
    for each in all_settings(EvaluateCall) if options.suite is None else ():
        if given[each.field] != each.default and each.field not in _RESUMED:
            raise GramLoopError(
                f"{each.label} belongs to a new evaluation; give --suite too, or leave it out"
            )


def _stopped(options: EvaluateCall, stop: KeyboardInterrupt) -> CommandResult:
    from gramloop.evaluate.store import PLAN, plan_in

    if not (options.out / PLAN).is_file():
        raise stop
    plan = plan_in(options.out)
    stored = _stored(options.out, plan)
    print(
        f"gramloop evaluate: stopped with {stored} of {len(plan.units)} units stored; "
        f"gramloop evaluate --out {options.out} resumes",
        file=sys.stderr,
    )
    return stop_code(stop), {"out": options.out, "plan": plan.hash, "stored": stored}


def _stored(folder: Path, plan: Plan) -> int:
    from gramloop.evaluate.store import Store

    return sum(Store(folder, plan).path(unit).is_file() for unit in plan.units)


def _report(results: Results, options: EvaluateCall) -> int:
    """Print the answer, the table and what is missing; the exit code that follows."""
    from rich.console import Console

    from gramloop.evaluate.results import results_table, unscored
    from gramloop.evaluate.store import RESULTS
    from gramloop.report.answers import read_answers

    out, work = options.out, options.work
    if len(results.plan.methods) > 1 and results.conditions and not is_quiet():
        for answer in read_answers([out], work.workers if work.engine == "local" else None):
            print_answer(answer)
    Console().print(results_table(results))
    print_files(out / RESULTS, out)
    failures = [f"{key}, image {one.image_id}: {one.reason}" for key, one in results.failures]
    print_failures(f"{len(failures)} predictions were left out for all methods:", failures)
    for reason in list(dict.fromkeys(one.reason for one in results.missed))[:NAMED]:
        print(reason, file=sys.stderr)
    title = f"{len(results.missed)} parts are missing; gramloop evaluate --out {out} tries them again:"
    print_failures(title, [str(one.part) for one in results.missed])
    excluded = bool(failures) and not options.allow_failures
    return 1 if excluded or results.missed or unscored(results) else 0


def _dry_run(options: EvaluateCall) -> CommandResult:
    from gramloop.evaluate.cost import describe_plan
    from gramloop.evaluate.engines import default_workers
    from gramloop.evaluate.evaluation import plan_evaluation

    device = options.model.device or ""
    options.work.check(device)
    with tempfile.TemporaryDirectory() as scratch:
        plan = plan_evaluation(options, scenes=Path(scratch) / "scenes", elsewhere=True)
        one = device if ":" in device else plan.model.device  # it need not be on this machine
        workers = default_workers(one, plan.model.threads, options.work.workers)
        text = describe_plan(plan, workers)
    print(text)
    return 0, {"out": options.out, "plan": plan.hash, "estimate": text.splitlines()}


def _status(options: EvaluateCall) -> CommandResult:
    """Show how far a folder is."""
    from gramloop.evaluate.results import collect, print_status
    from gramloop.evaluate.store import Store, plan_in

    store = Store(options.out, plan_in(options.out))
    missing, damaged = store.survey(store.plan.parts)
    unfinished = {part.condition for part in missing}
    results = collect(store, [key for key in store.plan.conditions if key not in unfinished])
    print_status(results, missing, damaged)
    return 0, {"out": options.out, **results.as_json(), "missing": [str(part) for part in missing]}
