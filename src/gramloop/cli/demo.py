"""``gramloop demo``: see replay and its rivals at work, with nothing to download."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from gramloop.cli.options import MANY, option
from gramloop.cli.output import Ended, print_answer
from gramloop.cli.shared import EXAMPLES
from gramloop.errors import GramLoopError

KEYS = {"page": "the report", "seconds": "of everything"}
EPILOG = (
    "DIR gets report/index.html, the page that gramloop report makes of any evaluation, and the stored results, from which "
    "the same command resumes."
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
    """Run the evaluations, print the answers and write the page."""
    from gramloop.demo import SHIFTS, plan_demo, report_demo
    from gramloop.evaluate.cost import time_methods
    from gramloop.evaluate.evaluation import Listener, evaluate
    from gramloop.evaluate.plan import Part
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
    with progress_bar("report", None) as advance:
        page, answers = report_demo(list(plans), options.out / "report", advance)
    for answer in answers:
        print_answer(answer)
    print("The embedded model knows drawn scenes only. Find the method for your model with gramloop tune.")
    print(f"Report: {page}")
    seconds = time.perf_counter() - begin
    return Ended(0, lambda: {"page": page, "seconds": seconds})
