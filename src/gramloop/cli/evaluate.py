"""``gramloop evaluate`` and ``tune``: methods side by side under shift, and which mitigations help; both resume."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gramloop.cli import output
from gramloop.cli.options import CommandResult, command
from gramloop.errors import GramLoopError
from gramloop.evaluate.options import EvaluateOptions
from gramloop.tune.options import TuneOptions
from gramloop.util.device import numbered_device
from gramloop.util.options import all_settings, flat_values, option
from gramloop.util.progress import progress_bar

if TYPE_CHECKING:
    from gramloop.evaluate.results import Results
    from gramloop.tune.result import Tuning

# options that say how a stored plan is run; every other one describes a new evaluation
_RESUMED = (
    "out", "status", "dry_run", "device", "workers", "prepare", "engine", "address", "jobs", "slurm", "threads",
    "pictures",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class EvaluateCall(EvaluateOptions):
    """What is evaluated, or which folder is continued or shown."""

    status: bool = option("show how far DIR is, and run nothing", False)
    dry_run: bool = option("show what would be run and what it would cost", False)
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
        output.note_embedded(options.model, [options.data.data])
    if options.dry_run:
        return _dry_run(options)
    from gramloop.evaluate.evaluation import run_evaluation

    try:
        results = run_evaluation(options, output.listening(), command=options.typed)
    except KeyboardInterrupt as stop:
        return _stopped(options, stop)
    return _report(results, options), {"out": options.out, **results.as_json()}


def _check_resumed(options: EvaluateCall) -> None:
    """Refuse options of a new evaluation where a folder is resumed."""
    given = flat_values(options)
    for each in all_settings(EvaluateCall) if options.suite is None else ():
        if given[each.field] != each.default and each.field not in _RESUMED:
            raise GramLoopError(
                f"{each.label} belongs to a new evaluation; give --suite too, or leave it out"
            )


def _stopped(options: EvaluateCall, stop: KeyboardInterrupt) -> CommandResult:
    from gramloop.evaluate.store import PLAN, Store, plan_in

    if not (options.out / PLAN).is_file():
        raise stop
    plan = plan_in(options.out)
    store = Store(options.out, plan)
    stored = sum(store.path(unit).is_file() for unit in plan.units)
    print(
        f"gramloop evaluate: stopped with {stored} of {len(plan.units)} units stored; "
        f"gramloop evaluate --out {options.out} resumes",
        file=sys.stderr,
    )
    return output.stop_code(stop), {"out": options.out, "plan": plan.hash, "stored": stored}


def _report(results: Results, options: EvaluateCall) -> int:
    """Print the answer, the table and what is missing; the exit code that follows."""
    from gramloop.evaluate.results import results_table, unscored
    from gramloop.evaluate.store import RESULTS
    from gramloop.report.answers import read_answers

    out, work = options.out, options.work
    if len(results.plan.methods) > 1 and results.conditions and not output.is_quiet():
        for answer in read_answers([out], work.workers if work.engine == "local" else None):
            output.print_answer(answer)
    output.show(results_table(results))
    output.print_files(out / RESULTS, out)
    failures = [f"{key}, image {one.image_id}: {one.reason}" for key, one in results.failures]
    output.print_failures(f"{len(failures)} predictions were left out for all methods:", failures)
    for reason in list(dict.fromkeys(one.reason for one in results.missed))[: output.NAMED]:
        print(reason, file=sys.stderr)
    title = f"{len(results.missed)} parts are missing; gramloop evaluate --out {out} tries them again:"
    output.print_failures(title, [str(one.part) for one in results.missed])
    return 1 if failures or results.missed or unscored(results) else 0


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


@dataclass(frozen=True, kw_only=True)
class TuneCall(TuneOptions):
    """What is tuned on what, or only planned."""

    dry_run: bool = option("show how the budget would be spent", False)
    typed: str = ""  # the command as it was typed


@command(
    TuneCall,
    "DIR keeps the plan, every trial and, at the end, best.json: the choice with its evidence, which evaluate, "
    "predict, export and gramloop.mitigations.apply take, and attach where it is a replay alone. Stop it whenever you"
    " like: the same command resumes. A prediction is one image under one condition with one candidate; no more than "
    "the budget are made, the verdict's included.",
    [
        "gramloop tune --suite scenes-c --images 24 --budget 600 --out out/tune",
        "gramloop tune --suite mine-c --data photos --truth clean --model hf:FOLDER --keep-unseen weather --budget 600 --out out/tune-mine",
    ],
)
def tune_command(options: TuneCall) -> CommandResult:
    """Tune; 1 if images had to be left out."""
    from gramloop.tune.planning import describe_search, search_suite
    from gramloop.tune.tuning import run_tuning

    if options.data.data is not None:
        output.note_embedded(options.model, [options.data.data])
    if options.dry_run:
        with tempfile.TemporaryDirectory() as scratch:
            search = search_suite(options, scenes=Path(scratch) / "scenes")
            print(describe_search(search).text())
        return 0, {"out": options.out, "predictions": search.schedule.predictions}
    try:
        search = search_suite(options)
        output.note(describe_search(search).text())
        with progress_bar("predictions", search.schedule.predictions) as advance:
            tuning = run_tuning(
                search,
                options.out,
                workers=options.workers,
                device=numbered_device(options.model.device),
                advance=lambda many: advance(steps=many),
                command=options.typed,
            )
    except KeyboardInterrupt as stop:
        print(
            f"gramloop tune: stopped; what was measured is in {options.out}, and the same command resumes",
            file=sys.stderr,
        )
        return output.stop_code(stop), {"out": options.out}
    return _report_tuning(tuning, options.out)


def _report_tuning(tuning: Tuning, folder: Path) -> CommandResult:
    from rich.console import Console

    from gramloop.tune.result import RESULT, evidence_tables, stored_answer

    console, answer, about = Console(), stored_answer(folder), tuning.about()
    output.print_answer(answer)
    for table in evidence_tables(about):
        console.print(table)
    for text, reason in tuning.outcome.refused:
        console.print(f"left out: {text}: {reason}", highlight=False, markup=False)
    output.print_files(folder / RESULT, folder)
    failures = tuning.outcome.failures
    output.print_failures(f"{len(failures)} images under a condition were left out:", failures)
    found = {"mitigations": tuning.mitigations, "verdict": answer.sentence, "evidence": about}
    return 1 if failures else 0, {"out": folder, **found, "failures": list(failures)}
