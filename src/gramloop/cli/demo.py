"""gramloop demo: see replay and its rivals at work, with nothing to download."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gramloop.cli.help import examples
from gramloop.cli.output import Ended
from gramloop.errors import GramLoopError

if TYPE_CHECKING:
    from gramloop.demo.experiment import Experiment

KEYS = {
    "page": "the report",
    "picture": "scenes, predicted in four ways",
    "table": "the summary, as Markdown",
    "seconds": "of everything",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the demonstration."""
    parser.epilog = (
        "DIR gets report/index.html, the same page that gramloop report makes of any evaluation, demo.png, demo.md, "
        "and the stored results, which the same command takes up again."
        + examples("gramloop demo --quick", "gramloop demo --out out/demo")
    )
    parser.add_argument(
        "--out", type=Path, default=Path("out/demo"), metavar="DIR", help="folder for everything (out/demo)"
    )
    parser.add_argument("--quick", action="store_true", help="fewer scenes and shifts: about 45 seconds")
    parser.add_argument("--scenes", type=int, metavar="N", help="how many unseen scenes (14; quick 8)")
    parser.add_argument("--workers", type=int, metavar="N", help="processes (one per core)")


def run(args: argparse.Namespace) -> Ended:
    """Run the evaluations, say what to take, print the tables, write the picture and the page."""
    from rich.console import Console

    from gramloop.demo.advice import advice
    from gramloop.demo.exemplars import exemplars
    from gramloop.demo.experiment import QUICK, Size, prepare
    from gramloop.demo.pictures import draw
    from gramloop.demo.reporting import make_report
    from gramloop.demo.table import conditions_table, summary_table
    from gramloop.util.files import atomic_write, make_folder
    from gramloop.util.progress import progress_bar

    size = QUICK if args.quick else Size()
    if args.scenes is not None:
        size = replace(size, scenes=args.scenes)
    if args.workers is not None and args.workers < 1:
        raise GramLoopError(f"--workers is {args.workers}; it is 1 or more")
    make_folder(args.out)
    console, begin = Console(), time.perf_counter()
    experiment = prepare(args.out, size)
    _evaluate(experiment, args.workers)
    with progress_bar("report", None) as advance:
        page, evidence = make_report(experiment, args.out / "report", advance)
    paragraph = advice([each for each in evidence if each.run.shifted])
    tables = summary_table(evidence, paragraph), conditions_table(evidence)
    atomic_write(args.out / "demo.png", draw(exemplars(experiment)).png())
    text = "\n".join(table.markdown(level) for level, table in enumerate(tables, start=1))
    atomic_write(args.out / "demo.md", text.encode())
    console.print(tables[0])
    console.print(
        f"\nThe whole report, tables and figures: [bold]{page}[/bold]\n"
        f"Three scenes, predicted in four ways, with drift and gate: [bold]{args.out / 'demo.png'}[/bold] "
        f"({time.perf_counter() - begin:.0f} s)\n\nOn your own model it is two lines:\n\n"
        "    [cyan]import gramloop[/cyan]\n"
        "    [cyan]loop = gramloop.attach(model)[/cyan]   # loop.detach() undoes it\n\n"
        "and which way to take on it, gramloop tune and gramloop evaluate tell: docs/mitigations.md.\n",
        soft_wrap=True,
    )
    files = {"page": page, "picture": args.out / "demo.png", "table": args.out / "demo.md"}
    seconds = time.perf_counter() - begin
    return Ended(0, lambda: {**files, "seconds": seconds})


def _evaluate(experiment: Experiment, workers: int | None) -> None:
    from gramloop.demo.experiment import run as run_all
    from gramloop.evaluate.evaluation import Listener
    from gramloop.evaluate.plan import Part
    from gramloop.util.progress import progress_bar

    total = sum(part.plan.images for part in experiment.parts)
    with progress_bar("unseen scenes, in four ways", total) as advance:

        class Bar(Listener):
            def stored(self, part: Part) -> None:
                advance(steps=len(part))

            def images(self, number: int) -> None:
                advance(steps=number)

        run_all(experiment, Bar(), workers)
