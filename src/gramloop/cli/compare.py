"""``gramloop compare``: two or more models on the same images and shifts, with a verdict and a gate."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gramloop.cli.options import MANY, CommandResult, command, group, option
from gramloop.cli.output import is_quiet, note
from gramloop.cli.shared import DEVICE_HELP, DataOptions, ModelOptions, request_of
from gramloop.errors import GramLoopError

if TYPE_CHECKING:
    from gramloop.compare.gate import Gate
    from gramloop.compare.paired import ModelComparison


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
    workers: int | None = option("processes (all cores or GPUs)", None, metavar="N", limits=(1, 4096))
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
    {
        "models": "their names, the first being the one that others are compared with",
        "metric": "in points",
        "margin": "within which models are equivalent",
        "rows": "model, scope (clean, shift or a family), scores, difference, low, high, families (low and high), verdict, agreement",
        "seconds": "model: seconds per image; null where not measured alone",
        "gate": "model, scope, word (passed, failed or undecided); empty without --gate",
        "excluded": "images under a condition that count for no model",
        "table": "compare.csv, in full precision",
        "page": "index.html, which needs no other file",
    },
)
def compare_command(options: CompareOptions) -> CommandResult:
    """Compare; the exit code is the gate's, or 1 if images had to be excluded."""
    from rich.console import Console

    from gramloop.compare.gate import parse_gate
    from gramloop.compare.models import run_models, suites_for
    from gramloop.compare.page import write_comparison
    from gramloop.compare.paired import CLEAN, SHIFT, compare_folders
    from gramloop.data.suites import find_suite

    gate = None if options.gate is None else parse_gate(options.gate)
    if gate is not None and options.suite is not None:  # before anything is run
        kinds = {find_suite(each).kind == "clean" for each in suites_for(options.suite, options.data.truth)}
        gate.check(tuple(CLEAN if clean else SHIFT for clean in kinds))

    def evaluated(model: Any, suite: str, folder: Path) -> None:
        _evaluate(options, str(model), suite, folder)

    folders = run_models(options.models, options.suite, options.data.truth, options.out, evaluated)
    found = compare_folders(folders, margin=options.margin, over=options.over)
    if gate is not None:
        gate.check(found.scopes)
    page = write_comparison(found, options.out)
    Console().print(found)
    code = 1 if found.excluded else 0
    if gate is not None:
        code = gate.code(found)
        for row, word in gate.judged(found):
            print(f"gate {row.scope} {gate.least[row.scope]:+g}, {row.model}: {word}")
    print(f"Results: {page.with_name('compare.csv')}\nAs a page: {page}")
    return code, _document(found, gate, options.out)


def _evaluate(options: CompareOptions, spec: str, suite: str, folder: Path) -> None:
    """Run a model as an evaluation of the baseline."""
    from gramloop.data.suites import find_suite
    from gramloop.evaluate.display import Display
    from gramloop.evaluate.evaluation import Listener, evaluate, missed_message
    from gramloop.evaluate.methods import BASELINE
    from gramloop.evaluate.planning import make_plan
    from gramloop.evaluate.store import SCENES, Store, plan_with_stored
    from gramloop.util.device import numbered_device

    clean = find_suite(suite).kind == "clean"
    data = replace(options.data, condition=[], severity=[]) if clean else options.data
    model = ModelOptions(model=spec, task=options.task, device=options.device)
    request = request_of(suite, data, model, options.out / SCENES)
    plan = plan_with_stored(folder, make_plan(replace(request, methods=[BASELINE], batch=options.batch)))
    note(f"{spec} on {suite}: {plan.images} images, in {folder}")
    with nullcontext(Listener()) if is_quiet() else Display(Store(folder, plan)) as listener:
        device = numbered_device(options.device)
        outcome = evaluate(plan, folder, workers=options.workers, listener=listener, device=device)
    if outcome.missed:
        raise GramLoopError(missed_message(outcome.missed))


def _document(found: ModelComparison, gate: Gate | None, out: Path) -> dict[str, Any]:
    rows = [
        {
            "model": row.model,
            "scope": row.scope,
            "scores": row.scores,
            "difference": row.images.estimate,
            "low": row.images.low,
            "high": row.images.high,
            "families": None if row.families is None else (row.families.low, row.families.high),
            "verdict": row.verdict,
            "agreement": row.agreement,
        }
        for row in found.rows
    ]
    judged = [] if gate is None else gate.judged(found)
    return {
        "models": found.models,
        "metric": found.metric,
        "margin": found.margin,
        "rows": rows,
        "seconds": found.seconds,
        "gate": [{"model": row.model, "scope": row.scope, "word": word} for row, word in judged],
        "excluded": found.excluded,
        "table": out / "compare.csv",
        "page": out / "index.html",
    }
