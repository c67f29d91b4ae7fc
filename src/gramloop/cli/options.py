"""A command and its options: the parser of a dataclass of options, and its help."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from gramloop.errors import did_you_mean, then
from gramloop.util.options import Setting, all_settings, build, option

_Kind = TypeVar("_Kind")
CommandResult = tuple[int, Mapping[str, Any]]  # the exit code, and the document of --json


@dataclass(frozen=True)
class Command:
    """What a command takes, does, and prints with ``--json``; ``details`` and ``examples`` end its help."""

    run: Callable[[Any], CommandResult]
    options: type[Any]
    details: str
    examples: tuple[str, ...]


def command(
    options: type[Any], details: str, examples: Sequence[str]
) -> Callable[[Callable[[Any], CommandResult]], Command]:
    """Make a function of its options a command."""
    return lambda run: Command(run, options, details, tuple(examples))


@dataclass(frozen=True)
class CommonOptions:
    """What every command takes."""

    quiet: bool = option("print nothing but errors", False)
    json: bool = option("print one JSON document, for scripts", False)


def make_parser(name: str, summary: str, wanted: Command) -> Parser:
    """The parser of a command."""
    settings = tuple(all_settings(wanted.options))
    examples = "\n".join(map(_folded, wanted.examples))
    parser = Parser(
        prog=f"gramloop {name}",
        usage=" ".join([f"gramloop {name}", *_required(settings), "[options]"]),
        description=summary,
        epilog=f"{wanted.details}\n\nExamples:\n{examples}",
        formatter_class=Formatter,
    )
    groups: dict[str | None, Any] = {None: parser}
    for setting in (*settings, *all_settings(CommonOptions, "output")):
        if setting.title not in groups:
            groups[setting.title] = parser.add_argument_group(setting.title)
        _add(groups[setting.title], setting)
    return parser


def _folded(example: str) -> str:
    """An example that fits 80 columns and can be pasted: an option and its value stay on one line."""
    kept = re.sub(r"(--[\w-]+) (?!-)", "\\1\0", example)
    lines = textwrap.wrap(kept, 76, break_long_words=False, break_on_hyphens=False)
    return "  " + " \\\n      ".join(lines).replace("\0", " ")


def _required(settings: Sequence[Setting]) -> Iterator[str]:
    """What has to be given, for the line of usage; everything else is in the groups below."""
    for each in settings:
        metavar = each.about["metavar"] or each.field.upper()
        if each.about["positional"]:
            many = f"{metavar} [{metavar} ...]" if each.repeated else metavar
            yield many if each.required else f"[{many}]"
        elif each.required:
            yield f"--{each.name} {metavar}"


def _add(target: Any, setting: Setting) -> None:
    about = setting.about
    given: dict[str, Any] = {"help": about["help"], "default": setting.default}
    if setting.kind is bool:  # what is typed is the opposite of the default
        word, action = ("--no-", "store_false") if setting.default else ("--", "store_true")
        target.add_argument(f"{word}{setting.name}", dest=setting.field, action=action, **given)
        return
    given |= {"type": setting.kind, "metavar": about["metavar"]} if setting.choices is None else {}
    given["choices"] = setting.choices
    if about["positional"]:
        many = "+" if setting.repeated else None
        target.add_argument(setting.field, nargs=many if setting.required else "?", **given)
        return
    if setting.repeated:
        given |= {"action": "extend", "nargs": "+"} if about["several"] else {"action": "append"}
    target.add_argument(f"--{setting.name}", dest=setting.field, required=setting.required, **given)


def parse(parser: Parser, options: type[_Kind], words: Sequence[str]) -> tuple[_Kind, CommonOptions]:
    """The options of the words."""
    values = vars(parser.parse_args(list(words)))
    for setting in all_settings(options):
        setting.check(values[setting.field], setting.label)
    return build(options, values), build(CommonOptions, values)


class Formatter(argparse.HelpFormatter):
    """Wraps paragraphs of a description, and keeps indented lines as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = (
            line if line.startswith("  ") else textwrap.fill(line, width, initial_indent=indent)
            for line in text.splitlines()
        )
        return "\n".join(lines)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line that suggests what was probably meant."""

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        """As in argparse; an unknown option is reported first, with the one that it looks like."""
        known = [text for action in self._actions for text in action.option_strings]
        for word in args:
            name = word.partition("=")[0]
            if name.startswith("--") and not any(each.startswith(name) for each in known):
                self.error(f"there is no option {name}{did_you_mean(name, known)}")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """One line, and where to read on."""
        self.exit(2, f"{self.prog}: {then(message, f'{self.prog} --help lists all options')}\n")
