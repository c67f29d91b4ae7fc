"""Opening stored evaluations: which suites there are, what is complete, and what may stand side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gramloop.errors import GramLoopError
from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.plan import AGREEMENT_NOTE, Plan
from gramloop.evaluate.store import PLAN, UNITS, Store, UnusableFile, plan_in, read_condition, unit_owners
from gramloop.report.measure import ConditionResults, measure_condition
from gramloop.report.run import TASK_WORDS, Run
from gramloop.util.processes import available_memory, in_order, worker_count


@dataclass(frozen=True)
class LoadedRuns:
    """All runs of a report; those of one group were made alike, so that their rows may be compared."""

    runs: tuple[Run, ...]
    groups: tuple[tuple[Run, ...], ...]
    warnings: tuple[str, ...] = ()


MANY = 20_000  # predictions: fewer are read before processes have started
MOST = 8  # processes by default; each holds a whole condition
PROCESS_BYTES, UNPACKED = (
    500_000_000,
    14,
)  # of memory: Python and its packages; for each byte of a condition's files
OnProgress = Callable[[str], None]  # called with what is being read, resampled, drawn or written


def load_runs(
    folders: Sequence[Path], on_progress: OnProgress = lambda _: None, workers: int = 1
) -> LoadedRuns:
    """Read results folders, in so many processes; a folder of results folders stands for those inside."""
    places = find_results(folders)
    plans = [plan_in(place) for place in places]
    _refuse_twice(places, plans)
    runs = [
        _read(name, place, plan, on_progress, workers)
        for name, place, plan in zip(_names(places, plans), places, plans, strict=True)
    ]
    groups, reasons = _grouped(runs)
    warnings = [sentence for run in runs for sentence in _warnings(run)]
    return LoadedRuns(tuple(runs), groups, (*reasons, *warnings))


def find_results(folders: Sequence[Path]) -> list[Path]:
    """Every folder that holds a plan, in the order given."""
    found: list[Path] = []
    for folder in folders:
        inside = sorted(path.parent for path in folder.glob(f"*/{PLAN}")) if folder.is_dir() else []
        here = [folder] if (folder / PLAN).is_file() or unit_owners(folder) else inside
        if not here:
            raise GramLoopError(
                f"{folder} holds no results of gramloop evaluate; it, or folders in it, would have a {PLAN}"
            )
        found += here
    return found


def count_conditions(folders: Sequence[Path]) -> int:
    """How many conditions there are to read."""
    return sum(len(plan_in(place).conditions) for place in find_results(folders))


def report_workers(folders: Sequence[Path], asked: int | None = None) -> int:
    """The processes asked for; else all cores, up to 8, as memory allows, where there is so much to read that it pays."""
    if asked is not None:
        return worker_count(asked)
    places = find_results(folders)
    plans = [plan_in(place) for place in places]
    if sum(plan.images * len(plan.methods) for plan in plans) < MANY:
        return 1
    largest = max(_largest_condition(place) for place in places)
    fitting = int(available_memory() // (PROCESS_BYTES + UNPACKED * largest))
    return max(1, min(worker_count(None), MOST, fitting))


def _largest_condition(folder: Path) -> int:
    """Bytes of the files of one condition, of that with most."""
    conditions = (folder / UNITS).iterdir() if (folder / UNITS).is_dir() else ()
    return max(
        (sum(file.stat().st_size for file in each.rglob("*.parquet")) for each in conditions), default=0
    )


def _refuse_twice(places: Sequence[Path], plans: Sequence[Plan]) -> None:
    first: dict[object, Path] = {}
    for place, plan in zip(places, plans, strict=True):
        key = plan.hash, plan.methods
        if key in first:
            raise GramLoopError(f"{first[key]} and {place} hold the same plan, {plan.hash}; give one of them")
        first[key] = place


def _names(places: Sequence[Path], plans: Sequence[Plan]) -> list[str]:
    """The suite; with its task, then its folder, then its plan, where that is not enough to tell runs apart."""
    tries = [
        (
            plan.suite,
            task := f"{plan.suite} {TASK_WORDS[plan.task]}",
            f"{task} ({place.name})",
            f"{task} ({place})",
        )
        for place, plan in zip(places, plans, strict=True)
    ]
    names = []
    for own in tries:
        others = [each for each in tries if each is not own]
        free = (name for rank, name in enumerate(own) if name not in [each[rank] for each in others])
        names.append(next(free, own[-1]))
    return names


def _read(name: str, folder: Path, plan: Plan, on_progress: OnProgress, workers: int) -> Run:
    results: list[ConditionResults] = []
    missing: dict[str, str] = {}
    calls = [(Store(folder, plan), key) for key in plan.conditions]
    for key, found in zip(plan.conditions, in_order(_measured, calls, workers), strict=True):
        if isinstance(found, str):
            missing[key] = found
        else:
            results.append(found)
        on_progress(f"{name} {key}")
    return Run(name, folder, plan, tuple(results), missing)


def _measured(store: Store[Plan], key: str) -> ConditionResults | str:
    """One condition; or what is not there, in words."""
    wanted = [unit for part in store.plan.parts_of(key) for unit in part.units]
    held, damage = 0, []
    for unit in wanted:
        try:
            held += store.read(unit) is not None
        except UnusableFile as problem:
            damage.append(str(problem))
    if held == len(wanted) and (stored := read_condition(store, key)) is not None:
        return measure_condition(store.plan, stored)
    return "; ".join([f"{held} of {len(wanted)} units are stored", *damage])


def unlike(first: Run, second: Run) -> str:
    """Why the numbers of two runs cannot be set against each other; an empty string if they can."""
    one, two = first.plan, second.plan
    if one.versions != two.versions:
        changed = [name for name in one.versions if one.versions[name] != two.versions.get(name)]
        name = (changed or [name for name in two.versions if name not in one.versions])[0]
        return f"they were made with {name} {one.versions.get(name, 'none')} and {two.versions.get(name, 'none')}"
    if _weights(one, two) != _weights(two, one):
        return "they are of models with other weights"
    if one.batch != two.batch:
        return f"they were made with batches of {one.batch} and {two.batch}"
    for part in ("depth", "device", "threads"):
        values = getattr(one.model, part), getattr(two.model, part)
        if values[0] != values[1]:
            return f"they were made with {part} {values[0]} and {values[1]}"
    if one.task == two.task and one.model.sizes != two.model.sizes:
        return "images were shown to the model in other sizes"
    if one.suite == two.suite and one.task == two.task and one.data.fingerprints != two.data.fingerprints:
        return "they are of other images"
    if one.truth != two.truth:
        return f"one is compared with {first.truth_words}, the other with {second.truth_words}"
    settings = {method.name: method for method in one.methods}
    for method in two.methods:
        if settings.get(method.name, method) != method:
            return f"the method {method.name} has other settings in each"
    return ""


def _weights(plan: Plan, other: Plan) -> dict[str, str]:
    """Checksums that must agree: of all files for one task, without the head between tasks."""
    return {
        name: value for name, value in plan.model.sha256.items() if plan.task == other.task or name != "head"
    }


def _grouped(runs: Sequence[Run]) -> tuple[tuple[tuple[Run, ...], ...], list[str]]:
    groups: list[list[Run]] = []
    reasons: list[str] = []
    for run in runs:
        against = [next((why for one in group if (why := unlike(one, run))), "") for group in groups]
        home = next((group for group, why in zip(groups, against, strict=True) if not why), None)
        if home is not None:
            home.append(run)
            continue
        if groups:
            other = next(one for one in groups[0] if unlike(one, run))
            reasons.append(
                f"{other.name} and {run.name} cannot be compared: {unlike(other, run)}. "
                "They are shown separately, and nothing is averaged over both."
            )
        groups.append([run])
    return tuple(tuple(group) for group in groups), reasons


def _warnings(run: Run) -> list[str]:
    sentences = [f"{run.name} was run without labels: {AGREEMENT_NOTE}."] if run.plan.label_free else []
    if run.missing:
        listed = _some([f"{key} ({why})" for key, why in run.missing.items()], 6)
        sentences.append(
            f"{run.name} is not complete, so it has no mean: {len(run.missing)} of "
            f"{len(run.plan.conditions)} conditions are missing: {listed}."
        )
    if run.unscored:
        sentences.append(f"{run.name} has no score for {_some(run.unscored, 6)}, so it has no mean.")
    lost = [(result.condition.key, failure) for result in run.results for failure in result.failures]
    if lost:
        listed = _some([f"{failure.image_id} in {key} ({failure.reason})" for key, failure in lost], 4)
        sentences.append(f"{run.name}: {len(lost)} images count for no method: {listed}.")
    expected, planned = {condition.key for condition in run.suite.conditions}, set(run.plan.conditions)
    if left_out := len(expected - planned):
        sentences.append(
            f"{run.name} covers {len(expected & planned)} of the suite's {len(expected)} conditions; "
            f"its means are over these, and {left_out} were not asked for."
        )
    if run.unlabelled:
        sentences.append(f"{run.name}: the {run.truth_words} never hold {_some(run.unlabelled, 8)}.")
    if BASELINE not in run.methods:
        sentences.append(f"{run.name} was run without the baseline, so it has no gains.")
    return sentences


def _some(words: Sequence[str], limit: int) -> str:
    rest = f" and {len(words) - limit} more" if len(words) > limit else ""
    return ", ".join(words[:limit]) + rest
