"""``gramloop evaluate``: methods side by side over the conditions of a suite, resumable at any moment."""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gramloop.cli.ending import stop_code
from gramloop.cli.model_options import NAMED, TASKS, add_data_options, add_model_options, request_of
from gramloop.errors import GramLoopError

if TYPE_CHECKING:
    from gramloop.evaluate.evaluation import Engine, EvaluationOutcome
    from gramloop.evaluate.plan import Plan
    from gramloop.evaluate.planning import Request


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.epilog = (
        "DIR keeps the plan, one file per finished unit and results.csv. Stop it whenever you like: the same "
        "command, or just --out DIR, goes on. An image that cannot be used counts for no method, is named at "
        "the end and makes the exit code 1."
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder for plan and results")
    parser.add_argument(
        "--suite", metavar="NAME", help="scenes-c, coco-c, ade20k-p, coco-o, nyu-c, my-set-c, …"
    )
    parser.add_argument("--task", choices=tuple(TASKS), help="segment, unless the model says otherwise")
    parser.add_argument(
        "--method",
        action="append",
        metavar="NAME",
        help="baseline, gramloop (both by default), ungated, uniform, matched, loop-loop, final-final, "
        "NAME:window=5-7,replays=3,… or NAME:FILE.json; any mitigations, as recentre:0.3 or "
        "NAME=recentre:0.3+gramloop (docs/mitigations.md); can be repeated",
    )
    parser.add_argument(
        "--source",
        type=Path,
        metavar="FILE",
        help="what ordinary images look like to the model, for mitigations that need it",
    )
    parser.add_argument(
        "--replay", metavar="FILE", help="settings of the method gramloop, as gramloop tune writes them"
    )
    parser.add_argument(
        "--align",
        choices=("none", "median", "scale-shift"),
        help="how predicted depth is aligned with the true one, image by image (none; scale-shift for models of disparity)",
    )
    parser.add_argument("--status", action="store_true", help="tell how far DIR is, and run nothing")
    parser.add_argument(
        "--dry-run", action="store_true", help="tell what would be run and what it would cost"
    )
    parser.add_argument(
        "--allow-failures", action="store_true", help="exit with 0 even if images are excluded"
    )
    parser.add_argument(
        "--diagnostics",
        action="store_true",
        help="store mean drift, gate and drift after gating of every image, and run the first Gram-gated "
        "method also ungated and with its mean strength for every patch",
    )
    parser.add_argument(
        "--pictures",
        type=int,
        default=4,
        metavar="N",
        help="keep label maps and the replay's maps of the first N images of every condition (4)",
    )
    parser.add_argument(
        "--coco-results",
        type=Path,
        metavar="DIR",
        help="a finished evaluation of the suite coco, for the effective robustness on coco-o",
    )
    add_data_options(parser.add_argument_group("images"))
    add_model_options(parser.add_argument_group("model"))
    work = parser.add_argument_group("work")
    work.add_argument("--shards", type=int, metavar="N", help="parts of each condition (of 50 images)")
    work.add_argument("--workers", type=int, metavar="N", help="processes; all cores or GPUs by default")
    work.add_argument(
        "--engine", choices=("local", "ray", "slurm"), default="local", help="where units run (local)"
    )
    work.add_argument(
        "--address", default="auto", metavar="A", help="of the Ray cluster (auto: this machine's)"
    )
    work.add_argument("--jobs", type=int, default=8, metavar="N", help="jobs in the Slurm array (8)")
    work.add_argument(
        "--slurm",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="for submitit: slurm_partition=gpu, …",
    )
    work.add_argument(
        "--threads", type=int, default=1, metavar="N", help="threads per process (1); numbers depend on it"
    )


def run(args: argparse.Namespace) -> int:
    """Evaluate; 1 if images had to be excluded."""
    if args.status:
        return _status(args.out, args.coco_results)
    if args.slurm and args.engine != "slurm":
        raise GramLoopError(
            f"--slurm {args.slurm[0]} belongs to --engine slurm, not to --engine {args.engine}"
        )
    if args.dry_run:
        with tempfile.TemporaryDirectory() as scratch:
            return _dry_run(_plan(args, Path(scratch) / "scenes"), args.workers)
    engine = _engine(args)
    return _evaluate(_plan(args, args.out / "scenes"), args, engine)


def _plan(args: argparse.Namespace, scenes: Path) -> Plan:
    """The plan that the arguments describe, or the one in the folder where they describe none."""
    from gramloop.evaluate.beginning import check_before_drawing, plan_in, unit_owners
    from gramloop.evaluate.planning import make_plan
    from gramloop.evaluate.store import PLAN
    from gramloop.io.fingerprints import recall

    if args.suite is not None:
        if args.data is None:
            check_before_drawing(args.out, scenes)
        recall(args.out)
        return make_plan(_request(args, scenes))
    if not (args.out / PLAN).is_file() and not unit_owners(args.out):
        raise GramLoopError(f"{args.out} holds no evaluation to go on with; begin one with --suite NAME")
    if ignored := _given(args):
        raise GramLoopError(f"{ignored} belongs to a new evaluation; give --suite too, or leave it out")
    return plan_in(args.out)


def _given(args: argparse.Namespace) -> str:
    """The first option that describes an evaluation, although no suite is named."""
    options = [
        "data",
        "condition",
        "severity",
        "images",
        "method",
        "replay",
        "diagnostics",
        "head",
        "backbone",
        "shards",
        "short_side",
        "source",
        "truth",
        "truth_score",
        "align",
        "dtype",
    ]
    return next((f"--{name.replace('_', '-')}" for name in options if getattr(args, name)), "")


def _request(args: argparse.Namespace, scenes: Path) -> Request:
    from gramloop.evaluate.methods import BASELINE, read_methods

    methods = args.method or ()
    read_methods(methods or (BASELINE,), args.replay)  # a slip is told before scenes are drawn
    request = request_of(args, scenes)
    source = {} if args.source is None else {"source": str(args.source.resolve())}
    return replace(
        request,
        files={**request.files, **source},
        methods=methods,
        shards=args.shards,
        diagnostics=args.diagnostics,
        pictures=args.pictures,
        replay=args.replay,
    )


def _engine(args: argparse.Namespace) -> Engine | None:
    """Where the units run; None is this machine."""
    if args.engine == "ray":
        from gramloop.evaluate.engines.ray import check_address, run_ray

        check_address(args.address)
        return partial(run_ray, address=args.address)
    if args.engine == "slurm":
        from gramloop.evaluate.engines.slurm import run_slurm

        return partial(run_slurm, jobs=args.jobs, settings=dict(_setting(text) for text in args.slurm))
    return None


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise GramLoopError(f"--slurm takes NAME=VALUE, such as slurm_partition=gpu, not {text!r}")
    return name, int(value) if value.isdecimal() else value


def _evaluate(plan: Plan, args: argparse.Namespace, engine: Engine | None) -> int:
    from gramloop.evaluate.display import Display, print_effective, print_results
    from gramloop.evaluate.effective import check_use
    from gramloop.evaluate.evaluation import evaluate
    from gramloop.evaluate.store import RESULTS, Store

    check_use(plan, args.coco_results)
    store = Store(args.out, plan)
    print(f"{len(plan.units)} units, {plan.images} images, plan {plan.hash}", file=sys.stderr)
    try:
        with Display(store) as display:
            outcome = evaluate(
                plan,
                args.out,
                workers=args.workers,
                verify=args.verify,
                engine=engine,
                engine_name=args.engine,
                watcher=display,
            )
    except KeyboardInterrupt as stop:
        done = sum(store.path(unit).is_file() for unit in plan.units)
        print(
            f"gramloop evaluate: stopped with {done} of {len(plan.units)} units stored; "
            f"gramloop evaluate --out {args.out} goes on",
            file=sys.stderr,
        )
        return stop_code(stop)
    print_results(outcome.results)
    print_effective(outcome.results, args.coco_results)
    print(f"full precision in {args.out / RESULTS}")
    return _tell_failures(outcome, args.allow_failures)


def _tell_failures(outcome: EvaluationOutcome, allowed: bool) -> int:
    if not outcome.failures:
        return 0
    many = len(outcome.failures)
    print(f"{many} predictions were left out for all methods:", file=sys.stderr)
    for condition, failure in outcome.failures[:NAMED]:
        print(f"  {condition}, image {failure.image_id}: {failure.reason}", file=sys.stderr)
    if many > NAMED:
        print(f"  … and {many - NAMED} more", file=sys.stderr)
    return 0 if allowed else 1


def _status(folder: Path, coco_results: Path | None) -> int:
    from gramloop.evaluate.beginning import plan_in
    from gramloop.evaluate.display import print_effective, print_status
    from gramloop.evaluate.effective import check_use
    from gramloop.evaluate.evaluation import look
    from gramloop.evaluate.results import collect
    from gramloop.evaluate.store import Store

    store = Store(folder, plan_in(folder))
    check_use(store.plan, coco_results)
    progress = look(store)
    unfinished = {unit.condition for unit in progress.missing}
    results = collect(store, [key for key in store.plan.conditions if key not in unfinished])
    print_status(store, progress, results)
    print_effective(results, coco_results)
    return 0


def _dry_run(plan: Plan, workers: int | None) -> int:
    from gramloop.evaluate.engines.local import default_workers
    from gramloop.evaluate.estimate import describe

    print(describe(plan, default_workers(plan) if workers is None else workers))
    return 0
