"""``gramloop evaluate``: methods side by side over the conditions of a suite, resumable at any moment."""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gramloop.cli.ending import stop_code
from gramloop.cli.evaluate_outcome import KEYS, document_of, status, tell_failures, tell_missed
from gramloop.cli.help import examples
from gramloop.cli.model_options import TASKS, add_data_options, add_model_options, request_of
from gramloop.cli.output import Ended, is_quiet, note
from gramloop.errors import GramLoopError

__all__ = ["KEYS", "add_arguments", "run"]

if TYPE_CHECKING:
    from gramloop.evaluate.engines import Engine
    from gramloop.evaluate.plan import Plan
    from gramloop.evaluate.planning import Request


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.epilog = (
        "DIR keeps the plan, one file per finished unit and results.csv. Stop it whenever you like: the same "
        "command, or just --out DIR, goes on. An image that cannot be used counts for no method, is named at "
        "the end and makes the exit code 1; so does a unit that does not fit into memory."
        + examples(
            "gramloop evaluate --suite scenes-c --model tiny --images 8 --condition noise --severity 3 --out out/first",
            "gramloop evaluate --suite my-photos-c --data photos --truth clean --model hf:FOLDER --out out/mine",
            "gramloop evaluate --suite coco-c --data coco --head head.pth --dry-run --save-config run.yaml --out out/coco",
            "gramloop evaluate --config run.yaml",
            "gramloop evaluate --out out/coco --status --json",
        )
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder for plan and results")
    parser.add_argument(
        "--suite", metavar="NAME", help="scenes-c, coco-c, ade20k-p, coco-o, nyu-c, my-set-c, …"
    )
    parser.add_argument("--task", choices=tuple(TASKS), help="segment, unless the model says otherwise")
    parser.add_argument("--status", action="store_true", help="tell how far DIR is, and run nothing")
    parser.add_argument(
        "--dry-run", action="store_true", help="tell what would be run and what it would cost"
    )
    methods = parser.add_argument_group("methods")
    methods.add_argument(
        "--method",
        action="append",
        metavar="NAME",
        help="baseline, gramloop (both by default), ungated, uniform, matched, loop-loop, final-final, "
        "NAME:window=5-7,replays=3,… or NAME:FILE.json; any mitigations, as recentre:0.3 or "
        "NAME=recentre:0.3+gramloop (docs/mitigations.md); can be repeated",
    )
    methods.add_argument(
        "--source",
        type=Path,
        metavar="FILE",
        help="what ordinary images look like to the model, for mitigations that need it",
    )
    methods.add_argument(
        "--replay", metavar="FILE", help="settings of the method gramloop, as gramloop tune writes them"
    )
    add_data_options(parser.add_argument_group("images"))
    model = parser.add_argument_group("model")
    add_model_options(model)
    model.add_argument(
        "--align",
        choices=("none", "median", "scale-shift"),
        help="how predicted depth is aligned with the true one, image by image (none; scale-shift for models of disparity)",
    )
    work = parser.add_argument_group("work")
    work.add_argument("--shards", type=int, metavar="N", help="parts of each condition (of 50 images)")
    work.add_argument("--workers", type=int, metavar="N", help="processes; all cores or GPUs by default")
    work.add_argument(
        "--prepare",
        type=int,
        metavar="N",
        help="processes that prepare images for each of them, 0 for a thread (0 on the CPU, else the cores divided by the GPUs)",
    )
    work.add_argument(
        "--batch",
        type=int,
        metavar="N",
        help="images of one size shown to the model at once (1); the plan records it",
    )
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

    kept = parser.add_argument_group("results")
    kept.add_argument(
        "--clean-results",
        type=Path,
        metavar="DIR",
        help="a finished evaluation of the clean set, for what is left of its score under shift (rPC)",
    )
    kept.add_argument(
        "--coco-results",
        type=Path,
        metavar="DIR",
        help="a finished evaluation of the suite coco, for the effective robustness on coco-o",
    )
    kept.add_argument(
        "--diagnostics",
        action="store_true",
        help="store mean drift, gate and drift after gating of every image, and run the first Gram-gated "
        "method also ungated and with its mean strength for every patch",
    )
    kept.add_argument(
        "--pictures",
        type=int,
        default=4,
        metavar="N",
        help="keep label maps and the replay's maps of the first N images of every condition (4)",
    )
    kept.add_argument("--allow-failures", action="store_true", help="exit with 0 even if images are excluded")


def run(args: argparse.Namespace) -> int | Ended:
    """Evaluate; 1 if images had to be excluded."""
    if args.status:
        return status(args.out, args.clean_results, args.coco_results)
    if args.slurm and args.engine != "slurm":
        raise GramLoopError(
            f"--slurm {args.slurm[0]} belongs to --engine slurm, not to --engine {args.engine}"
        )
    if args.dry_run:
        with tempfile.TemporaryDirectory() as scratch:
            return _dry_run(_plan(args, Path(scratch) / "scenes"), args)
    engine = _engine(args)
    return _evaluate(_plan(args, args.out / "scenes"), args, engine)


def _plan(args: argparse.Namespace, scenes: Path) -> Plan:
    """The plan that the arguments describe, or the one in the folder where they describe none."""
    from gramloop.evaluate.planning import make_plan
    from gramloop.evaluate.store import PLAN, check_before_drawing, plan_in, unit_owners
    from gramloop.util.checksums import load_checksums
    from gramloop.util.device import choose_device

    if args.suite is not None:
        if args.data is None:
            check_before_drawing(args.out, scenes)
        load_checksums(args.out)
        return make_plan(_request(args, scenes))
    if not (args.out / PLAN).is_file() and not unit_owners(args.out):
        raise GramLoopError(f"{args.out} holds no evaluation to resume; begin one with --suite NAME")
    if ignored := _given(args):
        raise GramLoopError(f"{ignored} belongs to a new evaluation; give --suite too, or leave it out")
    plan = plan_in(args.out)
    if args.device is not None and (kind := choose_device(args.device).type) != plan.model.device:
        raise GramLoopError(
            f"{args.out} was begun on {plan.model.device}, whose numbers are not mixed with those of {kind}; "
            f"leave out --device {args.device}, or choose another folder"
        )
    return plan


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
        "batch",
    ]
    return next((f"--{name.replace('_', '-')}" for name in options if getattr(args, name)), "")


