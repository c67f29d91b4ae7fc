"""What an evaluation came to, for people and for scripts."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gramloop.cli.model_options import NAMED
from gramloop.cli.output import Ended

if TYPE_CHECKING:
    from gramloop.evaluate.evaluation import EvaluationOutcome
    from gramloop.evaluate.plan import Plan
    from gramloop.evaluate.results import Results

KEYS = {
    "out": "the folder",
    "suite": "the suite",
    "task": "semantic, detection, depth, panoptic or instance",
    "plan": "the plan's hash",
    "methods": "their names, in the plan's order",
    "images": "over all conditions",
    "units": "stored and missing: how many",
    "metric": "the main one, in percent",
    "scores": "condition: method: metric: value, of every complete condition",
    "means": "method: mPC, the mean over shifted conditions; empty until all are complete",
    "gains": "method: its mean less the baseline's",
    "rPC": "method: mPC in percent of the clean score, where that is known",
    "mCE": "method: errors against the baseline's in percent, 100 is the baseline",
    "ER": "method: effective robustness on coco-o, where it is known",
    "excluded": "images that count for no method: condition, image, reason",
    "missed": "units that could not be run: unit, reason",
    "results": "the table in full precision; null where none is written",
    "estimate": "lines of --dry-run; null elsewhere",
}


def document_of(
    out: Path,
    plan: Plan,
    results: Results | None = None,
    *,
    stored: int = 0,
    clean: Path | None = None,
    coco: Path | None = None,
    missed: list[dict[str, str]] | None = None,
    table: Path | None = None,
    estimate: list[str] | None = None,
) -> dict[str, Any]:
    """The values of `KEYS`."""
    from gramloop.evaluate.methods import BASELINE
    from gramloop.evaluate.results import Results, effective, has_effective, metrics_of, relative_robustness

    results = results or Results(plan, ())
    names = [method.name for method in plan.methods]
    means = results.means()
    baseline = means.get(BASELINE)
    found = relative_robustness(results, clean)
    robust = effective(results, coco).er if has_effective(plan) else {}
    return {
        "out": out,
        "suite": plan.suite,
        "task": plan.task,
        "plan": plan.hash,
        "methods": names,
        "images": plan.images,
        "units": {"stored": stored, "missing": len(plan.units) - stored},
        "metric": metrics_of(plan)[0],
        "scores": {one.condition: one.scores for one in results.conditions},
        "means": means,
        "gains": {} if baseline is None else {name: mean - baseline for name, mean in means.items()},
        "rPC": found.rpc,
        "mCE": found.mce,
        "ER": robust,
        "excluded": [
            {"condition": one.condition, "image": str(failure.image_id), "reason": failure.reason}
            for one in results.conditions
            for failure in one.failures
        ],
        "missed": missed or [],
        "results": table,
        "estimate": estimate,
    }


def tell_missed(outcome: EvaluationOutcome, folder: Path) -> int:
    """Units that did not fit into memory: why, and which; the exit code that follows."""
    missed = outcome.missed
    if not missed:
        return 0
    for reason in list(dict.fromkeys(one.reason for one in missed))[:NAMED]:
        print(reason, file=sys.stderr)
    print(
        f"{len(missed)} parts are missing; gramloop evaluate --out {folder} tries them again:",
        file=sys.stderr,
    )
    for one in missed:
        print(f"  {one.part}", file=sys.stderr)
    return 1


def tell_failures(outcome: EvaluationOutcome, allowed: bool) -> int:
    """Images that count for no method; the exit code that follows."""
    if not outcome.failures:
        return 0
    many = len(outcome.failures)
    print(f"{many} predictions were left out for all methods:", file=sys.stderr)
    for condition, failure in outcome.failures[:NAMED]:
        print(f"  {condition}, image {failure.image_id}: {failure.reason}", file=sys.stderr)
    if many > NAMED:
        print(f"  … and {many - NAMED} more", file=sys.stderr)
    return 0 if allowed else 1


def status(folder: Path, clean: Path | None, coco: Path | None) -> Ended:
    """Tell how far a folder is."""
    from gramloop.evaluate.display import print_effective, print_relative, print_status
    from gramloop.evaluate.evaluation import inspect_store
    from gramloop.evaluate.results import check_clean_results, check_coco_results, collect
    from gramloop.evaluate.store import RESULTS, Store, plan_in

    store = Store(folder, plan_in(folder))
    check_coco_results(store.plan, coco)
    check_clean_results(store.plan, clean)
    state = inspect_store(store)
    unfinished = {part.condition for part in state.missing}
    results = collect(store, [key for key in store.plan.conditions if key not in unfinished])
    print_status(store, state, results)
    print_relative(results, clean)
    print_effective(results, coco)
    table = folder / RESULTS
    document = partial(
        document_of,
        folder,
        store.plan,
        results,
        stored=sum(len(part.methods) for part in state.stored),
        clean=clean,
        coco=coco,
        table=table if table.is_file() else None,
    )
    return Ended(0, document)
