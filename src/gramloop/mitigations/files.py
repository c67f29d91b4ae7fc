"""Mitigations as a file: what `gramloop tune` chose, with the statistics of ordinary images that they need.

A replay alone is a file of `gramloop.core.settings`, which attach takes. Anything more is of a kind of its own, so that
nobody takes the replay for the whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gramloop.core.config import ReplayConfig
from gramloop.core.settings import MITIGATIONS_KIND, read_content, read_replay, write_replay
from gramloop.core.source import checked_source
from gramloop.core.source import sha256_of as sha256_of
from gramloop.errors import GramLoopError
from gramloop.mitigations.mitigation import Mitigation
from gramloop.mitigations.replay import Replay
from gramloop.mitigations.source import Source, read_source
from gramloop.mitigations.texts import ordered, parse_mitigations, stack_text
from gramloop.util.files import atomic_write


@dataclass(frozen=True)
class StoredMitigations:
    """The mitigations of a file; without any, the plain model."""

    stack: tuple[Mitigation, ...]
    source: Path | None = None  # the file about ordinary images, checked

    def read_source(self) -> Source | None:
        """What ordinary images look like, where the file says so."""
        return None if self.source is None else read_source(self.source)


def read_mitigations(path: str | Path) -> StoredMitigations:
    """The mitigations of a file that `gramloop tune` wrote; one of a replay alone is read, too."""
    content = read_content(path)
    if content["kind"] != MITIGATIONS_KIND:
        config = read_replay(path)
        return StoredMitigations((Replay(config),) if config.replays else ())
    try:
        return StoredMitigations(stack_from_json(content), checked_source(Path(path), content.get("source")))
    except GramLoopError as error:
        raise GramLoopError(f"{path}: {error}") from error


def write_mitigations(
    path: str | Path,
    stack: Sequence[Mitigation],
    source: str | Path | None = None,
    about: Mapping[str, Any] | None = None,
) -> None:
    """Store mitigations with what is known about them, whole or not at all.

    Args:
        path: the file; a replay alone, and nothing at all, become one that attach takes.
        stack: the mitigations.
        source: the file about ordinary images that they need, in the same folder.
        about: plain JSON values.
    """
    config = replay_alone(stack) if stack else ReplayConfig(replays=0)
    if config is not None:
        write_replay(path, config, about)
        return
    content: dict[str, Any] = {"kind": MITIGATIONS_KIND, **stack_json(stack)}
    if source is not None:
        content["source"] = {"file": Path(source).name, "sha256": sha256_of(Path(source))}
    content["about"] = dict(about or {})
    atomic_write(Path(path), (json.dumps(content, indent=1) + "\n").encode())


def replay_alone(stack: Sequence[Mitigation]) -> ReplayConfig | None:
    """The replay, where there is nothing else."""
    first = stack[0] if len(stack) == 1 else None
    return first.config if isinstance(first, Replay) else None


def stack_json(stack: Sequence[Mitigation]) -> dict[str, Any]:
    """The text of mitigations, with a replay's settings beside it: plain values for plans and files."""
    text = stack_text([each for each in stack if not isinstance(each, Replay)])
    replays = [each.config.as_json() for each in stack if isinstance(each, Replay)]
    return {"mitigations": text, **({"replay": replays[0]} if replays else {})}


def stack_from_json(settings: Mapping[str, Any]) -> tuple[Mitigation, ...]:
    """What `stack_json` wrote."""
    text = settings.get("mitigations")
    if not isinstance(text, str):
        raise GramLoopError(f"the mitigations are a text such as recentre:0.3, not {text!r}")
    replays = [Replay(ReplayConfig.from_json(settings["replay"]))] if "replay" in settings else []
    return ordered([*(parse_mitigations(text) if text else ()), *replays])
