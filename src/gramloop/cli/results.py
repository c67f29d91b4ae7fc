"""``gramloop report``, ``compare`` and ``reproduce``: what stored results say, of one model, of several, of the paper."""

from __future__ import annotations

import sys
import textwrap
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gramloop.cli.options import CommandResult, command
from gramloop.cli.output import listening, print_answer, print_failures, show, stop_code
from gramloop.evaluate.options import WORKERS_HELP, DataOptions, WorkOptions
from gramloop.tasks.options import DEVICE_HELP
from gramloop.util.options import MANY, flat_values, group, option

if TYPE_CHECKING:
    from gramloop.evaluate.results import Results
    from gramloop.reproduce.files import Missing
    from gramloop.reproduce.running import Reproduction


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Which results, and what is made of them."""

    results: list[Path] = option(
        "folders of gramloop evaluate, or of such folders; or one of gramloop tune",
        metavar="RESULTS",
        positional=True,
    )
    out: Path = option("folder for the report", metavar="DIR")
    bootstrap: Literal["families", "images", "both"] = option(
        "what intervals are drawn over (families of shifts); with both, claims have to hold over both",
        "families",
    )
    exemplar: list[str] = option(
        "an image to show, such as fog/3:17; best, worst and typical by default; can be repeated",
        [],
        metavar="CONDITION:IMAGE",
    )
    workers: int | None = option(
        "processes; all cores, up to 4, for large results by default", None, metavar="N", limits=(1, 4096)
    )
    pdf: bool = option("figures as PNG alone", True)


@command(
    ReportOptions,
    "Nothing is predicted again: all numbers and figures come from what gramloop evaluate stored. DIR gets "
    "index.html, which needs no other file and no network, report.md, tables/ (Markdown, CSV in full precision, "
    "LaTeX) and figures/ (PNG, PDF).",
    [
        "gramloop report out/first --out out/report",
        "gramloop report out/first out/second --bootstrap both --out out/both",
    ],
)
def report_command(options: ReportOptions) -> CommandResult:
    """Write the report and print its answers."""
    from gramloop.report.write import check_folder, read_document, write_report

    check_folder(options.out)
    over: tuple[Any, ...] = (options.bootstrap,) if options.bootstrap != "both" else ("families", "images")
    drawn: Any = {"exemplars": options.exemplar, "pdf": options.pdf, "workers": options.workers}
    document = read_document(options.results, options.out, over=over, **drawn)
    page = write_report(document, options.out)
    for answer in document.answers:
        print_answer(answer)
    if document.warnings:
        many = len(document.warnings)
        first = f"{many} warning{'s' * (many > 1)}, in the report; the first: {document.warnings[0]}"
        show(first, markup=False, highlight=False)
    print(page)
    answers = [answer.as_json() for answer in document.answers]
    return 0, {"page": page, "answers": answers, "warnings": list(document.warnings)}


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Which models, on what, and what is accepted."""

    models: list[str] = option(
        "models, or finished folders of gramloop evaluate; two or more", metavar="MODEL", positional=True
    )
    out: Path = option("folder for evaluations and tables", metavar="DIR")
    suite: str | None = option("scenes-c, coco-c, my-set-c, …; needed to run a model", None, metavar="NAME")
    margin: float = option("points within which models are equivalent (0.5)", 0.5, metavar="P")
    gate: str | None = option(
        'points that may be lost, such as "clean -0.5, shift -1.0"; decides the exit code',
        None,
        metavar="RULES",
    )
    over: Literal["images", "families", "both"] = option(
        "what the intervals of the verdict under shift are drawn over (images)", "images"
    )
    task: str | None = option("where a model has several (semantic)", None, metavar="TASK")
    device: str | None = option(DEVICE_HELP, None, metavar="NAME")
    workers: int | None = option(WORKERS_HELP, None, metavar="N", limits=(1, 4096))
    batch: int = option("images given to a model at once (1)", 1, metavar="N", limits=(1, MANY))
    data: DataOptions = group(DataOptions, "images")


