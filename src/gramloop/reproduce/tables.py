"""The paper's tables in its layout: every printed number with yours and the difference."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gramloop.data.suites import display_name
from gramloop.errors import GramLoopError
from gramloop.evaluate.cost import MethodCost
from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.store import Store, read_condition
from gramloop.metrics.bootstrap import REPLICATES, SEED, Interval
from gramloop.metrics.robustness import effective_robustness
from gramloop.report.load import PARTS
from gramloop.report.run import Run
from gramloop.report.stats import compare_methods
from gramloop.report.tables.checks import PLACES, class_gains
from gramloop.report.tables.main import DIGITS
from gramloop.reproduce.recipe import Output, Recipe
from gramloop.util.table import ABSENT, Cell, Column, SignedNumber, Table

GAIN, MEAN = "gain", "mean"  # rows of printed numbers
_NARROW = 3  # columns of numbers; of more, the paper's numbers become rows
Costs = Mapping[str, Sequence[MethodCost]]  # by evaluation


@dataclass(frozen=True)
class Claim:
    """Something that the paper's text counts: what, how many, of how many."""

    key: str
    text: str
    count: int
    total: int


@dataclass(frozen=True)
class Context:
    """What tables and figures are made of: the recipe, its evaluations by name, their costs and the printed numbers."""

    recipe: Recipe
    runs: Mapping[str, Run]
    costs: Costs = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)

    def printed(self, output: str, row: str) -> Sequence[float] | None:
        """The printed numbers of a row."""
        return self.recipe.numbers().get(output, {}).get(row)

    def with_method(self, names: Sequence[str], method: str) -> Run | None:
        """The first of some evaluations that has a method."""
        return next((self.runs[name] for name in names if method in self.runs[name].methods), None)


@dataclass(frozen=True)
class PaperRow:
    """A row of the paper: its headings, your numbers, and the printed ones."""

    heads: tuple[Cell, ...]
    values: tuple[Cell, ...]
    printed: Sequence[float] | None = None
    more: tuple[Cell, ...] = ()  # of columns that the paper does not have
    signed: bool = False


@dataclass(frozen=True)
class PaperTable:
    """A table in the paper's layout."""

    key: str
    title: str
    heads: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: Sequence[PaperRow]
    caption: str = ""
    notes: Sequence[str] = ()
    more: tuple[Column, ...] = ()

    def side_by_side(self, comparable: bool = True) -> Table:
        """Your numbers with the printed ones, and differences where these mean something."""
        heads = [Column(f"head {place}", title, "text") for place, title in enumerate(self.heads)]
        if all(row.printed is None for row in self.rows):
            columns, rows = self.columns, [(*row.heads, *row.values, *row.more) for row in self.rows]
        elif len(self.columns) <= _NARROW:
            columns, rows = self._columns(comparable), [self._line(row, comparable) for row in self.rows]
        else:
            columns = (Column("numbers", "Numbers", "text"), *self.columns)
            rows = [line for row in self.rows for line in self._lines(row, comparable)]
        title = re.sub(r"^Table \d+: ", "", self.title)  # pages count tables
        title = title[:1].upper() + title[1:]
        return Table(
            title, (*heads, *columns, *self.more), rows, self.notes, key=self.key, caption=self.caption
        )

    def _columns(self, comparable: bool) -> tuple[Column, ...]:
        found = []
        for each in self.columns:
            found += [
                Column(
                    f"{each.key} printed",
                    f"{each.heading}, paper",
                    each.kind,
                    each.digits,
                    each.signed,
                    each.unit,
                ),
                Column(each.key, f"{each.heading}, yours", each.kind, each.digits, each.signed, each.unit),
            ]
            if comparable:
                found.append(Column(f"{each.key} difference", "Yours − paper", "", each.digits, True))
        return tuple(found)

    def _line(self, row: PaperRow, comparable: bool) -> tuple[Cell, ...]:
        cells: list[Cell] = []
        for place, value in enumerate(row.values):
            printed = None if row.printed is None else row.printed[place]
            cells += [printed, value, *([_minus(value, printed)] if comparable else [])]
        return (*row.heads, *cells, *row.more)

    def _lines(self, row: PaperRow, comparable: bool) -> Iterator[tuple[Cell, ...]]:
        none = (None,) * len(self.more)
        sign = _signed if row.signed else _same
        if row.printed is not None:
            yield (*row.heads, "paper", *map(sign, row.printed), *none)
        yield (*row.heads, "yours", *map(sign, row.values), *(row.more or none))
        if row.printed is not None and comparable:
            yield (*row.heads, "difference", *map(_signed, map(_minus, row.values, row.printed)), *none)


