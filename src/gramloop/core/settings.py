"""Replay settings as a file: what `gramloop tune` writes, and what attach, evaluate and predict take."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gramloop.core.config import ReplayConfig
from gramloop.errors import GramLoopError
from gramloop.io.atomic import atomic_write

KIND = "gramloop replay"


def read_replay(path: str | Path) -> ReplayConfig:
    """The replay of a settings file."""
    return read_settings(path)[0]


def read_settings(path: str | Path) -> tuple[ReplayConfig, Mapping[str, Any]]:
    """The replay of a settings file, and what the file tells about how it was found."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise GramLoopError(f"cannot read the replay settings {path}: {error.strerror}") from error
    except ValueError as error:
        raise GramLoopError(f"{path} is not JSON, so it holds no replay settings ({error})") from error
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise GramLoopError(f'{path} holds no replay settings; such a file says "kind": "{KIND}"')
    try:
        return ReplayConfig.from_json(content.get("replay", {})), content.get("about", {})
    except GramLoopError as error:
        raise GramLoopError(f"{path}: {error}") from error


def write_replay(path: str | Path, config: ReplayConfig, about: Mapping[str, Any] | None = None) -> None:
    """Store a replay with what is known about it (plain JSON values), whole or not at all."""
    content = {"kind": KIND, "replay": config.as_json(), "about": dict(about or {})}
    atomic_write(Path(path), (json.dumps(content, indent=1) + "\n").encode())
