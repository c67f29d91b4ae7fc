"""Replay settings as text, as a file and in words; `gramloop.core.config` checks them.

A text is a list such as ``window=5-7,eps=1e-6,until=none``. A file is what `gramloop tune` writes, and what attach,
evaluate and predict take.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

from gramloop.core.config import FIELDS, RULE, ReplayConfig, field_of
from gramloop.core.fields import shown
from gramloop.errors import GramLoopError
from gramloop.util.files import atomic_write
from gramloop.util.json_files import read_json

KIND = "gramloop replay"
_MARKS = {"window": "-", "adaptive": ":"}  # between the parts of a setting
MITIGATIONS_KIND = "gramloop mitigations"  # more than a replay alone; `gramloop.mitigations` reads it


def parse_replay(text: str) -> ReplayConfig:
    """The replay that a list of settings describes; what is not given is as published."""
    given: dict[str, object] = {}
    for part in text.split(",") if text else ():
        name, value = split_setting(part)
        if name in given:
            raise GramLoopError(f"{name} is given twice in {text!r}")
        given[name] = field_of(name).parse(name, value)
    return ReplayConfig.from_json(given)


def split_setting(text: str) -> tuple[str, str]:
    """The name and the value of ``NAME=VALUE``; a hyphen in the name is as good as an underscore."""
    name, _, value = text.partition("=")
    return name.strip().replace("-", "_"), value.strip()


def replay_text(config: ReplayConfig) -> str:
    """The settings that differ from the published ones, as `parse_replay` reads them."""
    return ",".join(f"{name}={_MARKS.get(name, '').join(parts)}" for name, parts in _unusual(config))


def said_setting(name: str, value: object) -> str:
    """One setting as `parse_replay` reads it."""
    return "none" if value is None else _MARKS.get(name, "").join(_parts(name, value))


def describe_replay(config: ReplayConfig) -> str:
    """A replay in a few words."""
    if not config.replays:
        return "no replay"
    start, end = config.window or (None, None)
    blocks = f"block {start}" if start == end else f"blocks {start} to {end}"
    often = {1: "once", 2: "twice"}.get(config.replays, f"{config.replays} times")
    if config.substeps is not None:
        often = f"in {config.substeps} steps of 1/{config.substeps}"
    words = [f"{blocks if config.window else 'the default window'} {often}", f"{config.gate} gate"]
    for name, parts in _unusual(config):
        if name == "adaptive":
            parts = [f"{part} {value}" for part, value in zip(RULE, parts, strict=True)]
        if name not in ("window", "replays", "gate", "substeps"):
            words.append(f"{name} {' '.join(parts)}")
    return ", ".join(words)


def read_replay(path: str | Path) -> ReplayConfig:
    """The replay of a settings file."""
    return read_settings(path)[0]


def read_settings(path: str | Path) -> tuple[ReplayConfig, Mapping[str, Any]]:
    """The replay of a settings file, and what the file tells about how it was found."""
    content = read_content(path)
    if content["kind"] == MITIGATIONS_KIND:
        raise GramLoopError(
            f"{path} holds more than a replay ({content.get('mitigations')}); gramloop.mitigations.apply(file, predictor), "
            "gramloop.mitigate(model, file) and gramloop evaluate --method NAME:FILE take it"
        )
    try:
        return ReplayConfig.from_json(content.get("replay")), content["about"]
    except GramLoopError as error:
        raise GramLoopError(f"{path}: {error}") from error


def read_content(path: str | Path) -> dict[str, Any]:
    """What a settings file of either kind holds."""
    content = read_json(Path(path), "a file of replay settings")
    if not isinstance(content, dict) or content.get("kind") not in (KIND, MITIGATIONS_KIND):
        raise GramLoopError(f'{path} holds no replay settings; such a file says "kind": "{KIND}"')
    about = content.setdefault("about", {})
    if not isinstance(about, dict):
        raise GramLoopError(
            f"{path}: about is {shown(about)}; it is an object, of what is known about the replay"
        )
    return content


def write_replay(path: str | Path, config: ReplayConfig, about: Mapping[str, Any] | None = None) -> None:
    """Store a replay with what is known about it (plain JSON values), whole or not at all."""
    content = {"kind": KIND, "replay": config.as_json(), "about": dict(about or {})}
    atomic_write(Path(path), (json.dumps(content, indent=1) + "\n").encode())


def _unusual(config: ReplayConfig) -> Iterator[tuple[str, list[str]]]:
    """The settings that are not as published, each in its parts."""
    for name in FIELDS:
        value = getattr(config, name)
        if value != getattr(ReplayConfig, name):
            yield name, _parts(name, value)


def _parts(name: str, value: Any) -> list[str]:
    parts = astuple(value) if name == "adaptive" else value if name == "window" else (value,)
    return [str(part) for part in parts]
