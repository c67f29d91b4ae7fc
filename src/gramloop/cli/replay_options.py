"""The options that describe a replay, in the same words for every command."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from gramloop.core.config import ReplayConfig
from gramloop.errors import GramLoopError


def add_replay_options(group: argparse._ArgumentGroup) -> None:
    """Add them to a group; what is not given stays None, so that a command has its own defaults."""
    group.add_argument(
        "--replay", metavar="FILE", help="settings as gramloop tune writes them; single options override"
    )
    group.add_argument("--window", type=int, nargs=2, metavar=("FIRST", "LAST"), help="blocks to replay")
    group.add_argument("--replays", type=int, metavar="K", help="how often (2)")
    group.add_argument("--gate", choices=("gram", "uniform", "none"))
    group.add_argument("--strength", metavar="S", help='0 to 1, or "matched" (1)')
    group.add_argument("--gate-at", metavar="WHERE", help="final (the default), end, or a block's index")
    group.add_argument("--update-at", choices=("end", "final"))
    group.add_argument(
        "--until", type=int, metavar="BLOCK", help="the last block that shows the replay (the last of all)"
    )
    group.add_argument(
        "--trust", type=float, metavar="DRIFT", help="shrink proposals with a larger median drift"
    )


def replay_of(args: argparse.Namespace, base: ReplayConfig | None = None) -> ReplayConfig:
    """The replay that the options describe; what they leave open is as in their file, or as in ``base``."""
    if args.replay is not None:
        from gramloop.core.settings import read_replay

        base = read_replay(args.replay)
    given: dict[str, Any] = {
        "window": tuple(args.window) if args.window else None,
        "replays": args.replays,
        "gate": args.gate,
        "strength": _strength(args.strength),
        "gate_at": _gate_at(args.gate_at),
        "update_at": args.update_at,
        "until": args.until,
        "trust": args.trust,
    }
    return replace(
        base or ReplayConfig(), **{name: value for name, value in given.items() if value is not None}
    )


def _strength(text: str | None) -> Any:
    if text is None or text == "matched":
        return text
    try:
        return float(text)
    except ValueError:
        raise GramLoopError(f'--strength is a number from 0 to 1 or "matched", not {text!r}') from None


def _gate_at(text: str | None) -> Any:
    return int(text) if text is not None and text.isdecimal() else text
