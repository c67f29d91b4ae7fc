"""The paper's tables in its layout: every printed number with yours and the difference."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gramloop.data.suites import display_name
from gramloop.errors import GramLoopError
from gramloop.evaluate.cost import MethodCost
from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.store import Store, read_condition
from gramloop.metrics.bootstrap import REPLICATES, SEED, Interval
from gramloop.metrics.scores import effective_robustness
from gramloop.report.breakdowns import ClassGains, class_gains, means_of_family, places_of
from gramloop.report.run import Run
from gramloop.report.stats import compare_methods
from gramloop.reproduce.recipe import Output, Recipe
from gramloop.util.table import ABSENT, Cell, Column, SignedNumber, Table

GAIN, MEAN = "gain", "mean"  # rows of printed numbers
DIGITS = 3
PARTS = 4  # subsets of the images by default
_DIVIDED = 2 * PARTS  # images; fewer are not divided
_BOOTSTRAP = (
    f"Intervals are drawn over shift families or domains, {REPLICATES:,} replicates with the seed {SEED}; clean images take no "
    "part."
)
Numbers = Sequence[float | None]


@dataclass(frozen=True)
class Context:
    """What tables and figures are made of.

    Args:
        recipe: with the printed numbers.
        runs: its evaluations by name.
        costs: of methods, by evaluation.
    """

    recipe: Recipe
    runs: Mapping[str, Run]
    costs: Mapping[str, Sequence[MethodCost]] = field(default_factory=dict)

    def score(self, evaluations: Sequence[str], method: str, clean: Sequence[str] = ()) -> float | None:
        """A method's score in the first evaluation that has it; effective robustness with clean evaluations."""
        run = self.run_with(method, evaluations)
        score = None if run is None else run.score(method)
        if not clean or score is None:
            return score
        reference = self.score(clean, method)
        return None if reference is None else effective_robustness(score, reference)

    def counted(self, claim: str) -> str:
        """What the paper's text counts, in a parenthesis; nothing where no numbers are printed."""
        found = self.recipe.numbers("claims").get(claim)
        return "" if found is None else " (the paper: {:.0f} of {:.0f})".format(*found)

    def run_with(self, method: str, evaluations: Sequence[str]) -> Run | None:
        """The first evaluation that has a method."""
        return next((self.runs[name] for name in evaluations if method in self.runs[name].methods), None)


@dataclass(frozen=True)
class PaperRow:
    """A row of the paper: its headings, your numbers, and the printed ones."""

    heads: tuple[Cell, ...]
    values: Numbers
    printed: Sequence[float] | None = None

    def lines(self, comparable: bool) -> list[tuple[Cell, ...]]:
        """Printed numbers, yours, and yours less printed where the two can be compared."""
        yours = (*self.heads, "yours", *self.values)
        if self.printed is None:
            return [yours]
        pairs = list(zip(self.values, self.printed, strict=True))
        printed = [SignedNumber(there) if isinstance(here, SignedNumber) else there for here, there in pairs]
        less = (*self.heads, "yours − paper", *(_gain(here, there) for here, there in pairs))
        return [(*self.heads, "paper", *printed), yours, *([less] if comparable else [])]


@dataclass(frozen=True)
class PaperTable:
    """A table in the paper's layout."""

    heads: tuple[str, ...]
    columns: Sequence[Column]
    rows: Sequence[PaperRow]
    caption: str
    notes: Sequence[str] = ()
    ending: str = ""  # of key and title, where an output has several tables

    def side_by_side(self, key: str, title: str, comparable: bool = True) -> Table:
        """Your numbers with the printed ones, and differences where these mean something."""
        heads = [Column(f"head {place}", name, "text") for place, name in enumerate(self.heads)]
        columns = [*heads, Column("numbers", "Numbers", "text"), *self.columns]
        rows = [line for row in self.rows for line in row.lines(comparable)]
        title = re.sub(r"^Table \d+: ", "", title)  # pages count tables
        title = title[:1].upper() + title[1:]
        if self.ending:
            key, title = f"{key}-{self.ending}", f"{title}, {self.ending}"
        return Table(title, columns, rows, self.notes, key=key, caption=self.caption)


def _gain(value: float | None, other: float | None) -> SignedNumber | None:
    return None if value is None or other is None else SignedNumber(value - other)


def _column(name: str, title: str = "", signed: bool = False) -> Column:
    return Column(name, title or name, digits=DIGITS, signed=signed)


