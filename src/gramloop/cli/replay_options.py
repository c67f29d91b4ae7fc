"""The options that describe a replay, in the same words for every command."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gramloop.core.config import FIELDS, ReplayConfig
from gramloop.core.settings import MITIGATIONS_KIND, read_content, read_replay
from gramloop.errors import GramLoopError

if TYPE_CHECKING:
    from gramloop.mitigations import StoredMitigations

# what stands for a value, and what it does; the default in brackets
_OPTIONS: dict[str, tuple[str, str | None]] = {
    "replays": ("K", "how often (2)"),
    "gate": ("{gram,uniform,none}", None),
    "strength": ("S", '0 to 1, or "matched" (1)'),
    "matched_to": ("S", 'strength of the Gram gate that "matched" follows (1)'),
    "gate_at": ("WHERE", "final (the default), end, or a block's index"),
    "update_at": ("{end,final}", None),
    "until": ("BLOCK", "the last block that shows the replay (the last of all)"),
    "substeps": ("K", "K steps of 1/K through the window in place of a second pass, with --replays 1"),
    "eps": ("DRIFT", "the smallest median drift that the gate divides by (1e-6)"),
    "trust": ("DRIFT", "shrink proposals with a larger median drift"),
    "adaptive": ("SIGNAL:OFF:FULL", "replay only where an image's signal says so, such as spread:0.2:0.3"),
}


def add_replay_options(group: argparse._ArgumentGroup) -> None:
    """Add them to a group; what is not given stays None, so that a command has its own defaults."""
    group.add_argument(
        "--replay",
        metavar="FILE",
        help="what gramloop tune wrote; single options override a replay's settings",
    )
    group.add_argument("--window", nargs=2, metavar=("FIRST", "LAST"), help="blocks to replay")
    for name, (value, meaning) in _OPTIONS.items():
        group.add_argument(f"--{name.replace('_', '-')}", metavar=value, help=meaning)


def replay_of(args: argparse.Namespace, base: ReplayConfig | None = None) -> ReplayConfig:
    """The replay that the options describe; what they leave open is as in their file, or as in ``base``."""
    if args.replay is not None:
        base = read_replay(args.replay)
    texts = {**vars(args), "window": args.window and "-".join(args.window)}
    given = {
        name: field.parse(name, texts[name]) for name, field in FIELDS.items() if texts[name] is not None
    }
    return ReplayConfig.from_json({**(base or ReplayConfig()).as_json(), **given})


def mitigations_of(args: argparse.Namespace) -> StoredMitigations | None:
    """The mitigations of the file, where it holds more than a replay."""
    if args.replay is None or read_content(args.replay)["kind"] != MITIGATIONS_KIND:
        return None
    if given := [name for name in FIELDS if getattr(args, name) is not None]:
        raise GramLoopError(
            f"--{given[0].replace('_', '-')} changes a replay, and {args.replay} holds more than one; leave it out"
        )
    from gramloop.mitigations import read_mitigations

    return read_mitigations(args.replay)