def _signed(value: Cell) -> Cell:
    return SignedNumber(value) if isinstance(value, int | float) else value


def _same(value: Cell) -> Cell:
    return value


def _minus(value: Cell, other: Cell) -> float | None:
    if isinstance(value, int | float) and isinstance(other, int | float):
        return float(value - other)
    return None


def _score(name: str = "score", title: str = "", signed: bool = False) -> Column:
    return Column(name, title or name, digits=DIGITS, signed=signed)


def main_table(key: str, layout: Output, made: Context) -> PaperTable:
    """Methods as rows and suites as columns."""
    scores = {
        method: [
            _scored(made, [each.evaluation], [each.clean] if each.clean else [], method)
            for each in layout.columns
        ]
        for method in layout.methods
    }
    title, method = made.recipe.title_of, layout.methods[-1]
    rows = [PaperRow((title(name),), tuple(scores[name]), made.printed(key, name)) for name in layout.methods]
    gains = tuple(_minus(*pair) for pair in zip(scores[method], scores[layout.methods[0]], strict=True))
    rows.append(PaperRow(("Δ",), gains, made.printed(key, GAIN), signed=True))
    found = {name: _interval(made.runs[name], method) for name in layout.needs}
    for text, end in (("Δ, 95% CI from", "low"), ("to", "high")):
        ends = (None if each.clean else getattr(found[each.evaluation], end, None) for each in layout.columns)
        rows.append(PaperRow((text,), tuple(ends), signed=True))
    columns = tuple(
        _score(f"{each.evaluation} {'ER' if each.clean else 'score'}", each.title) for each in layout.columns
    )
    caption = f"In percent, higher is better; Δ is {title(method)} less {title(layout.methods[0])}, before rounding. {_BOOTSTRAP}"
    notes = (
        ("ER is the score less 0.45 times that on clean images.",)
        if any(each.clean for each in layout.columns)
        else ()
    )
    return PaperTable(key, layout.title, ("Method",), columns, rows, caption, notes)


_BOOTSTRAP = (
    f"Intervals are drawn over shift families or domains, {REPLICATES:,} replicates with the seed {SEED}; clean images take no "
    "part."
)


def _scored(made: Context, names: Sequence[str], clean: Sequence[str], method: str) -> float | None:
    """The one number of a method, or its effective robustness where there are clean evaluations."""
    run = made.with_method(names, method)
    score = None if run is None else run.score(method)
    if not clean or score is None:
        return score
    base = made.with_method(clean, method)
    reference = None if base is None else base.score(method)
    return None if reference is None else effective_robustness(score, reference)


def _interval(run: Run, method: str) -> Interval | None:
    """The percentile interval of a gain over families."""
    if method not in run.compared or not run.complete:
        return None
    found = [each.gains.get(method, ()) for each in compare_methods((run,))]
    return found[0][0].interval if found and found[0] else None


def intervals_table(key: str, layout: Output, made: Context) -> PaperTable:
    """Gains with their intervals, a row for each suite."""
    rows = []
    for name in layout.evaluations:
        found = _interval(made.runs[name], layout.method)
        ends = (None,) * 2 if found is None else (found.low, found.high)
        run = made.runs[name]
        rows.append(PaperRow((run.name,), (run.gain(layout.method), *ends), made.printed(key, name)))
    columns = (
        _score(GAIN, "Δ", True),
        _score("low", "95% CI low", True),
        _score("high", "95% CI high", True),
    )
    note = "The paper does not name the stream of its draws, so the third decimal of an end may differ."
    return PaperTable(key, layout.title, ("Benchmark",), columns, rows, f"In points. {_BOOTSTRAP}", (note,))