def _pair_columns(made: Context, method: str) -> list[Column]:
    title = made.recipe.title_of
    return [_column(BASELINE, title(BASELINE)), _column(method, title(method)), _column(GAIN, "Δ", True)]


def _interval(run: Run | None, method: str) -> Interval | None:
    """The percentile interval of a gain over families."""
    if run is None or method not in run.compared or not run.complete:
        return None
    found = [each.gains.get(method, ()) for each in compare_methods((run,))]
    return found[0][0].interval if found and found[0] else None


def _ends(interval: Interval | None) -> Numbers:
    return (None, None) if interval is None else (SignedNumber(interval.low), SignedNumber(interval.high))


def paper_methods(key: str, output: Output, made: Context) -> PaperTable:
    """Methods as rows and suites as columns."""
    printed, title = made.recipe.numbers(key), made.recipe.title_of
    first, last = output.methods[0], output.methods[-1]
    scores = {
        method: [
            made.score([each.evaluation], method, [each.clean] if each.clean else [])
            for each in output.columns
        ]
        for method in output.methods
    }
    rows = [PaperRow((title(name),), values, printed.get(name)) for name, values in scores.items()]
    rows.append(PaperRow(("Δ",), list(map(_gain, scores[last], scores[first])), printed.get(GAIN)))
    found = [None if each.clean else _interval(made.runs[each.evaluation], last) for each in output.columns]
    low, high = zip(*map(_ends, found), strict=True)
    rows += [PaperRow(("Δ, 95% CI from",), low), PaperRow(("to",), high)]
    columns = [
        _column(f"{each.evaluation} {'ER' if each.clean else 'score'}", each.title) for each in output.columns
    ]
    caption = (
        f"In percent, higher is better; Δ is {title(last)} less {title(first)}, before rounding. {_BOOTSTRAP}"
    )
    robust = any(each.clean for each in output.columns)
    return PaperTable(
        ("Method",),
        columns,
        rows,
        caption,
        ["ER is the score less 0.45 times that on clean images."] * robust,
    )


def paper_intervals(key: str, output: Output, made: Context) -> PaperTable:
    """Gains with their intervals, a row for each suite."""
    printed, rows = made.recipe.numbers(key), []
    for name in output.evaluations:
        run = made.runs[name]
        values = (run.gain(output.method), *_ends(_interval(run, output.method)))
        rows.append(PaperRow((run.name,), values, printed.get(name)))
    columns = [
        _column(GAIN, "Δ", True),
        _column("low", "95% CI low", True),
        _column("high", "95% CI high", True),
    ]
    note = "The paper does not name the stream of its draws, so the third decimal of an end may differ."
    return PaperTable(("Benchmark",), columns, rows, f"In points. {_BOOTSTRAP}", [note])


def paper_partitions(key: str, output: Output, made: Context) -> PaperTable:
    """Scores on subsets of the images and on their complements."""
    run, printed = made.runs[output.evaluation], made.recipe.numbers(key)
    lists = [_read_ids(Path(made.recipe.folder) / name) for name in output.lists]
    many, rows, notes = len(lists) or PARTS, [], []
    printed = printed if many == PARTS else {}
    pair = [part_scores(run, name, lists) for name in (BASELINE, output.method)]
    for place, (kind, words) in enumerate((("subset", "subset"), ("complement", "all other images"))):
        base, own = ([None] * many if each is None else each[place].tolist() for each in pair)
        gains = list(map(_gain, own, base))
        titles = (made.recipe.title_of(BASELINE), made.recipe.title_of(output.method), "Δ")
        for name, title, values in zip(
            (BASELINE, output.method, GAIN), titles, (base, own, gains), strict=True
        ):
            rows.append(PaperRow((words, title), values, printed.get(f"{kind} {name}")))
        if gains[0] is not None:
            improved = sum(each is not None and each > 0 for each in gains)
            notes.append(f"{improved} of {many} {kind}s improve{made.counted(f'{kind}s improved')}.")
    how = "the SHA-256 of the images' ids: the paper does not say which images are in which"
    notes.append(f"The subsets are made by {'the lists of ids' if lists else how}.")
    notes += ["With few images there are none."] * (pair[0] is None)
    columns = [_column(f"S{part + 1}") for part in range(many)]
    return PaperTable(("Images", "Method"), columns, rows, f"{run.score_title} in percent.", notes)


