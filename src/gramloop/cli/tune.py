"""``gramloop tune``: which mitigations help a model on its data under shift, replay among them, and whether any does."""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gramloop.cli.ending import stop_code
from gramloop.cli.help import add_option, examples
from gramloop.cli.model_options import NAMED, TASKS, add_data_options, add_model_options, request_of
from gramloop.cli.output import Ended, note
from gramloop.errors import GramLoopError
from gramloop.tune.search.options import Options
from gramloop.util.device import choose_device, numbered_device

if TYPE_CHECKING:
    from gramloop.evaluate.planning import Request
    from gramloop.tune.search.plan import Search
    from gramloop.tune.search.tuning import Tuning

KEYS = {
    "out": "the folder",
    "mitigations": "the choice as text; empty where nothing was chosen",
    "chosen": "whether anything was",
    "verdict": "in words",
    "evidence": "as in found.json: gains with their intervals, effort, data and model; null with --dry-run",
    "predictions": "how many were made, or with --dry-run would be",
    "failures": "images under a condition that were left out, a sentence each",
    "file": "the choice with its evidence, for evaluate, predict and gramloop.mitigations.apply; null with --dry-run",
}
SEVERITY = 3  # where nothing else is said


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.epilog = (
        "DIR keeps the plan, every trial and, at the end, found.json: the choice with its evidence, which evaluate, "
        "predict and gramloop.mitigations.apply take, and attach where it is a replay alone. Stop it whenever you like: "
        "the same command goes on. A prediction is one image under one condition with one candidate; no more than the "
        "budget are made, the verdict's included."
        + examples(
            "gramloop tune --suite scenes-c --model tiny --images 40 --budget 800 --out out/tune",
            "gramloop tune --suite mine-c --data photos --truth clean --model hf:FOLDER --keep-unseen weather --out out/tune",
        )
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder for plan and results")
    parser.add_argument(
        "--suite", required=True, metavar="NAME", help="scenes-c, coco-c, ade20k-p, my-set-c, …"
    )
    parser.add_argument("--task", choices=tuple(TASKS), help="segment, unless the model says otherwise")
    parser.add_argument(
        "--budget", type=int, default=2000, metavar="N", help="predictions, everything included (2000)"
    )
    parser.add_argument("--dry-run", action="store_true", help="tell how the budget would be spent")
    _add_space(parser.add_argument_group("candidates"))
    _add_choice(parser.add_argument_group("choice"))
    add_data_options(parser.add_argument_group("images"))
    add_model_options(parser.add_argument_group("model"))
    work = parser.add_argument_group("work")
    work.add_argument(
        "--workers", type=int, metavar="N", help="processes; all cores by default, one for a GPU"
    )
    work.add_argument("--threads", type=int, default=1, metavar="N", help="threads per process (1)")


def _add_space(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--mitigation",
        dest="mitigations",
        nargs="+",
        action="extend",
        default=[],
        metavar="TEXT",
        help="these instead of the usual: recentre:c=1 recentre:0.3 denoise median flip resize:1.1 gramloop …, or several "
        "joined by a plus; with --try, beside its replays (recentre, norms, denoise, median, levels, sharpen, resize, "
        "flip and pair as far as they make sense, and the replays of eight single blocks)",
    )
    group.add_argument(
        "--no-stacking", action="store_true", help="try no combinations of winners of different stages"
    )
    group.add_argument(
        "--source",
        type=Path,
        metavar="FILE",
        help="what ordinary images look like, as gramloop calibrate writes it (learnt from clean images of the search)",
    )
    group.add_argument(
        "--try",
        dest="values",
        action="append",
        default=[],
        metavar="SETTING=V,V,…",
        help="replays, and no other mitigations that are not named: values of any setting, window=3-3,2-4 strength=0.2,1 replays=1,2 gate=gram,uniform "
        "gate_at=end,final until=none,tap,8 adaptive=none,step:0.2:0.4; can be repeated (all windows up to "
        "--longest, one replay, strengths 0.15, 0.5 and 1; for a head on several blocks strengths 0.25 and 1, each "
        "shown to all of them or to the next one only: until=none,tap)",
    )
    group.add_argument(
        "--longest", type=int, metavar="N", help="replays of all windows up to N blocks (2 with --try)"
    )
    group.add_argument(
        "--scan", type=Path, metavar="FILE", help="windows from the ranking of a scan.json, in place of all"
    )
    group.add_argument("--top", type=int, default=10, metavar="N", help="how many of them (10)")
    group.add_argument(
        "--max-cost",
        type=float,
        metavar="X",
        help="at most the work of X ordinary forwards, such as 1.5; the time of filters is told, not counted",
    )


def _add_choice(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--no-adaptive", action="store_true", help="look for no rule that replays some images only"
    )
    group.add_argument(
        "--objective",
        choices=("gain", "gain-per-cost"),
        default=Options.objective,
        help=f"what the choice goes by ({Options.objective})",
    )
    group.add_argument(
        "--clean-tolerance",
        type=float,
        metavar="P",
        help="points that clean images may lose (0.1); with --truth clean, points by which their predictions may "
        "change (any, for a change need be no loss)",
    )
    add_option(group, Options, "confidence", "P", "that the choice beats nothing")
    add_option(group, Options, "finalists", "N", "in the decision")
    add_option(group, Options, "eta", "N", "a rung keeps one in N")
    add_option(group, Options, "block", "N", "N consecutive images belong together, as video frames do")
    group.add_argument(
        "--keep-unseen",
        action="append",
        metavar="FAMILY",
        help="a shift, or a group such as noise, that only the verdict sees; can be repeated (a third of them)",
    )
    group.add_argument(
        "--judge-on",
        metavar="PATTERN",
        help="images that only the verdict sees, by id, such as 'drive7_*': another place or camera tells more than "
        "other frames of the same one (a part of all images)",
    )
    add_option(group, Options, "seed", "N", "another split of the same data")


def run(args: argparse.Namespace) -> int | Ended:
    """Tune; 1 if images had to be left out."""
    if args.dry_run:
        from gramloop.tune.search.display import describe_plan

        with tempfile.TemporaryDirectory() as scratch:
            search = _search(args, Path(scratch) / "scenes")
            print(describe_plan(search))
        planned = {**dict.fromkeys(KEYS), "out": args.out, "predictions": search.schedule.predictions}
        return Ended(0, lambda: {**planned, "failures": []})
    tuning = _tune(_search(args, args.out / "scenes"), args)
    if isinstance(tuning, int):
        return tuning
    return _tell(tuning, args.out)


def _search(args: argparse.Namespace, scenes: Path) -> Search:
    from gramloop.replay.config import ReplayConfig
    from gramloop.tasks.predictor import check_replay
    from gramloop.tune.search.plan import plan_search
    from gramloop.tune.search.space import LONGEST, Space, read_values, scanned_windows
    from gramloop.tune.search.suites import suite_subject

    options = Options(
        clean_tolerance=args.clean_tolerance,
        confidence=args.confidence,
        objective=args.objective,
        max_cost=args.max_cost,
        adaptive=not args.no_adaptive,
        stacking=not args.no_stacking,
        eta=args.eta,
        finalists=args.finalists,
        block=args.block,
        unseen=None if args.keep_unseen is None else _unseen(args),
        judge_on=args.judge_on,
        seed=args.seed,
    )
    values = read_values(args.values)
    named = Space(mitigations=args.mitigations)  # a slip is told before anything is opened
    subject = suite_subject(_request(args, scenes), numbered_device(args.device))
    if args.scan is not None:
        if "window" in values:
            raise GramLoopError("--scan and --try window=… both name windows; give one of them")
        values["window"] = scanned_windows(args.scan, subject.depth, args.top)
    space = named if args.mitigations else None
    if values or args.longest is not None:
        if not subject.depth:
            check_replay(subject.look(), ReplayConfig())
        longest = min(LONGEST if args.longest is None else args.longest, subject.depth)
        replays = Space.default(subject.depth, longest, subject.taps, **values)
        space = replace(named, values=replays.values)
    return plan_search(subject, space, args.budget, options)


def _unseen(args: argparse.Namespace) -> tuple[str, ...]:
    """The families to keep from the search; a group stands for those of its conditions that are asked for."""
    from gramloop.data.suites import find_suite

    suite = find_suite(args.suite)
    families = {condition.name for condition in suite.select(args.condition)}
    kept = {
        name: [
            each for each in suite.groups.get(name, (name,)) if name not in suite.groups or each in families
        ]
        for name in args.keep_unseen
    }
    for name, members in kept.items():
        if not members:
            raise GramLoopError(f"--keep-unseen {name}: none of that group is among the conditions")
    return tuple(dict.fromkeys(each for members in kept.values() for each in members))


def _request(args: argparse.Namespace, scenes: Path) -> Request:
    from gramloop.data.suites import find_suite
    from gramloop.tune.search.journal import read_search_plan
    from gramloop.tune.search.suites import SCENE_SPLIT

    read_search_plan(args.out)  # a folder of something else is refused before scenes are drawn into it
    request = request_of(args, scenes, SCENE_SPLIT)
    if args.source is not None:
        request = replace(request, files={**request.files, "source": str(args.source.resolve())})
    if args.severity or not find_suite(args.suite).generated:
        return request
    return replace(request, severities=[SEVERITY])


def _tune(search: Search, args: argparse.Namespace) -> Tuning | int:
    from gramloop.tune.search.display import describe_plan
    from gramloop.tune.search.tuning import run as run_tuning
    from gramloop.util.progress import progress_bar

    note(describe_plan(search))
    workers = 1 if args.workers is None and choose_device(args.device).type != "cpu" else args.workers
    try:
        with progress_bar("predictions", search.schedule.predictions) as advance:
            return run_tuning(search, args.out, workers=workers, advance=lambda many: advance(steps=many))
    except KeyboardInterrupt as stop:
        print(
            f"gramloop tune: stopped; finished trials are in {args.out}, and the same command goes on",
            file=sys.stderr,
        )
        return stop_code(stop)


def _tell(tuning: Tuning, folder: Path) -> Ended:
    from gramloop.tune.search.display import print_tuning
    from gramloop.tune.search.tuning import RESULT

    print_tuning(tuning)
    print(f"{tuning.outcome.predictions} predictions; the choice is in {folder / RESULT}")
    failures = tuning.outcome.failures
    if failures:
        print(f"{len(failures)} images under a condition were left out:", file=sys.stderr)
        for line in failures[:NAMED]:
            print(f"  {line}", file=sys.stderr)
    document = {
        "out": folder,
        "mitigations": tuning.mitigations,
        "chosen": tuning.outcome.chosen,
        "verdict": tuning.sentence,
        "evidence": tuning.about(),
        "predictions": tuning.outcome.predictions,
        "failures": list(failures),
        "file": folder / RESULT,
    }
    return Ended(1 if failures else 0, lambda: document)
