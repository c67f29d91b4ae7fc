"""The options that describe a replay, in the same words for every command."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gramloop.cli.help import default_words
from gramloop.errors import GramLoopError
from gramloop.replay.config import FIELDS, MITIGATIONS_KIND, ReplayConfig, read_content, read_replay

if TYPE_CHECKING:
    from gramloop.mitigations import StoredMitigations


def setting(text: str) -> str:
    """A value of a setting as text, which `Field.parse` reads; a file of settings may have a number there."""
    return text


def add_replay_options(group: argparse._ArgumentGroup) -> None:
    """Add an option for every setting; what is not given stays None, so that a command has its own defaults."""
    group.add_argument(
        "--replay",
        metavar="FILE",
        help="what gramloop tune wrote; single options override a replay's settings",
    )
    for name, field in FIELDS.items():
        symbols = tuple(field.symbol.split()) or ("{" + ",".join(field.words) + "}",)
        group.add_argument(
            f"--{name.replace('_', '-')}",
            type=setting,
            nargs=None if len(symbols) == 1 else len(symbols),
            metavar=symbols[0] if len(symbols) == 1 else symbols,
            help=field.meaning + default_words(getattr(ReplayConfig, name)),
        )


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