def _read_ids(path: Path) -> frozenset[str]:
    try:
        return frozenset(path.read_text(encoding="utf-8").split())
    except (OSError, UnicodeDecodeError) as error:
        raise GramLoopError(f"cannot read the list of ids {path}: {error}") from error


def hash_parts(ids: Iterable[str]) -> list[frozenset[str]]:
    """Four subsets of equal length, give or take one, of images ordered by the SHA-256 of their id; none of few images.

    The division knows nothing of content or order, and is the same wherever these images are evaluated.
    """
    ordered = sorted(set(ids), key=lambda each: (hashlib.sha256(each.encode()).digest(), each))
    ends = [-(-part * len(ordered) // PARTS) for part in range(PARTS + 1)]
    parts = [frozenset(ordered[start:end]) for start, end in itertools.pairwise(ends)]
    return parts if len(ordered) >= _DIVIDED else []


def part_scores(
    run: Run, method: str, lists: Sequence[frozenset[str]]
) -> NDArray[np.float64] | None:  # (2, subsets)
    """Scores on subsets and complements, averaged over conditions; None where they are not known."""
    found = []
    for result in run.averaged if run.complete else ():
        stored = read_condition(Store(run.folder, run.plan), result.condition.key)
        assert stored is not None
        every = [*stored.image_ids, *(failure.image_id for failure in stored.failures)]
        inside = np.array(
            [[each in part for each in stored.image_ids] for part in lists or hash_parts(every)],
            dtype=np.int64,
        )
        if not len(inside):
            return None
        if not (inside.mean(axis=1) > 0).all() or not (inside.mean(axis=1) < 1).all():
            raise GramLoopError(f"each subset must hold some of the images of {run.name}, and not all")
        score = run.task.scorer(stored.methods[method].rows, run.plan.classes)
        found.append(score(np.vstack([inside, 1 - inside])).reshape(2, -1))
    return np.asarray(np.mean(found, axis=0)) if found else None


def paper_placement(key: str, output: Output, made: Context) -> PaperTable:
    """Where drift is measured and the step applied."""
    printed, rows, notes = made.recipe.numbers(key), [], []
    for name in output.methods:
        run = made.run_with(name, output.evaluations)
        places = (ABSENT, ABSENT) if run is None else places_of(run.method(name))
        values = [made.score(output.evaluations, name)]
        values += [made.score(output.evaluations, name, output.clean)] if output.clean else []
        rows.append(PaperRow(places, values, printed.get(name)))
        if found := _interval(run, name):
            text = f"[{found.low:+.{DIGITS}f}, {found.high:+.{DIGITS}f}]"
            notes.append(f"{made.recipe.title_of(name)} gains {found.estimate:+.{DIGITS}f}, 95% CI {text}.")
    title = made.runs[output.evaluations[0]].score_title
    columns = [_column("score", title), *([_column("ER")] if output.clean else [])]
    return PaperTable(("Gate at", "Update at"), columns, rows, f"In percent. {_BOOTSTRAP}", notes)


def paper_compute(key: str, output: Output, made: Context) -> PaperTable:
    """Blocks, time and memory of each method, pooled over evaluations by their numbers of images."""
    recipe, printed, rows = made.recipe, made.recipe.numbers(key), []
    pooled = {name: _pooled(made, output.evaluations, name) for name in output.methods}
    depth = recipe.models[recipe.evaluations[output.evaluations[0]].model].depth
    base = pooled.get(BASELINE)
    for name, own in pooled.items():
        values: Numbers = (None,) * 5
        if own is not None:
            analytic = recipe.method(output.evaluations, name).blocks(depth) / depth
            blocks, observed = (None, None) if base is None else (depth * own[0] / base[0], own[1] / base[1])
            values = (blocks, analytic, own[1], observed, (own[3] or np.nan) / 1e9)
        rows.append(PaperRow((recipe.title_of(name),), values, printed.get(name)))
    columns = [
        Column("blocks", "Blocks", digits=0),
        Column("analytic", "Analytic", digits=2, unit="×"),
        Column("seconds", "s/image", digits=2),
        Column("observed", "Obs.", digits=2, unit="×"),
        Column("memory", "Peak GB", digits=2 if recipe.comparable else 4),
    ]
    caption = (
        "Transformer blocks of one view, as counted; their number by the formula relative to the baseline; seconds of one "
        "device per image, reading it included; the most bytes of tensors, weights among them, that one prediction needs."
    )
    spreads = [f"{recipe.title_of(name)} {each[2]:.3f}" for name, each in pooled.items() if each is not None]
    sample = sum(max((c.images for c in made.costs.get(name, ())), default=0) for name in output.evaluations)
    notes = [
        f"Each path ran alone on {sample} images of {' and '.join(output.evaluations)}: medians, pooled by the number of images "
        f"in each. Seconds between the quartiles: {', '.join(spreads)}.",
        "The paper's time is the wall time of 64 GPUs over all 11,782 images, times 64, over the number of images; yours is "
        "that of one device, which reads and predicts one image after the other.",
    ]
    return PaperTable(("Path",), columns, rows, caption, notes)


def _pooled(made: Context, evaluations: Sequence[str], method: str) -> tuple[float, float, float, int] | None:
    """Means of blocks, seconds and their spread by numbers of images, and the largest memory; None where one lacks."""
    costs = [each for name in evaluations for each in made.costs.get(name, ()) if each.method == method]
    if len(costs) < len(evaluations):
        return None
    entries = [made.recipe.data[made.recipe.evaluations[name].data] for name in evaluations]
    weights = [
        made.runs[name].plan.images if name in made.runs else max(1, entry.images or entry.scenes)
        for name, entry in zip(evaluations, entries, strict=True)
    ]
    parts = [(each.blocks, each.seconds + each.reading, each.spread) for each in costs]
    blocks, seconds, spread = np.average(parts, axis=0, weights=weights).tolist()
    return blocks, seconds, spread, max(each.peak_memory for each in costs)


def paper_families(key: str, output: Output, made: Context) -> PaperTable:
    """Means over severities by shift, and the macro mean."""
    run, pair, printed = made.runs[output.evaluation], (BASELINE, output.method), made.recipe.numbers(key)
    rows = []
    order = [name for name in printed if name in run.families]
    for name in [*order, *(each for each in run.families if each not in order)]:
        means = means_of_family(run, name)
        values = (means[BASELINE], means[output.method], _gain(means[output.method], means[BASELINE]))
        rows.append(PaperRow((display_name(name, capital=True),), values, printed.get(name)))
    base, own = (run.score(method) for method in pair)
    rows.append(PaperRow(("Macro mean",), (base, own, _gain(own, base)), printed.get(MEAN)))
    notes = []
    if found := _interval(run, output.method):
        notes.append(f"95% CI of the macro mean's Δ, over families: [{found.low:+.3f}, {found.high:+.3f}].")
    if printed and {*printed} - {MEAN} != {*run.families}:
        many = f"{len(run.families)} of the paper's {len(printed) - 1} shifts"
        notes.append(f"You ran {many}, so the macro means are over others.")
    severities = len({condition.severity for condition in run.shifted})
    caption = (
        f"Means of {run.metric} over {severities} severities, in percent; Δ is computed before rounding."
    )
    return PaperTable(("Shift",), _pair_columns(made, output.method), rows, caption, notes)


def paper_classes(key: str, output: Output, made: Context) -> Iterator[PaperTable]:
    """The paper's classes with your numbers, and the classes that gain most in yours."""
    run, printed = made.runs[output.evaluation], made.recipe.numbers(key)
    found = class_gains(run, output.method)
    if found is None:
        raise GramLoopError(f"{run.name} is not complete, or has no classes")
    counted = made.counted("classes improved")
    notes = [f"{found.improved} of {len(found.names)} classes improve{counted}."]
    columns = _pair_columns(made, output.method)
    caption = f"{run.task.class_metric} of a class in percent, {run.scope}."
    rows = _class_rows(found)
    first = [re.split("[,;]", str(row.heads[1]))[0].strip() for row in rows]  # ADE20K lists synonyms
    known = [
        replace(rows[first.index(name)], printed=numbers)
        for name, numbers in printed.items()
        if name in first
    ]
    if known:
        yield PaperTable(("Your rank", "Class"), columns, known, caption, notes)
    yield PaperTable(("Rank", "Class"), columns, rows[: output.top], caption, notes, ending="yours")


def _class_rows(found: ClassGains) -> list[PaperRow]:
    """All classes, the largest gain first."""
    each = [found.baseline, found.method, found.gains]
    ranked = np.argsort(-found.gains, kind="stable").tolist()
    return [
        PaperRow((str(rank), found.names[place]), [float(values[place]) for values in each])
        for rank, place in enumerate(ranked, start=1)
    ]