def _request(args: argparse.Namespace, scenes: Path) -> Request:
    from gramloop.evaluate.methods import BASELINE, read_methods

    methods = args.method or ()
    read_methods(methods or (BASELINE,), args.replay)  # a slip is told before scenes are drawn
    request = request_of(args, scenes)
    return replace(
        request,
        calibration=None if args.source is None else str(args.source.resolve()),
        methods=methods,
        shards=args.shards,
        diagnostics=args.diagnostics,
        pictures=args.pictures,
        replay=args.replay,
        batch=args.batch or 1,
    )


def _engine(args: argparse.Namespace) -> Engine | None:
    """Where the units run; None is this machine."""
    if args.engine != "local" and ":" in (args.device or ""):
        raise GramLoopError(
            f"--device {args.device} is one GPU of this machine; --engine {args.engine} shares out GPUs itself: "
            "--device cuda"
        )
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


def _evaluate(plan: Plan, args: argparse.Namespace, engine: Engine | None) -> int | Ended:
    from gramloop.evaluate.display import Display, print_effective, print_results
    from gramloop.evaluate.evaluation import Listener, evaluate
    from gramloop.evaluate.results import check_clean_results, check_coco_results
    from gramloop.evaluate.store import RESULTS, Store, check_folder
    from gramloop.util.device import numbered_device

    plan = check_folder(args.out, plan)
    check_coco_results(plan, args.coco_results)
    check_clean_results(plan, args.clean_results)
    store = Store(args.out, plan)
    note(f"{len(plan.units)} units, {plan.images} images, plan {plan.hash}")
    try:
        with nullcontext(Listener()) if is_quiet() else Display(store) as listener:
            outcome = evaluate(
                plan,
                args.out,
                workers=args.workers,
                verify=args.verify,
                engine=engine,
                engine_name=args.engine,
                listener=listener,
                device=numbered_device(args.device) if engine is None else None,
                prepare=args.prepare,
            )
    except KeyboardInterrupt as stop:
        done = sum(store.path(unit).is_file() for unit in plan.units)
        print(
            f"gramloop evaluate: stopped with {done} of {len(plan.units)} units stored; "
            f"gramloop evaluate --out {args.out} resumes",
            file=sys.stderr,
        )
        return stop_code(stop)
    print_results(outcome.results, clean=args.clean_results)
    print_effective(outcome.results, args.coco_results)
    print(f"full precision in {args.out / RESULTS}")
    code = max(tell_failures(outcome, args.allow_failures), tell_missed(outcome, args.out))
    document = partial(
        document_of,
        args.out,
        plan,
        outcome.results,
        stored=sum(store.path(unit).is_file() for unit in plan.units),
        clean=args.clean_results,
        coco=args.coco_results,
        missed=[{"unit": str(one.part), "reason": one.reason} for one in outcome.missed],
        table=args.out / RESULTS,
    )
    return Ended(code, document)


def _dry_run(plan: Plan, args: argparse.Namespace) -> Ended:
    from gramloop.evaluate.cost import describe
    from gramloop.evaluate.engines.local import default_workers

    one = args.device if ":" in (args.device or "") else None  # it need not be on this machine
    default = default_workers(one or plan.model.device, plan.model.threads)
    workers = default if args.workers is None else args.workers
    text = describe(plan, workers)
    print(text)
    return Ended(0, partial(document_of, args.out, plan, estimate=text.splitlines()))
