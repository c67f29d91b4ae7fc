"""``gramloop tune``: which mitigations help a model on its data under shift, replay among them, if any."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gramloop.cli import output
from gramloop.cli.options import CommandResult, command
from gramloop.tune.options import TuneOptions
from gramloop.util.options import option

if TYPE_CHECKING:
    from gramloop.tune.result import Tuning


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
    from gramloop.util.device import numbered_device
    from gramloop.util.progress import progress_bar

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
    return _report(tuning, options.out)


def _report(tuning: Tuning, folder: Path) -> CommandResult:
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
