"""Help as it is read: commands in the order of a task, paragraphs wrapped, examples as they are typed."""

from __future__ import annotations

import argparse
import difflib
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn


class Formatter(argparse.HelpFormatter):
    """Wraps paragraphs of a description, and keeps indented lines as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = [
            line
            if line.startswith("  ")
            else textwrap.fill(line, width, initial_indent=indent, subsequent_indent=indent)
            for line in text.splitlines()
        ]
        return "\n".join(lines)


class Parser(argparse.ArgumentParser):
    """A parser that knows what was probably meant."""

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        """As everywhere; what is not known is told with the option that it looks like."""
        found, unknown = super().parse_known_args(args, namespace)
        wrong = next((word for word in unknown if word.startswith("-")), None)
        if wrong is not None:
            options = [text for action in self._actions for text in action.option_strings]
            self.error(f"there is no option {wrong.partition('=')[0]}{meant(wrong, options)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """One sentence, and where to read on."""
        self.exit(2, f"{self.prog}: {then(message, f'{self.prog} --help tells what there is')}\n")


def meant(word: str, known: Iterable[str]) -> str:
    """The known word that a wrong one looks like, as the end of a sentence, or nothing."""
    close = difflib.get_close_matches(word.partition("=")[0], list(known), n=1, cutoff=0.7)
    return f"; did you mean {close[0]}?" if close else ""


def then(sentence: str, more: str) -> str:
    """A sentence and what follows it, which may have ended with a question."""
    return f"{sentence}{' ' if sentence.endswith('?') else '; '}{more}"


def short_usage(parser: argparse.ArgumentParser) -> str:
    """What has to be given; everything else is in the groups below."""
    words = [parser.prog]
    for action in parser._actions:
        shown = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
        if not action.option_strings:
            many = {"+": f"{shown} [{shown} ...]", "*": f"[{shown} ...]", "?": f"[{shown}]"}
            words.append(many.get(str(action.nargs), shown))
        elif action.required:
            words.append(f"{action.option_strings[-1]} {shown}")
    return " ".join([*words, "[options]"])


def make_parser(prog: str, summary: str) -> Parser:
    """A parser without arguments."""
    return Parser(prog=prog, description=summary, formatter_class=Formatter)


def commands_text(groups: Mapping[str, Sequence[str]], commands: Mapping[str, str]) -> str:
    """All commands with a line each, group by group."""
    width = max(map(len, commands))
    lines = []
    for title, names in groups.items():
        there = [f"  {name:{width}}  {commands[name]}" for name in names if name in commands]
        lines += ["", f"{title}:", *there] if there else []
    return "\n".join(lines)


def examples(*lines: str) -> str:
    """The end of an epilog: commands that can be typed."""
    return "\n\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def add_option(
    group: argparse._ActionsContainer, settings: type, name: str, symbol: str, meaning: str
) -> None:
    """An option for a number of a dataclass, with its type and its default."""
    default = getattr(settings, name)
    group.add_argument(
        f"--{name.replace('_', '-')}",
        type=type(default),
        default=default,
        metavar=symbol,
        help=meaning + default_words(default),
    )


def default_words(default: object) -> str:
    """A default as the end of a help line; nothing where there is none."""
    if default is None:
        return ""
    return f" ({default:g})" if isinstance(default, float) else f" ({default})"