@command(
    CompareOptions,
    "Each MODEL is anything that --model takes elsewhere, or a finished folder of gramloop evaluate, which is only "
    "read. Differences are from the first MODEL. DIR gets index.html, compare.csv, compare.md and the evaluations of "
    "the models, which the same command resumes. With --gate the exit code is 1 where a model is worse than the "
    "margin beyond doubt, 3 where the images do not decide it, and 0 otherwise.",
    [
        "gramloop compare old.onnx new.onnx --suite scenes-c --condition noise --severity 3 --images 8 --out out/compare",
        'gramloop compare out/old out/new --gate "shift -1.0" --out out/gate',
    ],
)
def compare_command(options: CompareOptions) -> CommandResult:
    """Compare; the exit code is the gate's, or 1 if images had to be excluded."""
    from gramloop.compare.models import compare_models, suites_for, write_comparison
    from gramloop.compare.paired import CLEAN, SHIFT, check_gate, judge_gate, parse_gate
    from gramloop.data.suites import find_suite

    gate = {} if options.gate is None else parse_gate(options.gate)
    if options.suite is not None:  # before anything is run
        kinds = {find_suite(each).kind == "clean" for each in suites_for(options.suite, options.data.truth)}
        check_gate(gate, [CLEAN if clean else SHIFT for clean in kinds])
    given = flat_values(options)
    models = given.pop("models")
    given.pop("gate")
    found = compare_models(*models, **given, listener=listening)
    judged = judge_gate(gate, found)
    page = write_comparison(found, options.out)
    show(found)
    for row, word in judged:
        print(f"gate {row.scope} {gate[row.scope]:+g}, {row.model}: {word}")
    words = {word for _, word in judged}
    code = 1 if "failed" in words or (found.excluded and not gate) else 3 if "undecided" in words else 0
    print(f"Results: {page.with_name('compare.csv')}\nAs a page: {page}")
    said = [{"model": row.model, "scope": row.scope, "word": word} for row, word in judged]
    return code, {**found.as_json(), "gate": said, "page": page}


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
)
def reproduce_command(options: ReproduceOptions) -> CommandResult:
    """Run what is missing and write the page; 1 if images had to be excluded."""
    from gramloop.reproduce.files import refuse_missing
    from gramloop.reproduce.page import make_page
    from gramloop.reproduce.running import price_of, status_table

    work = _reproduction(options)
    missing = work.files.missing(work.evaluations)
    lacking = [f"{each.name}: {each.source}" for each in missing]
    if options.status:
        show(status_table(work))
        return 0, {"missing": lacking}
    if options.dry_run:
        _print_price(work, missing)
        prices = {name: asdict(price_of(work.recipe, one)) for name, one in work.evaluations.items()}
        return 0, {"missing": lacking, "evaluations": prices}
    refuse_missing(missing)
    excluded = 0
    try:
        for name, results in work.run(listening()):
            excluded += _print_failures(name, results)
    except KeyboardInterrupt as stop:
        print("gramloop reproduce: stopped; the same command resumes", file=sys.stderr)
        return stop_code(stop), {"excluded": excluded}
    page = make_page(work)
    print(page)
    return 1 if excluded else 0, {"excluded": excluded, "page": page}


def _reproduction(options: ReproduceOptions) -> Reproduction:
    from gramloop.reproduce.files import FoundFiles
    from gramloop.reproduce.recipe import read_recipe
    from gramloop.reproduce.running import Reproduction

    recipe = read_recipe(options.recipe)
    outputs = recipe.select([name.strip() for name in options.only.split(",") if name.strip()])
    options.work.check(options.device)
    files = FoundFiles(recipe, options.weights, options.data, options.out)
    idle, where = options.dry_run or options.status, (options.work, options.device, options.dtype)
    return Reproduction(recipe, outputs, files, options.out, *where, idle=idle)


def _print_failures(name: str, results: Results) -> int:
    """Print what could not be used; how much that was."""
    lines = [f"{condition}, image {one.image_id}: {one.reason}" for condition, one in results.failures]
    lines += [f"{one.part}: {one.reason}; the same command tries it again" for one in results.missed]
    print_failures(f"{name}: {len(lines)} could not be used", lines)
    return len(lines)


def _print_price(work: Reproduction, missing: list[Missing]) -> None:
    from gramloop.reproduce.running import price_table

    print(textwrap.fill(f"{work.recipe.title}: {', '.join(work.outputs)}", 80), end="\n\n")
    show(price_table(work.recipe, work.evaluations))
    print("\nEvery file is there." if not missing else f"\nMissing ({len(missing)}):")
    for each in missing:
        users = textwrap.fill(f"for {', '.join(each.users)}", 76).replace("\n", "\n    ")
        print(f"  {each.name}\n    {users}\n    from {each.source}")
