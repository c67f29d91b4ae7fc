"""The site's page of all commands with their options, made from the parsers themselves."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator

from gramloop.cli import COMMANDS, GROUPS, command_parser

_BEFORE = """# Commands

```
gramloop --help            # all commands in the order of a task
gramloop evaluate --help   # what one takes
```

This page is made from the commands' own help. [Command line](../appendix/command-line.md) covers options in files, JSON
for scripts and exit codes.
"""


def page() -> str:
    """The whole page."""
    parts = [_BEFORE]
    for title, names in GROUPS.items():
        there = [name for name in names if name in COMMANDS]
        if there:
            parts += [f"## {title}\n", *(command_part(name) for name in there)]
    return "\n".join(parts)


def command_part(name: str) -> str:
    """One command: what it is for, its options by group, examples, and the keys of its document."""
    parser, wanted = command_parser(name)
    lines = [f"### gramloop {name}\n", *_wrapped(parser.description or ""), "", f"`{parser.usage}`", ""]
    lines += [*_wrapped(wanted.details), "", "```", *wanted.examples, "```", ""]
    for group in parser._action_groups:
        rows = [row for action in group._group_actions if (row := _row(action))]
        if rows:
            lines += [f"| {_title(group.title)} | |", "| :-- | :-- |", *rows, ""]
    return "\n".join(lines)


def _title(title: str | None) -> str:
    return {"positional arguments": "arguments"}.get(title or "", title or "")


def _row(action: argparse.Action) -> str:
    if isinstance(action, argparse._HelpAction):
        return ""
    symbols = [action.metavar] if isinstance(action.metavar, str) else list(action.metavar or ())
    if not symbols and action.choices is not None:
        symbols = ["{" + ",".join(action.choices) + "}"]
    if not action.option_strings:
        shown = symbols[0] if symbols else action.dest
    elif action.nargs == 0:
        shown = action.option_strings[-1]
    else:
        shown = " ".join([action.option_strings[-1], *(symbols or [action.dest.upper()])])
    return f"| `{shown.replace('|', chr(92) + '|')}` | {_cell(action.help or '')} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("%%", "%")


def _wrapped(text: str) -> Iterator[str]:
    for paragraph in text.splitlines():
        yield from textwrap.wrap(_cell(paragraph), 116, break_on_hyphens=False) or [""]