def partitions_table(key: str, layout: Output, made: Context) -> PaperTable:
    """Scores on subsets of the images and on their complements."""
    run, title = made.runs[layout.evaluation], made.recipe.title_of
    lists = [_read_ids(Path(made.recipe.folder) / name) for name in layout.lists]
    scores = {name: _parts(run, name, lists) for name in (BASELINE, layout.method)}
    rows = []
    for kind, place, text in (("subset", 0, "subset"), ("complement", 1, "all other images")):
        values = [None if each is None else each[place] for each in scores.values()]
        for name, each in zip(scores, values, strict=True):
            cells = tuple(each.tolist()) if each is not None else (None,) * (len(lists) or PARTS)
            rows.append(PaperRow((text, title(name)), cells, made.printed(key, f"{kind} {name}")))
        if values[0] is not None and values[1] is not None:
            gains = values[1] - values[0]
            rows.append(
                PaperRow((text, "Δ"), tuple(gains.tolist()), made.printed(key, f"{kind} {GAIN}"), signed=True)
            )
            made.claims.append(
                Claim(
                    f"{kind}s improved",
                    f"{run.name}: {kind}s that improve",
                    int((gains > 0).sum()),
                    len(gains),
                )
            )
    many = len(lists) or PARTS
    how = (
        "the lists of ids"
        if lists
        else "the SHA-256 of the images' ids: the paper does not say which images are in which"
    )
    note = f"The subsets are made by {how}." + " With few images there are none." * (scores[BASELINE] is None)
    columns = tuple(_score(f"S{part + 1}") for part in range(many))
    return PaperTable(
        key, layout.title, ("Images", "Method"), columns, rows, f"{run.score_title} in percent.", (note,)
    )


def _read_ids(path: Path) -> frozenset[str]:
    try:
        return frozenset(path.read_text(encoding="utf-8").split())
    except (OSError, UnicodeDecodeError) as error:
        raise GramLoopError(f"cannot read the list of ids {path}: {error}") from error


def _parts(run: Run, method: str, lists: Sequence[frozenset[str]]) -> np.ndarray | None:  # (2, subsets)
    """Scores on subsets and complements, averaged over conditions; None where they are not known."""
    if not run.complete:
        return None
    if not lists:
        known = all(result.parts for result in run.averaged)
        return np.mean([result.parts[method] for result in run.averaged], axis=0) if known else None
    found = []
    for result in run.averaged:
        stored = read_condition(Store(run.folder, run.plan), result.condition.key)
        assert stored is not None
        inside = np.array([[each in ids for each in stored.image_ids] for ids in lists], dtype=np.int64)
        for ids, row in zip(lists, inside, strict=True):
            if not 0 < row.sum() < len(row):
                raise GramLoopError(
                    f"a list of {len(ids)} ids holds {row.sum()} of the {len(row)} images of {run.name}"
                )
        members = np.vstack([np.ones_like(inside[:1]), inside, 1 - inside])
        scores = run.plan.load_task().class_scores(stored.methods[method].rows, run.plan.classes, members)
        found.append(scores.subsets.reshape(2, -1))
    return np.asarray(np.mean(found, axis=0))


