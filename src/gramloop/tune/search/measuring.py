"""What candidates did on cells: measured where the journal does not hold it yet, and kept by candidate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gramloop.errors import GramLoopError
from gramloop.mitigations.replay import Replay
from gramloop.mitigations.stack import replay_alone
from gramloop.replay.config import Adaptive
from gramloop.tune.search.adapting import switched
from gramloop.tune.search.bench import Trial
from gramloop.tune.search.journal import Journal
from gramloop.tune.search.plan import Search, SearchCell
from gramloop.tune.search.stacks import Stack, describe_stack
from gramloop.tune.search.workers import Workers
from gramloop.tune.search.worth import PairedStatistics

TOGETHER = 16  # candidates of one trial


class Measurements:
    """Candidates by number: those of the plan first, then combinations and adaptive twins as they come up."""

    def __init__(
        self,
        search: Search,
        journal: Journal,
        workers: Workers,
        advance: Callable[[int], None] = lambda _: None,
        source: str | None = None,
    ) -> None:
        self.search, self.journal, self.workers, self.advance = search, journal, workers, advance
        self.source = source
        self.stacks: list[Stack] = list(search.candidates)
        self.twins: dict[int, int] = {}  # an adaptive candidate: the one that it is made from
        self.refused: dict[int, str] = {}  # candidates that cannot run on this model, and why
        self.failures: dict[str, None] = {}
        self.predictions = search.schedule.calibration
        self.filter_seconds: dict[str, list[float]] = {}  # of this run, by the filter's text
        self._rows: dict[tuple[str, str], dict[str, Any]] = {}
        self._failed: set[tuple[str, str]] = set()

    def add(self, stack: Stack) -> int:
        """A candidate more; its number."""
        self.stacks.append(stack)
        return len(self.stacks) - 1

    def add_twin(self, number: int, rule: Adaptive) -> int:
        """A replay that runs on some images only; its number."""
        config = replay_alone(self.stacks[number])
        assert config is not None
        twin = self.add((Replay(replace(config, adaptive=rule)),))
        self.twins[twin] = number
        return twin

    def able(self, candidates: Iterable[int]) -> list[int]:
        """The candidates that no image was refused by; an error where none is left."""
        found = [number for number in candidates if number not in self.refused]
        if not found:
            number, reason = next(iter(self.refused.items()))
            raise GramLoopError(
                f"no candidate can run on this model; {describe_stack(self.stacks[number])}: {reason}"
            )
        return found

    def measure(self, cells: Sequence[SearchCell], candidates: Sequence[int]) -> None:
        """See that all candidates are measured on all cells."""
        groups = [candidates[first : first + TOGETHER] for first in range(0, len(candidates), TOGETHER)]
        trials = {trial.key: trial for cell in cells for trial in self._trials(cell, groups)}
        for key, trial in trials.items():
            if key in self.journal.done:
                self.advance(self._counted(trial))
        for result in self.workers.run(
            [trial for key, trial in trials.items() if key not in self.journal.done]
        ):
            for text, seconds in result.pop("seconds", {}).items():
                self.filter_seconds.setdefault(text, []).append(seconds)
            self.journal.add(result)
            self.advance(self._counted(trials[result["job"]]))
        for key, trial in trials.items():  # in the plan's order, whatever order they were finished in
            self._take(trial, self.journal.done[key])

    def measured(self, candidate: int, cells: Iterable[SearchCell]) -> dict[str, list[PairedStatistics]]:
        """One candidate on the cells that could be used, by condition.

        An adaptive twin that was not run itself is put together from what its candidate did.
        """
        found: dict[str, list[PairedStatistics]] = {}
        origin = self.twins.get(candidate, candidate)
        for key, sample in cells:
            row = self._rows.get((key, sample.image_id))
            if row is not None:
                itself = candidate in row["mitigated"]
                statistic, blocks = row["mitigated"][candidate if itself else origin]
                one = PairedStatistics(
                    sample, row["ordinary"], statistic, row["truth"], blocks, row["signals"]
                )
                if not itself:
                    one = self._as_ruled(candidate, one)
                found.setdefault(key, []).append(one)
        return found

    def _as_ruled(self, twin: int, one: PairedStatistics) -> PairedStatistics:
        config = replay_alone(self.stacks[twin])
        assert config is not None
        assert config.adaptive is not None
        assert config.window is not None
        [ruled] = switched({"": [one]}, config.adaptive, config.window[1])[""]
        return one if ruled is one else replace(ruled, blocks=self.search.subject.depth)

    def _trials(self, cell: SearchCell, groups: Sequence[Sequence[int]]) -> list[Trial]:
        """Those of one cell; the ordinary prediction comes with the first that looks at it."""
        key, sample = cell
        if (key, sample.image_id) in self._failed:
            return []
        known = (key, sample.image_id) in self._rows
        return [
            Trial(
                key,
                sample.position,
                sample.image_id,
                tuple(group),
                tuple(self.stacks[number] for number in group),
                ordinary=not (known or place),
                source=self.source,
            )
            for place, group in enumerate(groups)
        ]

    def _counted(self, trial: Trial) -> int:
        plain = self.search.schedule.plain if trial.ordinary else 0
        return len(trial.candidates) + plain

    def _take(self, trial: Trial, result: Mapping[str, Any]) -> None:
        cell = trial.condition, trial.image_id
        if "failed" in result:
            self.failures[f"{trial.condition}, image {trial.image_id}: {result['failed']}"] = None
            self._failed.add(cell)
            self._rows.pop(cell, None)
        if cell in self._failed:
            return
        self.predictions += self._counted(trial)
        for number, reason in result.get("refused", {}).items():
            self.refused.setdefault(int(number), reason)
        if trial.ordinary:
            self._rows[cell] = {
                "ordinary": result["ordinary"],
                "truth": result.get("truth"),
                "signals": result.get("signals"),
                "mitigated": {},
            }
        each = zip(trial.candidates, result["replayed"], result["blocks"], strict=True)
        self._rows[cell]["mitigated"].update(
            {number: (statistic, blocks) for number, statistic, blocks in each if statistic is not None}
        )
