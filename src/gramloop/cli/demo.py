"""gramloop demo: see replay and its rivals at work, with nothing to download."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gramloop.cli.options import MANY, option
from gramloop.cli.output import Ended, print_answer
from gramloop.cli.shared import EXAMPLES

if TYPE_CHECKING:
    from gramloop.demo.experiment import Experiment

KEYS = {
    "page": "the report",
    "picture": "scenes, predicted in four ways",
    "table": "the answers, as Markdown",
    "seconds": "of everything",
}


EPILOG = (
    "DIR gets report/index.html, the same page that gramloop report makes of any evaluation, demo.png, demo.md, and the "
    "stored results, which the same command takes up again."
    f"{EXAMPLES}  gramloop demo --quick\n  gramloop demo --out out/demo"
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """How much is run, and where it goes."""

    out: Path = option("folder for everything (out/demo)", Path("out/demo"), metavar="DIR")
    quick: bool = option("fewer scenes and shifts: about 45 seconds", False)
    scenes: int | None = option("how many unseen scenes (14; quick 8)", None, metavar="N", limits=(1, MANY))
    workers: int | None = option("processes (one per core)", None, metavar="N", limits=(1, 4096))


def run(options: Options) -> Ended:
    """Run the evaluations, print the answers, write the picture and the page."""
    from gramloop.demo.exemplars import exemplars
    from gramloop.demo.experiment import QUICK, Size, prepare
    from gramloop.demo.pictures import draw
    from gramloop.demo.reporting import make_report
    from gramloop.util.files import atomic_write, make_folder
    from gramloop.util.progress import progress_bar

    size = QUICK if options.quick else Size()
    if options.scenes is not None:
        size = replace(size, scenes=options.scenes)
    make_folder(options.out)
    begin = time.perf_counter()
    experiment = prepare(options.out, size)
    _evaluate(experiment, options.workers)
    with progress_bar("report", None) as advance:
        page, answers = make_report(experiment, options.out / "report", advance)
    atomic_write(options.out / "demo.png", draw(exemplars(experiment)).png())
    text = "\n".join(answer.markdown() for answer in answers)
    atomic_write(options.out / "demo.md", text.encode())
    for answer in answers:
        print_answer(answer)
    print("The embedded model knows drawn scenes only. Find the method for your model with gramloop tune.")
    print(f"Report: {page}\nPictures of three scenes, with drift and gate: {options.out / 'demo.png'}")
    files = {"page": page, "picture": options.out / "demo.png", "table": options.out / "demo.md"}
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