def placement_table(key: str, layout: Output, made: Context) -> PaperTable:
    """Where drift is measured and the step applied."""
    rows = []
    for name in layout.methods:
        run = made.with_method(layout.evaluations, name)
        replay = None if run is None else run.method(name).replay
        heads = (
            (ABSENT, ABSENT)
            if replay is None
            else (PLACES.get(str(replay.gate_at), f"Block {replay.gate_at}"), PLACES[replay.update_at])
        )
        values = [_scored(made, layout.evaluations, (), name)]
        values += [_scored(made, layout.evaluations, layout.clean, name)] if layout.clean else []
        gained = None if run is None or name == BASELINE else _interval(run, name)
        rows.append(PaperRow(heads, tuple(values), made.printed(key, name), (gained,)))
    first = made.runs[layout.evaluations[0]]
    columns = (_score(title=first.score_title), *([_score("ER")] if layout.clean else []))
    more = (Column("interval", "Gain, 95% CI", "interval", DIGITS, estimate=True),)
    return PaperTable(
        key, layout.title, ("Gate at", "Update at"), columns, rows, f"In percent. {_BOOTSTRAP}", (), more
    )


def compute_table(key: str, layout: Output, made: Context) -> PaperTable:
    """Blocks, time and memory of each method, pooled over evaluations by their numbers of images."""
    found = {name: _pooled(made, layout, name) for name in layout.methods}
    base, rows = found.get(BASELINE), []
    for name, cost in found.items():
        values: tuple[Cell, ...] = (None,) * 5
        if cost is not None:
            depth = made.recipe.models[made.recipe.evaluations[layout.evaluations[0]].model].depth
            blocks = None if base is None else depth * cost.blocks / base.blocks
            method = next(
                each
                for one in layout.evaluations
                for each in made.recipe.evaluations[one].all_methods
                if each.name == name
            )
            observed = None if base is None else cost.seconds / base.seconds
            values = (blocks, method.blocks(depth) / depth, cost.seconds, observed, cost.peak / 1e9)
        rows.append(PaperRow((made.recipe.title_of(name),), values, made.printed(key, name)))
    columns = (
        Column("blocks", "Blocks", digits=0),
        Column("analytic", "Analytic", digits=2, unit="×"),
        Column("seconds", "s/image", digits=2),
        Column("observed", "Obs.", digits=2, unit="×"),
        Column("memory", "Peak GB", digits=2),
    )
    return PaperTable(key, layout.title, ("Path",), columns, rows, *_compute_words(layout, made, found))


def _compute_words(
    layout: Output, made: Context, found: Mapping[str, PooledCost | None]
) -> tuple[str, list[str]]:
    sample = sum(
        max((each.images for each in made.costs.get(name, ())), default=0) for name in layout.evaluations
    )
    spreads = ", ".join(
        f"{made.recipe.title_of(name)} {cost.spread:.3f}" for name, cost in found.items() if cost is not None
    )
    caption = (
        "Transformer blocks of one view, as counted; their number by the formula relative to the baseline; seconds of one "
        "device per image, reading it included; peak memory of each path."
    )
    notes = [
        f"Each path ran alone on {sample} images of {' and '.join(layout.evaluations)}: medians, pooled by the number of images "
        f"in each. Seconds between the quartiles: {spreads}.",
        "The paper's time is the wall time of 64 GPUs over all 11,782 images, times 64, over the number of images; yours is "
        "that of one device, which reads and predicts one image after the other.",
    ]
    return caption, notes


@dataclass(frozen=True)
class PooledCost:
    """The cost of a method over several evaluations: weighted means, and the largest memory."""

    blocks: float
    seconds: float
    spread: float
    peak: int


def _pooled(made: Context, layout: Output, method: str) -> PooledCost | None:
    costs, weights = [], []
    for name in layout.evaluations:
        cost = next((each for each in made.costs.get(name, ()) if each.method == method), None)
        if cost is None:
            return None
        data = made.recipe.data[made.recipe.evaluations[name].data]
        costs.append(cost)
        weights.append(made.runs[name].plan.images if name in made.runs else data.images or data.scenes)

    def mean(values: Sequence[float]) -> float:
        return float(np.average(values, weights=weights))

    return PooledCost(
        mean([each.blocks for each in costs]),
        mean([each.seconds + each.reading for each in costs]),
        mean([each.spread for each in costs]),
        max(each.peak_memory for each in costs),
    )


