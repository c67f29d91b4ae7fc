"""``gramloop demo``, ``gramloop app`` and ``gramloop check``: the first things to run on a machine."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from gramloop.cli.options import MANY, CommandResult, command, group, option
from gramloop.cli.output import print_answer
from gramloop.cli.shared import CALIBRATION_HELP, DEVICE_HELP, ModelOptions
from gramloop.errors import GramLoopError


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """How much is run, and where it goes."""

    out: Path = option("folder for everything (out/demo)", Path("out/demo"), metavar="DIR")
    quick: bool = option("fewer scenes and shifts: about 45 seconds", False)
    scenes: int | None = option("how many unseen scenes (14; quick 8)", None, metavar="N", limits=(1, MANY))
    workers: int | None = option("processes (one per core)", None, metavar="N", limits=(1, 4096))


@command(
    DemoOptions,
    "DIR gets report/index.html, the page that gramloop report makes of any evaluation, and the stored results, from "
    "which the same command resumes.",
    [
        "gramloop demo --quick",
        "gramloop demo --out out/demo",
    ],
    {"page": "the report", "seconds": "of everything"},
)
def demo_command(options: DemoOptions) -> CommandResult:
    """Run the evaluations, print the answers and write the page."""
    from gramloop.demo import SHIFTS, plan_demo
    from gramloop.evaluate.cost import time_methods
    from gramloop.evaluate.evaluation import Listener, evaluate
    from gramloop.evaluate.plan import Part
    from gramloop.report.write import read_document, write_report
    from gramloop.util.files import make_folder
    from gramloop.util.progress import progress_bar

    scenes = options.scenes or (8 if options.quick else 14)
    if scenes < 2:
        raise GramLoopError(f"--scenes is {scenes}; an interval needs at least 2")
    make_folder(options.out)
    begin = time.perf_counter()
    plans = plan_demo(options.out, scenes, SHIFTS[:2] if options.quick else SHIFTS)
    with progress_bar("unseen scenes", sum(plan.images for plan in plans.values())) as advance:

        class Bar(Listener):
            def stored(self, part: Part) -> None:
                advance(steps=len(part))

            def images(self, number: int) -> None:
                advance(steps=number)

        for folder, plan in plans.items():
            evaluate(plan, folder, workers=options.workers, listener=Bar())
    for folder, plan in plans.items():
        if plan.suite.endswith("-c"):
            time_methods(plan, folder)
    document = read_document(list(plans), options.out / "report", over=("images",), pdf=False)
    about = {**document.about, "Command": "gramloop demo"}
    titled = replace(document, title="Replay and its rivals on the embedded model", about=about)
    page = write_report(titled, options.out / "report")
    for answer in document.answers:
        print_answer(answer)
    print("The embedded model knows drawn scenes only. Find the method for your model with gramloop tune.")
    print(f"Report: {page}")
    return 0, {"page": page, "seconds": time.perf_counter() - begin}


@dataclass(frozen=True, kw_only=True)
class AppOptions:
    """Which model and results, and where the page is served."""

    calibration: Path | None = option(CALIBRATION_HELP, None, metavar="FILE")
    results: list[Path] = option(
        "results of evaluate and tune to open, or a folder of them; can be repeated", [], metavar="DIR"
    )
    host: str = option("address to serve on (127.0.0.1: this machine alone)", "127.0.0.1", metavar="NAME")
    port: int | None = option(
        "the first free one from 7860 on; 0 for any", None, metavar="N", limits=(0, 65535)
    )
    open: bool = option("open the page in a browser", False)
    model: ModelOptions = group(ModelOptions, "model to try, in addition to the embedded one")


@command(
    AppOptions,
    "The page is for this machine alone unless --host says otherwise; then everyone who reaches that address can upload "
    "images, and can open the folders below those of --results, and no others. Nothing is sent anywhere. Ctrl-C ends it.",
    ["gramloop app --open", "gramloop app --model hf:FOLDER", "gramloop app --results out/demo"],
    {},
)
def app_command(options: AppOptions) -> CommandResult:
    """Serve until Ctrl-C."""
    begin, given = time.perf_counter(), options.model
    files, embedded = given.files(), ModelOptions().files()
    if options.calibration is not None and not options.calibration.is_file():
        raise GramLoopError(f"--calibration {options.calibration} is no file")
    from gramloop.app.page import serving
    from gramloop.app.trial import AppSettings, OfferedModel
    from gramloop.util.progress import progress_bar

    name = given.model if given.head is None else Path(given.head).name
    task = None if given.task is None else given.chosen_task()
    models = [OfferedModel(name, files, task, given.sizes(), given.dtype, options.calibration)]
    models += [OfferedModel("tiny", embedded)] if files != embedded else []
    settings = AppSettings(tuple(models), tuple(options.results), options.host, given.device)
    with progress_bar("starting", None) as _:
        started = serving(settings, options.port, browser=options.open)
        running = started.__enter__()
    try:
        print(f"{running.url}  (ready in {time.perf_counter() - begin:.1f} s; Ctrl-C ends it)", flush=True)
        if not settings.local:
            print("gramloop: note: others who reach this address can use the page", flush=True)
        while True:
            time.sleep(1)
    finally:
        started.__exit__(None, None, None)


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """Where, and in which precision."""

    device: str | None = option(DEVICE_HELP, None, metavar="NAME")
    autocast: bool = option("blocks in bfloat16, as GPUs run the released models", False)
    dtype: Literal["float32", "bfloat16"] = option("of the backbone's weights (float32)", "float32")


@command(
    CheckOptions,
    "Drift, gate, placements and heads are compared with float64 on the CPU; a forward is repeated and captured as one "
    "graph. Nothing is downloaded. The exit code is 1 where something differs.",
    [
        "gramloop check",
        "gramloop check --device cuda:1 --autocast --json > check.json",
    ],
    {
        "machine": "versions of packages, devices and their memory",
        "precision": "float32, bfloat16 autocast or bfloat16 weights",
        "passed": "whether everything that was judged agrees",
        "verdict": "the same in one line",
        "cases": "what was compared: group, name, passed (null where it could not be tried), note, digits, needed",
    },
)
def check_command(options: CheckOptions) -> CommandResult:
    """Print a table and a verdict."""
    from rich.console import Console

    from gramloop.check import check_machine
    from gramloop.check.checking import EXACT
    from gramloop.util.device import choose_device
    from gramloop.util.table import Column, Table

    device, console = choose_device(options.device), Console()
    with console.status(f"checking {device}") as status:
        found = check_machine(
            device,
            options.autocast,
            options.dtype,
            lambda case: status.update(f"{case.group}: {case.name}"),
        )
    machine, rows = found.machine, []
    packages = ", ".join(f"{name} {number}" for name, number in machine["packages"].items())
    lines = [found.verdict, packages, f"Python {machine['python']}, {machine['system']}"]
    for line in (*lines, *(f"{name}: {words}" for name, words in machine["devices"].items())):
        console.print(line, highlight=False, markup=False)
    for case in found.cases:
        digits = "" if case.digits is None else "all" if case.digits >= EXACT else f"{case.digits:.1f}"
        needed = "" if case.needed is None else f"{case.needed:.1f}"
        judged = {True: "ok", False: "NO", None: "--"}[case.passed]
        rows.append((judged, f"{case.group}: {case.name}", digits, needed, case.note))
    columns = ("", "check", Column("digits", kind="number"), Column("needed", kind="number"), "compared with")
    console.print(Table("", columns, rows))
    return 1 if found.failed else 0, found.as_json()
