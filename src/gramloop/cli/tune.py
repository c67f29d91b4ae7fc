"""``gramloop tune``: which mitigations help a model on its data under shift, replay among them, if any."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gramloop.cli.options import MANY, CommandResult, command, group, option, save_settings
from gramloop.cli.output import note, print_answer, print_failures, print_files, stop_code
from gramloop.cli.shared import DataOptions, ModelOptions, request_of
from gramloop.errors import GramLoopError

if TYPE_CHECKING:
    from gramloop.evaluate.planning import Request
    from gramloop.tune.result import Tuning
    from gramloop.tune.search import Search


@dataclass(frozen=True)
class SpaceOptions:
    """What is tried."""

    mitigation: list[str] = option(
        "these instead of the default: recentre:c=1 recentre:0.3 denoise median flip resize:1.1 gramloop …, or several "
        "joined by a plus; with --try, in addition to its replays (recentre, norms, denoise, median, levels, sharpen, "
        "resize, flip and pair as far as the model can take them, and the replays of eight single blocks)",
        [],
        metavar="TEXT",
        several=True,
    )
    stacking: bool = option("try no combinations of winners of different stages", True)
    calibration: Path | None = option(
        "statistics of in-distribution images, as gramloop calibrate writes them (learnt from clean images of the search)",
        None,
        metavar="FILE",
    )
    values: list[str] = option(
        "replays, and no other mitigations that are not named: values of any setting, window=3-3,2-4 strength=0.2,1 "
        "replays=1,2 gate=gram,uniform gate_at=end,final; can be repeated (all windows of one or two blocks, one "
        "replay, strengths 0.15, 0.5 and 1)",
        [],
        metavar="SETTING=V,V,…",
        name="try",
    )
    max_cost: float | None = option(
        "at most the work of X baseline forwards, such as 1.5; the time of filters is not counted",
        None,
        metavar="X",
    )


@dataclass(frozen=True)
class ChoiceOptions:
    """How candidates are compared; the defaults are those of `gramloop.tune.SearchOptions`."""

    clean_tolerance: float | None = option(
        "points that clean images may lose (0.1); with --truth clean, points by which their predictions may change (any, "
        "since a change need not be a loss)",
        None,
        metavar="P",
    )
    confidence: float = option("that the choice beats nothing (0.95)", 0.95, metavar="P")
    finalists: int = option("in the decision (3)", 3, metavar="N")
    block: int = option("N consecutive images belong together, as video frames do (1)", 1, metavar="N")
    keep_unseen: list[str] = option(
        "a shift, or a group such as noise, that only the verdict sees; can be repeated (a third of them)",
        [],
        metavar="FAMILY",
    )
    judge_on: str | None = option(
        "images that only the verdict sees, by id, such as 'drive7_*': another place or camera says more than other frames "
        "of the same one (a part of all images)",
        None,
        metavar="PATTERN",
    )
    seed: int = option("another split of the same data (0)", 0, metavar="N")


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """What is tuned on what."""

    out: Path = option("folder for plan and results", metavar="DIR")
    suite: str = option("scenes-c, coco-c, ade20k-p, my-set-c, …", metavar="NAME")
    budget: int = option("predictions, everything included (2000)", 2000, metavar="N", limits=(1, MANY))
    dry_run: bool = option("show how the budget would be spent", False)
    workers: int | None = option("processes (all cores, one for a GPU)", None, metavar="N", limits=(1, 4096))
    threads: int = option("threads per process (1)", 1, metavar="N", limits=(1, 1024))
    space: SpaceOptions = group(SpaceOptions, "candidates")
    choice: ChoiceOptions = group(ChoiceOptions, "choice")
    data: DataOptions = group(DataOptions, "images")
    model: ModelOptions = group(ModelOptions, "model")


@command(
    TuneOptions,
    "DIR keeps the plan, every trial and, at the end, best.json: the choice with its evidence, which evaluate, "
    "predict, export and gramloop.mitigations.apply take, and attach where it is a replay alone. Stop it whenever you"
    " like: the same command resumes. A prediction is one image under one condition with one candidate; no more than "
    "the budget are made, the verdict's included.",
    [
        "gramloop tune --suite scenes-c --images 24 --budget 600 --out out/tune",
        "gramloop tune --suite mine-c --data photos --truth clean --model hf:FOLDER --keep-unseen weather --budget 600 --out out/tune-mine",
    ],
    {
        "out": "the folder",
        "mitigations": "the choice as text; empty where nothing was chosen",
        "chosen": "whether anything was",
        "verdict": "in words",
        "evidence": "as in best.json: gains with their intervals, effort, data and model; null with --dry-run",
        "predictions": "how many were made, or with --dry-run would be",
        "failures": "images under a condition that were left out, one message each",
        "file": "the choice with its evidence, for evaluate, predict, export and gramloop.mitigations.apply; null with --dry-run",
    },
)
def tune_command(options: TuneOptions) -> CommandResult:
    """Tune; 1 if images had to be left out."""
    if options.dry_run:
        from gramloop.tune.result import describe_search

        with tempfile.TemporaryDirectory() as scratch:
            search = _search(options, Path(scratch) / "scenes")
            print(describe_search(search))
        return 0, _unfinished(options, search.schedule.predictions)
    from gramloop.report.tuned import COMMAND_FILE

    search = _search(options, options.out / "scenes")
    try:
        tuning = _tune(search, options)
        save_settings(options.out / COMMAND_FILE, "tune", options)
    except KeyboardInterrupt as stop:
        print(
            f"gramloop tune: stopped; what was measured is in {options.out}, and the same command resumes",
            file=sys.stderr,
        )
        return stop_code(stop), _unfinished(options)
    return _report(tuning, options.out)


def _unfinished(options: TuneOptions, predictions: int | None = None) -> dict[str, Any]:
    """The document of a search that has chosen nothing yet."""
    unknown = dict.fromkeys(tune_command.keys)
    return {**unknown, "out": options.out, "predictions": predictions, "failures": []}


def _search(options: TuneOptions, scenes: Path) -> Search:
    from gramloop.replay.config import ReplayConfig
    from gramloop.tasks.predictor import check_replay
    from gramloop.tune import SearchOptions
    from gramloop.tune.space import Space, read_values, replay_values
    from gramloop.tune.tuning import plan_search, suite_target

    choice, wanted = options.choice, options.space
    settings = SearchOptions(
        clean_tolerance=choice.clean_tolerance,
        confidence=choice.confidence,
        finalists=choice.finalists,
        block=choice.block,
        judge_on=choice.judge_on,
        seed=choice.seed,
        max_cost=wanted.max_cost,
        stacking=wanted.stacking,
        unseen=_unseen(options) if choice.keep_unseen else None,
    )
    values = read_values(wanted.values)
    named = Space(mitigations=wanted.mitigation)  # a typo is reported before anything is opened
    target = suite_target(_request(options, scenes))
    space = named if wanted.mitigation else None
    if values:
        depth = len(target.predictor.blocks)
        if not depth:
            check_replay(target.predictor, ReplayConfig())
        space = replace(named, values=replay_values(depth, **values))
    return plan_search(target, space, options.budget, settings)


def _unseen(options: TuneOptions) -> tuple[str, ...]:
    """The families to keep from the search; a group stands for those of its conditions that are asked for."""
    from gramloop.data.suites import find_suite

    suite = find_suite(options.suite)
    families = {condition.name for condition in suite.select(options.data.condition)}
    kept: list[str] = []
    for name in options.choice.keep_unseen:
        members = (
            [each for each in suite.groups[name] if each in families] if name in suite.groups else [name]
        )
        if not members:
            raise GramLoopError(f"--keep-unseen {name}: none of that group is among the conditions")
        kept += members
    return tuple(dict.fromkeys(kept))


def _request(options: TuneOptions, scenes: Path) -> Request:
    from gramloop.data.suites import find_suite
    from gramloop.tune.tuning import DEFAULT_SEVERITY, SCENE_SPLIT, read_search_plan

    read_search_plan(options.out)  # another folder is refused before scenes are drawn into it
    request = request_of(
        options.suite, options.data, options.model, scenes, split=SCENE_SPLIT, threads=options.threads
    )
    if options.space.calibration is not None:
        request = replace(request, calibration=str(options.space.calibration.resolve()))
    if options.data.severity or not find_suite(options.suite).generated:
        return request
    return replace(request, severities=[DEFAULT_SEVERITY])


def _tune(search: Search, options: TuneOptions) -> Tuning:
    from gramloop.tune.result import describe_search
    from gramloop.tune.tuning import run_tuning
    from gramloop.util.device import choose_device, numbered_device
    from gramloop.util.progress import progress_bar

    note(describe_search(search))
    device = options.model.device
    workers = 1 if options.workers is None and choose_device(device).type != "cpu" else options.workers
    with progress_bar("predictions", search.schedule.predictions) as advance:
        return run_tuning(
            search,
            options.out,
            workers=workers,
            device=numbered_device(device),
            advance=lambda many: advance(steps=many),
        )


def _report(tuning: Tuning, folder: Path) -> CommandResult:
    from rich.console import Console

    from gramloop.report.tuned import tuning_answer, tuning_tables
    from gramloop.tune.tuning import RESULT

    console, answer = Console(), tuning_answer(folder)
    print_answer(answer)
    for table in tuning_tables(folder):
        console.print(table)
    for text, reason in tuning.outcome.refused:
        console.print(f"left out: {text}: {reason}", highlight=False, markup=False)
    print_files(folder / RESULT, folder)
    failures = tuning.outcome.failures
    print_failures(f"{len(failures)} images under a condition were left out:", failures)
    document = {
        "out": folder,
        "mitigations": tuning.mitigations,
        "chosen": tuning.outcome.chosen,
        "verdict": answer.sentence,
        "evidence": tuning.about(),
        "predictions": tuning.outcome.predictions,
        "failures": list(failures),
        "file": folder / RESULT,
    }
    return 1 if failures else 0, document