def families_table(key: str, layout: Output, made: Context) -> PaperTable:
    """Means over severities by shift, and the macro mean."""
    run, pair = made.runs[layout.evaluation], (BASELINE, layout.method)
    numbers = made.recipe.numbers().get(key, {})
    order = [name for name in numbers if name in run.families]
    rows = []
    for name in [*order, *(each for each in run.families if each not in order)]:
        members = [condition for condition in run.shifted if condition.family == name]
        means = [
            float(np.mean([run.scores(method).get(each, np.nan) for each in members])) for method in pair
        ]
        rows.append(
            PaperRow((display_name(name, capital=True),), (*means, means[1] - means[0]), numbers.get(name))
        )
    total = tuple(run.score(method) for method in pair)
    rows.append(PaperRow(("Macro mean",), (*total, _minus(total[1], total[0])), numbers.get(MEAN)))
    severities = len({condition.severity for condition in run.shifted})
    found = _interval(run, layout.method)
    notes = (
        [f"95% CI of the macro mean's Δ, over families: [{found.low:+.3f}, {found.high:+.3f}]."]
        if found
        else []
    )
    if numbers and set(numbers) - {MEAN} != set(run.families):
        notes.append(
            f"You ran {len(run.families)} of the paper's {len(numbers) - 1} shifts, so the macro means are over others."
        )
    title = made.recipe.title_of
    columns = (
        _score(BASELINE, title(BASELINE)),
        _score(layout.method, title(layout.method)),
        _score(GAIN, "Δ", True),
    )
    caption = (
        f"Means of {run.metric} over {severities} severities, in percent; Δ is computed before rounding."
    )
    return PaperTable(key, layout.title, ("Shift",), columns, rows, caption, notes)


def classes_tables(key: str, layout: Output, made: Context) -> list[PaperTable]:
    """The paper's classes with your numbers, and the classes that gain most in yours."""
    run, title = made.runs[layout.evaluation], made.recipe.title_of
    found = class_gains(run, layout.method)
    if found is None:
        raise GramLoopError(f"{run.name} is not complete, or has no classes")
    made.claims.append(
        Claim("classes improved", f"{run.name}: classes that improve", found.improved, len(found.names))
    )
    ranked = np.argsort(-found.gains, kind="stable").tolist()
    columns = (
        _score(BASELINE, title(BASELINE)),
        _score(layout.method, title(layout.method)),
        _score(GAIN, "Δ", True),
    )

    def row(place: int, numbers: Sequence[float] | None = None) -> PaperRow:
        values = (found.baseline[place], found.method[place], found.gains[place])
        return PaperRow(
            (str(ranked.index(place) + 1), found.names[place]), tuple(map(float, values)), numbers
        )

    caption = f"{run.task.class_metric} of a class in percent, {run.scope}."
    printed = made.recipe.numbers().get(key, {})
    tables = [
        PaperTable(
            f"{key}-yours",
            f"{layout.title}, yours",
            ("Rank", "Class"),
            columns,
            [row(place) for place in ranked[: layout.top]],
            caption,
        )
    ]
    first = [re.split("[,;]", name)[0].strip() for name in found.names]  # ADE20K lists synonyms
    known = {name: first.index(name) for name in printed if name in first}
    if known:
        rows = [row(place, printed[name]) for name, place in known.items()]
        tables.insert(0, PaperTable(key, layout.title, ("Your rank", "Class"), columns, rows, caption))
    return tables


def claims_table(made: Context) -> Table | None:
    """What the paper's text counts, and what you count."""
    if not made.claims:
        return None
    printed = made.recipe.numbers().get("claims", {})
    rows: list[tuple[Cell, ...]] = []
    for each in made.claims:
        numbers = printed.get(each.key)
        paper = ABSENT if numbers is None else f"{numbers[0]:.0f} of {numbers[1]:.0f}"
        rows.append((each.text, paper, f"{each.count} of {each.total}"))
    columns = [
        Column(name, title, "text")
        for name, title in (("claim", "Claim"), ("paper", "Paper"), ("yours", "Yours"))
    ]
    return Table("What the text counts", columns, rows, key="claims")
