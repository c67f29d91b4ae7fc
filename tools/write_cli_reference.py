"""Write docs/reference/commands.md: every command with its options and JSON keys, from the parsers themselves.

    python tools/write_cli_reference.py [--check]

With --check nothing is written, and the exit code is 1 where the page is not current.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from gramloop.cli import COMMANDS, GROUPS, command_parser
from gramloop.cli.output import ENVELOPE

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "commands.md"
_BEFORE = """# Commands

<!-- written by tools/write_cli_reference.py -->

```
gramloop --help            # all commands in the order of a task
gramloop evaluate --help   # what one takes
```

This page is made from the commands' own help. [The command line](../command-line.md) tells how to use it: settings
files, groups of conditions, JSON for scripts, exit codes.

Every document of `--json` begins with these keys. What follows is listed with each command; where a command was
refused, `error` holds the sentence instead.

| key | |
| :-- | :-- |
"""


def page() -> str:
    """The whole page."""
    parts = [_BEFORE + "".join(f"| `{key}` | {meaning} |\n" for key, meaning in ENVELOPE.items())]
    for title, names in GROUPS.items():
        there = [name for name in names if name in COMMANDS]
        if there:
            parts += [f"## {title}\n", *(command_part(name) for name in there)]
    return "\n".join(parts)


def command_part(name: str) -> str:
    """One command: what it is for, its options by group, examples, and the keys of its document."""
    parser, module = command_parser(name)
    said, _, examples = (parser.epilog or "").partition("\n\nExamples:\n")
    lines = [f"### gramloop {name}\n", *_wrapped(parser.description or ""), "", f"`{parser.usage}`", ""]
    if said.strip():
        lines += [*_wrapped(said.strip()), ""]
    if examples:
        lines += ["```", *(line.strip() for line in examples.splitlines()), "```", ""]
    for group in parser._action_groups:
        rows = [row for action in group._group_actions if (row := _row(action))]
        if rows:
            lines += [f"| {_title(group.title)} | |", "| :-- | :-- |", *rows, ""]
    if keys := getattr(module, "KEYS", None):
        rows = [f"| `{key}` | {_cell(meaning)} |" for key, meaning in keys.items()]
        lines += ["| `--json` | |", "| :-- | :-- |", *rows, ""]
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


def main() -> int:
    """Write the page, or tell whether it is current."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing, and tell whether the page is current"
    )
    if parser.parse_args().check:
        current = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page()
        print(f"{PAGE} is {'' if current else 'not '}current")
        return 0 if current else 1
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
