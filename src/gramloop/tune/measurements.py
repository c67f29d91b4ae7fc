"""What a search consists of, and what its candidates did: methods of the evaluation's runner, units of its store."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gramloop.errors import GramLoopError
from gramloop.evaluate.engines.local import Workers
from gramloop.evaluate.methods import BASELINE, Method
from gramloop.evaluate.plan import Part, Subject, Unit
from gramloop.evaluate.rows import MethodRows
from gramloop.evaluate.runner import Missed
from gramloop.evaluate.store import Store
from gramloop.mitigations.mitigated import stack_cost
from gramloop.mitigations.stack import Stack, replay_alone
from gramloop.replay.config import Adaptive
from gramloop.tasks.base import Row, Rows
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor
from gramloop.tune.gain import PairedRow, with_rule
from gramloop.tune.halving import Options, Schedule
from gramloop.tune.space import Candidates, describe_candidate
from gramloop.tune.split import SearchCell, Split

CLEAN_TOLERANCE = 0.1  # points that clean images may lose
ANY_CHANGE = 100.0  # points by which clean predictions may change where no label says what a change is worth
UNIT_IMAGES = 4  # of a unit, at most: what a kill can lose


@dataclass(frozen=True)
class Search:
    """A model and its images, the candidates, and the schedule that a budget allows."""

    subject: Subject
    options: Options
    candidates: tuple[Stack, ...]  # that are tried; as many as the budget can compare
    offered: Candidates
    split: Split
    schedule: Schedule
    predictor: Predictor[Prediction] = field(repr=False, compare=False)  # its weights may be missing
    plan: Mapping[str, Any] = field(default_factory=dict, repr=False)  # everything that decides the outcome
    given_calibration: str | None = None  # a file of calibration statistics

    @property
    def tolerance(self) -> float:
        """Points that clean images may lose, or without labels change by."""
        given = self.options.clean_tolerance
        return given if given is not None else ANY_CHANGE if self.subject.label_free else CLEAN_TOLERANCE

    @property
    def nothing(self) -> str:
        """What the candidates are compared with, in words."""
        return "no replay" if self.offered.replays_only else "nothing"

    @property
    def combines(self) -> bool:
        """Whether winners of different stages are tried together."""
        return any(rung.joining for rung in self.schedule.rungs)

    def cost(self, stack: Stack) -> float:
        """Work relative to the baseline forward, at most."""
        return stack_cost(stack, self.predictor).multiplier


class Measurements:
    """What candidates did on cells, by number: those of the plan first, then combinations and adaptive twins.

    Args:
        search: what is run.
        store: of everything that is measured.
        workers: that run what is not stored.
        calibration: the checksum of the calibration statistics, if there are any.
        advance: called with the number of predictions that were made, or found in the store.
    """

    def __init__(
        self,
        search: Search,
        store: Store[Subject],
        workers: Workers,
        calibration: str = "",
        advance: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.search, self.store, self.workers, self.advance = search, store, workers, advance
        self.calibration = calibration
        self.stacks: list[Stack] = list(search.candidates)
        self.twins: dict[int, int] = {}  # an adaptive candidate: the one that it was made from
        self.refused: dict[int, str] = {}
        self.failures: dict[str, None] = {}
        self.predictions = search.schedule.calibration
        self._rows: dict[
            tuple[str, int], dict[int | None, Row]
        ] = {}  # by condition and position; None: baseline
        self._signals: dict[tuple[str, int], Mapping[str, Sequence[float]] | None] = {}
        self._failed: set[tuple[str, int]] = set()

    def add(self, stack: Stack, twin_of: int | None = None) -> int:
        """One more candidate; its number. A twin is another one's replay on some images only."""
        self.stacks.append(stack)
        number = len(self.stacks) - 1
        if twin_of is not None:
            self.twins[number] = twin_of
        return number

    def able(self, candidates: Iterable[int]) -> list[int]:
        """The candidates that no image was refused by; an error if none is left."""
        found = [number for number in candidates if number not in self.refused]
        if not found:
            number, reason = next(iter(self.refused.items()))
            raise GramLoopError(
                f"no candidate can run on this model; {describe_candidate(self.stacks[number])}: {reason}"
            )
        return found

    def measure(self, cells: Sequence[SearchCell], candidates: Sequence[int]) -> None:
        """Measure all candidates on all cells."""
        parts = self._parts(cells, candidates) if candidates else []
        missing = self.store.missing(parts)
        self.advance(sum(map(self._price, parts)) - sum(map(self._price, missing)))
        for done in self.workers.run(missing) if missing else ():  # workers load the model when they run
            if isinstance(done, Missed):
                raise GramLoopError(done.reason)
            self.advance(self._price(done.part))
        for part in parts:
            self._take(part)

    def _parts(self, cells: Sequence[SearchCell], candidates: Sequence[int]) -> list[Part]:
        """Cells by condition, some images at a time; the baseline is measured with the first candidates."""
        positions: dict[tuple[str, bool], list[int]] = {}
        for key, sample in cells:
            if (key, sample.position) not in self._failed:
                known = (key, sample.position) in self._rows
                positions.setdefault((key, known), []).append(sample.position)
        methods = tuple(self._method(number) for number in candidates)
        return [
            Part(
                key,
                tuple(sorted(each[first : first + UNIT_IMAGES])),
                methods if known else (Method(BASELINE), *methods),
            )
            for (key, known), each in positions.items()
            for first in range(0, len(each), UNIT_IMAGES)
        ]

    def _method(self, number: int) -> Method:
        name, stack = f"candidate-{number}", self.stacks[number]
        config = replay_alone(stack)
        if config is not None:
            return Method(name, config)
        method = Method(name, None, stack)
        return replace(method, calibration=self.calibration) if method.uses_calibration else method

    def _take(self, part: Part) -> None:
        """Keep what is stored of a part; an image that failed counts for no candidate."""
        stored = {unit.method.name: self._stored(unit) for unit in part.units}
        for name, found in stored.items():
            for failure in found.failures:
                self._failed.add((part.condition, failure.position))
                self._rows.pop((part.condition, failure.position), None)
                self.failures[f"{part.condition}, image {failure.image_id}: {failure.reason}"] = None
            for refusal in found.refused:
                self.refused.setdefault(int(name.removeprefix("candidate-")), refusal.reason)
        for name, found in stored.items():
            number = None if name == BASELINE else int(name.removeprefix("candidate-"))
            signals = found.column("signals") if number is None else [None] * len(found.positions)
            for position, row, signal in zip(found.positions, each_row(found.rows), signals, strict=True):
                cell = part.condition, position
                if cell in self._failed:
                    continue
                self._rows.setdefault(cell, {})[number] = row
                if number is None:
                    self._signals[cell] = None if signal is None else json.loads(signal)
        lost = sum((part.condition, position) in self._failed for position in part.images)
        self.predictions += self._price(part) * (len(part) - lost) // len(part)

    def _stored(self, unit: Unit) -> MethodRows:
        found = self.store.rows([unit])
        if found is None:
            raise GramLoopError(
                f"{self.store.path(unit)} was stored, and is gone; run the same command again"
            )
        return found

    def _price(self, part: Part) -> int:
        """Predictions of a part, as the budget counts them."""
        baselines = sum(method.name == BASELINE for method in part.methods)
        counted = len(part.methods) - baselines + baselines * self.search.schedule.baseline
        return len(part) * counted

    def measured(self, candidate: int, cells: Iterable[SearchCell]) -> dict[str, list[PairedRow]]:
        """One candidate on the cells that could be used, by condition.

        An adaptive twin that was not run is put together from what its origin did.
        """
        found: dict[str, list[PairedRow]] = {}
        for key, sample in cells:
            rows = self._rows.get((key, sample.position))
            if rows is None:
                continue
            own = candidate in rows
            row = rows[candidate if own else self.twins[candidate]]
            one = PairedRow(sample, rows[None], row, self._signals[key, sample.position])
            if not own:
                rule, block = self.rule(candidate)
                [one] = with_rule({key: [one]}, rule, block)[key]
            found.setdefault(key, []).append(one)
        return found

    def rule(self, twin: int) -> tuple[Adaptive, int]:
        """The rule of an adaptive twin, and the block whose signal it reads."""
        config = replay_alone(self.stacks[twin])
        assert config is not None
        assert config.adaptive is not None
        assert config.window is not None
        return config.adaptive, config.window[1]


def each_row(rows: Rows) -> list[Row]:
    """Statistics image by image."""
    ends = {name: lengths.cumsum() for name, lengths in rows.lengths.items()}
    return [
        {
            name: values[ends[name][place] - rows.lengths[name][place] : ends[name][place]]
            if name in ends
            else values[place]
            for name, values in rows.values.items()
        }
        for place in range(rows.images)
    ]
