"""Replay as a mitigation: a window of blocks run again, gated, before the rest of the backbone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from gramloop.core.config import ReplayConfig
from gramloop.core.settings import parse_replay, read_replay, replay_text
from gramloop.mitigations.mitigation import Mitigation
from gramloop.mitigations.source import Source
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor, check_replay

REPLAYS: Mapping[str, ReplayConfig] = {
    "gramloop": ReplayConfig(),
    "ungated": ReplayConfig(gate="none"),
    "uniform": ReplayConfig(gate="uniform", strength=0.5),
    "matched": ReplayConfig(gate="uniform", strength="matched"),
    "loop-loop": ReplayConfig(gate_at="end"),
    "final-final": ReplayConfig(update_at="final"),
}


@dataclass(frozen=True)
class Replay(Mitigation):
    """The replay of a configuration; what it costs is the configuration's own."""

    config: ReplayConfig = field(default_factory=ReplayConfig)

    name = "replay"
    stage = "backbone"

    @classmethod
    def parse(cls, arguments: str) -> Self:
        """``replay:window=2-2,replays=1`` with the settings of `ReplayConfig`, or ``replay:FILE.json``."""
        return cls(read_replay(arguments) if arguments.endswith(".json") else parse_replay(arguments))

    @property
    def text(self) -> str:
        """The name of the table, where it has one, or its settings."""
        known = (name for name, config in REPLAYS.items() if config == self.config)
        return next(known, f"{self.name}:{replay_text(self.config)}")

    def check(
        self, predictor: Predictor[Prediction], stack: Sequence[Mitigation], source: Source | None
    ) -> None:
        """It needs a place among the predictor's blocks."""
        check_replay(predictor, self.config)
