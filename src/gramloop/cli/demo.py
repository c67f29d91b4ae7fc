"""gramloop demo: see the method at work, with nothing to download."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gramloop.errors import GramLoopError

if TYPE_CHECKING:
    from rich.console import Console

    from gramloop.config import ReplayConfig
    from gramloop.demo.experiment import Condition, Outcome

_SHIFTS = ("gaussian_noise", "impulse_noise", "defocus_blur", "fog", "jpeg_compression", "contrast")
_SEVERITY = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the demonstration."""
    parser.add_argument(
        "--out", type=Path, default=Path("out/demo"), help="folder for the picture and the table"
    )
    parser.add_argument("--quick", action="store_true", help="fewer scenes and shifts: about 20 seconds")
    parser.add_argument("--scenes", type=int, help="how many unseen scenes (default 40, quick 10)")
    parser.add_argument("--workers", type=int, help="processes (default: one per core)")


def run(args: argparse.Namespace) -> int:
    """Run the paired experiment, print the table, write the picture."""
    from rich.console import Console

    from gramloop.demo import experiment, pictures
    from gramloop.demo.table import summary
    from gramloop.tasks.outputs import make_folder, write_whole

    count = args.scenes if args.scenes is not None else (10 if args.quick else 40)
    if count < 2:
        raise GramLoopError(f"--scenes is {count}; an interval needs at least 2")
    if args.workers is not None and args.workers < 1:
        raise GramLoopError(f"--workers is {args.workers}; it is 1 or more")
    make_folder(args.out)
    names = _SHIFTS[:2] if args.quick else _SHIFTS
    conditions = [experiment.CLEAN, *(experiment.Condition(name, _SEVERITY) for name in names)]
    replay = experiment.default_replay()
    console = Console()
    begin = time.perf_counter()
    outcome = _with_progress(console, conditions, count, replay, args.workers)
    table = summary(outcome)
    console.print(table.rich())
    write_whole(args.out / "demo.png", pictures.draw(outcome))
    write_whole(args.out / "demo.md", table.markdown().encode())
    console.print(
        f"\nLook at [bold]{args.out / 'demo.png'}[/bold]: input, annotation, both predictions, drift and gate. "
        f"({time.perf_counter() - begin:.0f} s)\n\nOn your own model it is two lines:\n"
    )
    console.print(
        "    [cyan]import gramloop[/cyan]\n    [cyan]loop = gramloop.attach(model)[/cyan]   # loop.detach() undoes it\n"
    )
    return 0


def _with_progress(
    console: Console, conditions: Sequence[Condition], count: int, replay: ReplayConfig, workers: int | None
) -> Outcome:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from gramloop.demo import experiment

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("Unseen scenes, ordinary and replayed", total=len(conditions) * count)
        return experiment.run(conditions, range(count), replay, lambda: progress.advance(task), workers)
