"""Replay as a mitigation: a window of blocks run again, gated, before the rest of the backbone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from gramloop.errors import GramLoopError
from gramloop.mitigations.base import Mitigation, Stats
from gramloop.replay.config import FIELDS, ReplayConfig, parse_replay, read_replay, replay_text, split_setting
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
SUBSTEPS = "substeps"


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
        steps = self.config.substeps
        if steps is not None and self.config == _ungated(steps, self.config.window):
            window = "" if self.config.window is None else ",window={}-{}".format(*self.config.window)
            return f"{SUBSTEPS}:{steps}{window}"
        return next(known, f"{self.name}:{replay_text(self.config)}")

    def _table(self) -> Table:
        return self.config._table()

    def check(self, predictor: AnyPredictor, stack: Sequence[Mitigation], stats: Stats) -> None:
        check_replay(predictor, self.config)


def parse_substeps(arguments: str) -> Replay:
    """``substeps:3,window=2-2``: three steps of a third through a window, without a gate.

    Other settings of a replay, such as a gate, are given as ``replay:substeps=3,replays=1,…``.
    """
    steps, _, rest = arguments.partition(",")
    name, value = split_setting(rest)
    if not steps.isdecimal() or (rest and name != "window"):
        raise GramLoopError(
            f"substeps takes how many, and a window, such as substeps:3,window=2-2, not {arguments!r}"
        )
    window = FIELDS["window"].parse("window", value) if rest else None
    return Replay(_ungated(FIELDS["substeps"].parse("substeps", steps), window))


def _ungated(steps: object, window: object) -> ReplayConfig:
    return ReplayConfig.from_json({"window": window, "replays": 1, "gate": "none", "substeps": steps})
