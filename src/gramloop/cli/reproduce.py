"""``gramloop reproduce``: every table and figure of the paper, or of any recipe, from one command."""

from __future__ import annotations

import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gramloop.cli.options import CommandResult, command, group, option
from gramloop.cli.output import note, print_failures, stop_code
from gramloop.cli.shared import DEVICE_HELP, WorkOptions, check_engine, device_kind, engine_of

if TYPE_CHECKING:
    from gramloop.evaluate.evaluation import EvaluationOutcome
    from gramloop.reproduce.files import Missing
    from gramloop.reproduce.running import Reproduction


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions:
    """What is reproduced from which files."""

    recipe: str = option("paper, mini, or a YAML file (paper)", "paper", metavar="RECIPE", positional=True)
    out: Path = option("folder for evaluations and the page", metavar="DIR")
    weights: Path | None = option("folder with the released weights, at any depth", None, metavar="DIR")
    data: Path | None = option("folder with the data sets", None, metavar="DIR")
    only: str = option("some outputs, such as main,placement (all); nothing else is run", "", metavar="NAMES")
    dry_run: bool = option("list what is missing and what it would cost, and run nothing", False)
    status: bool = option("show how far DIR is, and run nothing", False)
    device: str | None = option(DEVICE_HELP, None, metavar="NAME")
    dtype: Literal["float32", "bfloat16"] = option("of the backbone's weights (float32)", "float32")
    work: WorkOptions = group(WorkOptions, "work")


@command(
    ReproduceOptions,
    "RECIPE is paper (every table and figure of the paper, on the released 7B model), mini (the same on the embedded "
    "model and drawn scenes, in minutes), or a YAML file of your own. DIR gets a folder for every evaluation and "
    "report/index.html. Stop it whenever you like: the same command resumes.",
    [
        "gramloop reproduce mini --out out/mini",
        "gramloop reproduce --dry-run --out out/paper",
        "gramloop reproduce --weights weights --data data --only main,placement --out out/paper",
        "gramloop reproduce --weights weights --data data --engine slurm --jobs 64 --slurm partition=gpu --out out/paper",
        "gramloop reproduce --out out/paper --status",
    ],
    {
        "recipe": "its title",
        "outputs": "the tables and figures that were asked for",
        "evaluations": "name: images, blocks, hours, bytes: what it costs by the recipe's own numbers; hours may be null",
        "missing": "files and folders that are not there: name, source",
        "excluded": "how many predictions count for no method",
        "page": "the paper's numbers next to yours; null where none is written",
    },
)
def reproduce_command(options: ReproduceOptions) -> CommandResult:
    """Run what is missing and write the page; 1 if images had to be excluded."""
    from rich.console import Console

    from gramloop.reproduce.files import refuse_missing
    from gramloop.reproduce.page import make_page
    from gramloop.reproduce.running import RunDisplay, status_table

    work = _reproduction(options)
    missing = work.files.missing(work.evaluations)
    if options.status:
        Console().print(status_table(work))
        return 0, _document(work, missing)
    if options.dry_run:
        _print_price(work, missing)
        return 0, _document(work, missing)
    refuse_missing(missing)
    excluded = 0
    try:
        with RunDisplay(note) as listener:
            for name, outcome in work.run(listener):
                excluded += _report(name, outcome)
    except KeyboardInterrupt as stop:
        print("gramloop reproduce: stopped; the same command resumes", file=sys.stderr)
        return stop_code(stop), _document(work, missing)
    page = make_page(work)
    print(page)
    return 1 if excluded else 0, _document(work, missing, excluded, page)


def _reproduction(options: ReproduceOptions) -> Reproduction:
    from gramloop.reproduce.files import FoundFiles
    from gramloop.reproduce.recipe import read_recipe
    from gramloop.reproduce.running import Reproduction, WorkSettings
    from gramloop.util.device import numbered_device

    recipe, idle = read_recipe(options.recipe), options.dry_run or options.status
    outputs = recipe.select([name.strip() for name in options.only.split(",") if name.strip()])
    check_engine(options.work, options.device)
    engine = None if idle else engine_of(options.work)
    settings = WorkSettings(
        device=device_kind(options.device, idle or options.work.engine != "local"),
        dtype=options.dtype,
        threads=options.work.threads,
        batch=options.work.batch,
        shards=options.work.shards,
        workers=options.work.workers,
        prepare=options.work.prepare,
        engine=engine,
        engine_name=options.work.engine,
        numbered_device=numbered_device(options.device) if engine is None and not idle else None,
    )
    files = FoundFiles(recipe, options.weights, options.data, options.out)
    return Reproduction(recipe, outputs, files, options.out, settings)


def _report(name: str, outcome: EvaluationOutcome) -> int:
    """Print what could not be used; how much that was."""
    lines = [f"{condition}, image {one.image_id}: {one.reason}" for condition, one in outcome.failures]
    lines += [f"{one.part}: {one.reason}; the same command tries it again" for one in outcome.missed]
    print_failures(f"{name}: {len(lines)} could not be used", lines)
    return len(lines)


def _print_price(work: Reproduction, missing: list[Missing]) -> None:
    from rich.console import Console

    from gramloop.reproduce.price import price_table

    print(textwrap.fill(f"{work.recipe.title}: {', '.join(work.outputs)}", 80), end="\n\n")
    Console().print(price_table(work.recipe, work.evaluations))
    print("\nEvery file is there." if not missing else f"\nMissing ({len(missing)}):")
    for each in missing:
        users = textwrap.fill(f"for {', '.join(each.users)}", 76).replace("\n", "\n    ")
        print(f"  {each.name}\n    {users}\n    from {each.source}")


def _document(
    work: Reproduction, missing: list[Missing], excluded: int = 0, page: Path | None = None
) -> dict[str, Any]:
    from dataclasses import asdict

    from gramloop.reproduce.price import price_of

    return {
        "recipe": work.recipe.title,
        "outputs": list(work.outputs),
        "evaluations": {name: asdict(price_of(work.recipe, one)) for name, one in work.evaluations.items()},
        "missing": [{"name": each.name, "source": each.source} for each in missing],
        "excluded": excluded,
        "page": page,
    }
