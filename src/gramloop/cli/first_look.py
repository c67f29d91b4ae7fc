"""``gramloop demo``, ``gramloop app`` and ``gramloop check``: the first things to run on a machine."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from gramloop.cli.options import CommandResult, command
from gramloop.cli.output import listening, print_answer, show
from gramloop.errors import GramLoopError
from gramloop.evaluate.options import CALIBRATION_HELP
from gramloop.tasks.options import DEVICE_HELP, ModelOptions
from gramloop.util.device import choose_device
from gramloop.util.files import make_folder
from gramloop.util.options import MANY, group, option
from gramloop.util.progress import progress_bar


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """How much is run, and where it goes."""

    out: Path = option("folder for everything (out/demo)", Path("out/demo"), metavar="DIR")
    quick: bool = option("fewer scenes and shifts: about 45 seconds", False)
    scenes: int | None = option("how many unseen scenes (14; quick 8)", None, metavar="N", limits=(1, MANY))
    workers: int | None = option("processes (one per core)", None, metavar="N", limits=(1, 4096))
    typed: str = ""  # the command as it was typed


@command(
    DemoOptions,
    "DIR gets report/index.html, the page that gramloop report makes of any evaluation, and the stored results, from "
    "which the same command resumes.",
    [
        "gramloop demo --quick",
        "gramloop demo --out out/demo",
    ],
)
def demo_command(options: DemoOptions) -> CommandResult:
    """Run the evaluations, print the answers and write the page."""
    from gramloop.demo import SHIFTS, run_demo
    from gramloop.report.write import read_document, write_report

    scenes = options.scenes or (8 if options.quick else 14)
    if scenes < 2:
        raise GramLoopError(f"--scenes is {scenes}; an interval needs at least 2")
    make_folder(options.out)
    shifts = SHIFTS[:2] if options.quick else SHIFTS
    places = run_demo(options.out, scenes, shifts, options.workers, listening, options.typed)
    document = read_document(places, options.out / "report", over=("images",), pdf=False)
    page = write_report(document, options.out / "report")
    for answer in document.answers:
        print_answer(answer)
    print("The embedded model knows drawn scenes only. Find the method for your model with gramloop tune.")
    print(f"Report: {page}")
    return 0, {"page": page}


@dataclass(frozen=True, kw_only=True)
class AppOptions:
    """Which model and results, and where the page is served."""

    calibration: Path | None = option(CALIBRATION_HELP, None, metavar="FILE")
    results: list[Path] = option(
        "results of evaluate and tune to open, or a folder of them; can be repeated", [], metavar="DIR"
    )
    port: int | None = option("the first free one from 7860 on", None, metavar="N", limits=(1, 65535))
    open: bool = option("open the page in a browser", False)
    model: ModelOptions = group(ModelOptions, "model to try")


@command(
    AppOptions,
    "The page is for this machine alone, and nothing is sent anywhere. Ctrl-C ends it.",
    ["gramloop app --open", "gramloop app --model hf:FOLDER", "gramloop app --results out/demo"],
)
def app_command(options: AppOptions) -> CommandResult:
    """Serve until Ctrl-C."""
    begin = time.perf_counter()
    if options.calibration is not None and not options.calibration.is_file():
        raise GramLoopError(f"--calibration {options.calibration} is no file")
    options.model.files()  # a wrong one is reported before packages are imported
    from gramloop.app import serving

    with serving(
        options.model, options.results, options.port, calibration=options.calibration, browser=options.open
    ) as url:
        print(f"{url}  (ready in {time.perf_counter() - begin:.1f} s; Ctrl-C ends it)", flush=True)
        while True:
            time.sleep(1)


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """Where, and in which precision."""

    device: str | None = option(DEVICE_HELP, None, metavar="NAME")
    autocast: bool = option("blocks in bfloat16, as GPUs run the released models", False)


@command(
    CheckOptions,
    "Drift, gate and placements are compared with float64 on the CPU, and a forward is repeated. Nothing is downloaded. "
    "The exit code is 1 where something differs.",
    [
        "gramloop check",
        "gramloop check --device cuda:1 --autocast --json > check.json",
    ],
)
def check_command(options: CheckOptions) -> CommandResult:
    """Print a table and a verdict."""
    from gramloop.check import EXACT, check_machine
    from gramloop.util.table import Column, Table

    device = choose_device(options.device)
    with progress_bar(f"checking {device}", None):
        found = check_machine(device, options.autocast)
    where = f"{device} in {'bfloat16 autocast' if options.autocast else 'float32'}"
    wrong = [each.name for each in found if not each.passed]
    verdict = f"GramLoop computes on {where} what it should: all {len(found)} comparisons agree."
    if wrong:
        verdict = (
            f"{len(wrong)} of {len(found)} comparisons on {where} do not agree ({', '.join(wrong[:3])}): do not trust "
            "numbers of this machine, and report what gramloop check --json prints."
        )
    show(verdict, highlight=False, markup=False)
    rows = []
    for each in found:
        digits = "all" if each.digits >= EXACT else f"{each.digits:.1f}"
        rows.append(("ok" if each.passed else "NO", each.name, digits, f"{each.needed:.1f}", each.note))
    columns = ("", "check", Column("digits", kind="number"), Column("needed", kind="number"), "")
    show(Table("", columns, rows))
    document = {"passed": not wrong, "verdict": verdict, "comparisons": [vars(each) for each in found]}
    return 1 if wrong else 0, document
