"""Several mitigations together, as text and as a file.

Stages act in the order pixels → backbone → features → outputs, whatever the order written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from gramloop.errors import GramLoopError, did_you_mean, then
from gramloop.mitigations.base import STAGES, Mitigation, Stats
from gramloop.mitigations.calibration import CalibrationStats, read_stats
from gramloop.mitigations.features import Norms, Recentre
from gramloop.mitigations.views import (
    Denoise,
    Flip,
    Gaussian,
    Levels,
    Median,
    Nlm,
    PairMean,
    Resize,
    Scales,
    Sharpen,
)
from gramloop.replay.config import (
    KIND,
    MITIGATIONS_KIND,
    ReplayConfig,
    parse_replay,
    read_content,
    read_replay,
    replay_text,
)
from gramloop.tasks.predictor import AnyPredictor, check_replay
from gramloop.util.files import atomic_write, file_digest

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

    def check(self, predictor: AnyPredictor, stack: Sequence[Mitigation], stats: Stats) -> None:
        check_replay(predictor, self.config)


Stack = tuple[Mitigation, ...]
Mitigations = str | Path | ReplayConfig | Mitigation | Sequence[Mitigation]
_PIXELS = (Median, Gaussian, Nlm, Denoise, Levels, Sharpen)
_OTHERS = (Replay, Recentre, Norms, Scales, Resize, Flip, PairMean)
KINDS: Mapping[str, type[Mitigation]] = {kind.name: kind for kind in (*_PIXELS, *_OTHERS)}


def parse_mitigations(text: str) -> Stack:
    """Read ``recentre:0.3``, or several joined by a plus, ``median+recentre:0.3+gramloop``."""
    return ordered([_parse_one(part.strip()) for part in text.split("+")])


def stack_text(stack: Sequence[Mitigation]) -> str:
    """What `parse_mitigations` reads back."""
    return "+".join(each.text for each in stack)


def names_mitigations(text: str) -> bool:
    """Whether every part of a text begins with the name of a mitigation."""
    return all(part.strip().partition(":")[0] in {*KINDS, *REPLAYS} for part in text.split("+"))


def ordered(stack: Sequence[Mitigation]) -> Stack:
    """By stage, and within one as written, `pair` first; refuses two of one kind."""
    for index, each in enumerate(stack):
        if any(type(each) is type(other) for other in stack[:index]):
            raise GramLoopError(f"{each.name} is given twice in {stack_text(stack)!r}")
    return tuple(sorted(stack, key=lambda each: (STAGES.index(each.stage), not isinstance(each, PairMean))))


def _parse_one(text: str) -> Mitigation:
    name, colon, arguments = text.partition(":")
    if name in REPLAYS:
        if colon:
            raise GramLoopError(f"the settings of {name} are fixed; give others as replay:{arguments}")
        return Replay(REPLAYS[name])
    if name not in KINDS:
        known = ", ".join(KINDS)
        wrong = f"there is no mitigation {name!r}{did_you_mean(name, [*KINDS, *REPLAYS])}"
        raise GramLoopError(then(wrong, f"there are {known}, and the replays {', '.join(REPLAYS)}"))
    return KINDS[name].parse(arguments)


def read_mitigations(path: str | Path) -> tuple[Stack, Path | None]:
    """Read a file that `gramloop tune` wrote, also one of a replay alone.

    Returns:
        The mitigations, none for the baseline; and the file of calibration statistics that belongs to them, checked.
    """
    content = read_content(path)
    try:
        calibration, stack = _checked_file(Path(path), content.get("calibration")), stack_from_json(content)
    except GramLoopError as error:
        raise GramLoopError(f"{path}: {error}") from error
    if not stack:
        raise GramLoopError(f"{path} holds neither a replay nor other mitigations")
    replay = replay_alone(stack)
    return () if replay is not None and not replay.replays else stack, calibration


def write_mitigations(
    path: str | Path,
    stack: Sequence[Mitigation],
    calibration: str | Path | None = None,
    about: Mapping[str, Any] | None = None,
) -> None:
    """Store mitigations, whole or not at all; a replay alone becomes a file that `gramloop.attach` takes.

    Args:
        path: the file.
        stack: the mitigations.
        calibration: the file of calibration statistics that they need, in the same folder.
        about: what is known about them, as plain JSON values.
    """
    written = stack or (Replay(ReplayConfig(replays=0)),)
    kind = MITIGATIONS_KIND if replay_alone(written) is None else KIND
    content: dict[str, Any] = {"kind": kind, **stack_json(written)}
    if calibration is not None:
        content["calibration"] = {"file": Path(calibration).name, "sha256": file_digest(Path(calibration))}
    content["about"] = dict(about or {})
    atomic_write(Path(path), (json.dumps(content, indent=1) + "\n").encode())


def stack_json(stack: Sequence[Mitigation]) -> dict[str, Any]:
    """Plain values for plans and files: the text, and a replay's settings in full."""
    text = stack_text([each for each in stack if not isinstance(each, Replay)])
    config = replay_of(stack)
    replay = {} if config is None else {"replay": config.as_json()}
    return {**({"mitigations": text} if text else {}), **replay}


def stack_from_json(settings: Mapping[str, Any]) -> Stack:
    """What `stack_json` wrote."""
    text = settings.get("mitigations", "")
    if not isinstance(text, str):
        raise GramLoopError(f"mitigations is {text!r}; it is a text such as recentre:0.3")
    replays = [Replay(ReplayConfig.from_json(settings["replay"]))] if "replay" in settings else []
    return ordered([*(parse_mitigations(text) if text else ()), *replays])


def _checked_file(path: Path, entry: object) -> Path | None:
    """The calibration file that a settings file at ``path`` names, if it is still the same."""
    if entry is None:
        return None
    if not isinstance(entry, dict) or not isinstance(entry.get("file"), str):
        raise GramLoopError(f'calibration is {entry!r}; it is {{"file": …, "sha256": …}}')
    found = path.parent / str(entry["file"])
    if file_digest(found) != entry.get("sha256"):
        raise GramLoopError(f"{found} is not the file that these mitigations were measured with")
    return found


def replay_of(stack: Sequence[Mitigation]) -> ReplayConfig | None:
    """The replay among the mitigations, if there is one."""
    return next((each.config for each in stack if isinstance(each, Replay)), None)


def replay_alone(stack: Sequence[Mitigation]) -> ReplayConfig | None:
    """The replay, if the stack holds nothing else."""
    return replay_of(stack) if len(stack) == 1 else None


def stack_scales(stack: Sequence[Mitigation]) -> list[float]:
    """One entry per forward pass over an image: its scale relative to the usual input size."""
    scales = [1.0]
    for each in stack:
        scales = [scale * factor for scale in scales for factor in each.scales]
    return scales


def read_stack(
    mitigations: Mitigations, stats: CalibrationStats | str | Path | None = None
) -> tuple[Stack, CalibrationStats | None]:
    """A text, a file of `gramloop tune`, a replay or mitigations as a stack; a file brings its own statistics."""
    known = read_stats(stats)
    if isinstance(mitigations, ReplayConfig):
        mitigations = Replay(mitigations)
    if isinstance(mitigations, Mitigation):
        mitigations = (mitigations,)
    if not isinstance(mitigations, str | Path):
        return ordered(mitigations), known
    text = str(mitigations)
    if isinstance(mitigations, Path) or (text.endswith(".json") and not names_mitigations(text)):
        stack, file = read_mitigations(text)
        return stack, known or read_stats(file)
    return parse_mitigations(text), known
