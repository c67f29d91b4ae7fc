"""Replay as a mitigation: a window of blocks run again, gated, before the rest of the backbone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from gramloop.mitigations.base import Mitigation, Stats
from gramloop.replay.config import ReplayConfig, parse_replay, read_replay, replay_text
from gramloop.tasks.predictor import AnyPredictor, check_replay
from gramloop.util.table import Table

REPLAYS: Mapping[str, ReplayConfig] = {
    "gramloop": ReplayConfig(),
    "ungated": ReplayConfig(gate="none"),
    "uniform": ReplayConfig(gate="uniform", strength=0.5),
    "matched": ReplayConfig(gate="uniform", strength="matched"),
    "loop-loop": ReplayConfig(gate_at="end"),
    "final-final": ReplayConfig(update_at="final"),
}
"""The replays that have a name."""


@dataclass(frozen=True)
class Replay(Mitigation):
    """A window of blocks that runs again with the settings of its configuration."""

    config: ReplayConfig = field(default_factory=ReplayConfig)

    name = "replay"
    stage = "backbone"

    @classmethod
    def parse(cls, arguments: str) -> Self:
        return cls(read_replay(arguments) if arguments.endswith(".json") else parse_replay(arguments))

    @property
    def text(self) -> str:
        """Its name in `REPLAYS`, or its settings."""
        known = (name for name, config in REPLAYS.items() if config == self.config)
        return next(known, f"{self.name}:{replay_text(self.config)}")

    def _table(self) -> Table:
        return self.config._table()

    def check(self, predictor: AnyPredictor, stack: Sequence[Mitigation], stats: Stats) -> None:
        check_replay(predictor, self.config)
