"""A command and its options: one dataclass is the source of its parser, its help and its settings file.

A field made with `option` is an option of the command line, a field made with `group` holds the options of another
dataclass under a heading. Types say how values are read: ``bool`` is a flag, ``list[...]`` can be repeated, a
``Literal`` has choices. `parse` fills the dataclass from the command line, then from ``--config FILE``, then from the
defaults.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

from gramloop.errors import GramLoopError, did_you_mean, then

_Kind = TypeVar("_Kind")
CommandResult = tuple[int, Mapping[str, Any]]  # the exit code, and the document of --json
MANY = 10**9  # as a limit: any number
SETTINGS = "a file of settings for gramloop"
_COMMAND_KEY = "command"  # of a settings file: the command that it is for
_ONE_CALL = ("dry_run", "status")  # not kept in a settings file


@dataclass(frozen=True)
class Command:
    """What a command takes, does, and prints with ``--json``; ``details`` and ``examples`` end its help."""

    run: Callable[[Any], CommandResult]
    options: type[Any]
    details: str
    examples: tuple[str, ...]
    keys: Mapping[str, str]


def command(
    options: type[Any], details: str, examples: Sequence[str], keys: Mapping[str, str]
) -> Callable[[Callable[[Any], CommandResult]], Command]:
    """Make a function of its options a command."""
    return lambda run: Command(run, options, details, tuple(examples), keys)


def option(
    help: str,
    default: Any = MISSING,
    *,
    metavar: str | None = None,
    positional: bool = False,
    several: bool = False,
    limits: tuple[int, int] | None = None,
    name: str = "",
) -> Any:
    """A field of a command's dataclass that is an option of the command line.

    Args:
        help: one line; a default that people should know is named there.
        default: without one, the option must be given.
        metavar: what stands for the value in the help.
        positional: it is given without its name.
        several: one option takes several values, as in ``--severity 1 3 5``.
        limits: least and most of a number.
        name: of the option, where it is not that of the field.
    """
    about = {"help": help, "metavar": metavar, "positional": positional, "several": several, "limits": limits}
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata={**about, "name": name})
    return dataclasses.field(default=default, metadata={**about, "name": name})


def group(kind: type[Any], title: str) -> Any:
    """A field of a command's dataclass that holds the options of another one, under a heading."""
    return dataclasses.field(default_factory=kind, metadata={"group": kind, "title": title})


@dataclass(frozen=True)
class Setting:
    """An option with what its field and type say."""

    field: str
    name: str
    kind: Any  # the type of one value
    repeated: bool
    required: bool
    default: Any
    about: Mapping[str, Any]  # the arguments of `option`
    title: str | None

    @property
    def label(self) -> str:
        """As it is typed."""
        positional = self.about["metavar"] or self.field.upper()
        return positional if self.about["positional"] else f"--{self.name}"

    @property
    def choices(self) -> tuple[str, ...] | None:
        """Its only values, if they are listed."""
        return typing.get_args(self.kind) if typing.get_origin(self.kind) is Literal else None

    def check(self, value: Any) -> None:
        """Refuse a number beyond the limits."""
        least, most = self.about["limits"] or (0, 0)
        for each in value if isinstance(value, list) else [value]:
            if most and not least <= each <= most:
                bound = f"{least} or more" if most >= MANY else f"{least} to {most}"
                raise GramLoopError(f"{self.label} is {each}; it is {bound}")


def all_settings(options: type[Any], title: str | None = None) -> Iterator[Setting]:
    """The options of a dataclass, those of its groups among them."""
    hints = typing.get_type_hints(options)
    for field in dataclasses.fields(options):
        if "group" in field.metadata:
            yield from all_settings(field.metadata["group"], field.metadata["title"])
            continue
        kind = hints[field.name]
        if typing.get_origin(kind) in (types.UnionType, typing.Union):  # with None
            kind = next(each for each in typing.get_args(kind) if each is not type(None))
        repeated = typing.get_origin(kind) is list
        factory = field.default_factory
        default = field.default if factory is MISSING else factory()
        yield Setting(
            field.name,
            (field.metadata["name"] or field.name).replace("_", "-"),
            typing.get_args(kind)[0] if repeated else kind,
            repeated,
            default is MISSING,
            None if default is MISSING else default,
            field.metadata,
            title,
        )


def flat_values(options: Any) -> dict[str, Any]:
    """The values of a dataclass of options by field, those of its groups among them."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        found |= flat_values(value) if "group" in field.metadata else {field.name: value}
    return found


@dataclass(frozen=True)
class CommonOptions:
    """What every command takes."""

    config: Path | None = option("options from a .yaml or .json; those given here win", None, metavar="FILE")
    save_config: Path | None = option("write the options of this call, for --config", None, metavar="FILE")
    quiet: bool = option("print nothing but errors", False)
    json: bool = option("print one JSON document, for scripts", False)


def make_parser(name: str, summary: str, wanted: Command) -> Parser:
    """The parser of a command. Nothing has a default there: `parse` fills in what is not given."""
    settings = tuple(all_settings(wanted.options))
    examples = "\n".join(map(_folded, wanted.examples))
    parser = Parser(
        prog=f"gramloop {name}",
        usage=" ".join([f"gramloop {name}", *_required(settings), "[options]"]),
        description=summary,
        epilog=f"{wanted.details}\n\nExamples:\n{examples}",
        formatter_class=Formatter,
        argument_default=argparse.SUPPRESS,
    )
    groups: dict[str | None, Any] = {None: parser}
    for setting in (*settings, *all_settings(CommonOptions, "settings and output")):
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
    about, given = setting.about, dict[str, Any]()
    if setting.kind is bool:
        flag = argparse.BooleanOptionalAction
        added = target.add_argument(f"--{setting.name}", dest=setting.field, action=flag, help=about["help"])
        added.shown = f"--no-{setting.name}" if setting.default else f"--{setting.name}"
        return
    if setting.choices is None:
        given = {"type": setting.kind, "metavar": about["metavar"]}
    given |= {"help": about["help"], "choices": setting.choices}
    if about["positional"]:
        target.add_argument(setting.field, nargs="*" if setting.repeated else "?", default=None, **given)
        return
    if setting.repeated:
        given |= {"action": "extend", "nargs": "+"} if about["several"] else {"action": "append"}
    target.add_argument(f"--{setting.name}", dest=setting.field, **given)


def parse(
    parser: Parser, name: str, options: type[_Kind], words: Sequence[str]
) -> tuple[_Kind, CommonOptions]:
    """The options of the words, then of the file that they name, then the defaults."""
    settings = {each.field: each for each in (*all_settings(options), *all_settings(CommonOptions))}
    typed = vars(parser.parse_args(list(words)))
    given = {field: value for field, value in typed.items() if value is not None and value != []}
    file = given.get("config")
    values = {**(_read_file(file, name, options) if file else {}), **given}
    for setting in settings.values():
        value = values.setdefault(setting.field, setting.default)
        if setting.required and value in (None, []):
            parser.error(f"{setting.label} is missing: {setting.about['help']}")
        if value is not None:
            setting.check(value)
    return _build(options, values), _build(CommonOptions, values)


def _build(options: type[_Kind], values: Mapping[str, Any]) -> _Kind:
    found = {}
    for field in dataclasses.fields(options):  # type: ignore[arg-type]
        inner = field.metadata.get("group")
        found[field.name] = _build(inner, values) if inner else values[field.name]
    return options(**found)


def _read_file(path: Path, name: str, options: type[Any]) -> dict[str, Any]:
    """The values of a settings file, by field."""
    import msgspec

    from gramloop.util.json_files import checked
    from gramloop.util.yaml_files import read_yaml

    content = read_yaml(path, SETTINGS)
    if not isinstance(content, dict):
        raise GramLoopError(f"{path} is not {SETTINGS}: it holds no values by name, such as suite: scenes-c")
    if content.pop(_COMMAND_KEY, name) != name:
        raise GramLoopError(f"{path} is for another command than gramloop {name}")
    settings = {each.name: each for each in all_settings(options)}
    fields: list[Any] = []
    for each in settings.values():
        if each.repeated and each.name in content and not isinstance(content[each.name], list):
            content[each.name] = [content[each.name]]
        kind = str if each.kind is Path else each.kind
        shape = list[kind] if each.repeated else kind  # type: ignore[valid-type]
        fields.append((each.field, shape | msgspec.UnsetType, msgspec.UNSET))
    renamed = {each.field: each.name for each in settings.values()}
    kind = msgspec.defstruct("Settings", fields, rename=renamed, forbid_unknown_fields=True)
    found = msgspec.to_builtins(checked(content, kind, str(path), SETTINGS))
    return {settings[key].field: _as_paths(settings[key], value) for key, value in found.items()}


def _as_paths(setting: Setting, value: Any) -> Any:
    if setting.kind is not Path:
        return value
    return [Path(each) for each in value] if setting.repeated else Path(value)


def save_settings(path: Path, name: str, options: Any) -> None:
    """Write the options of a call that are not the defaults; ``--config FILE`` is that call again."""
    import msgspec

    from gramloop.util.files import atomic_write
    from gramloop.util.yaml_files import write_yaml

    content: dict[str, Any] = {_COMMAND_KEY: name}
    values = flat_values(options)
    for setting in all_settings(type(options)):
        value = values[setting.field]
        if value != setting.default and setting.field not in _ONE_CALL:
            content[setting.name] = msgspec.to_builtins(value, enc_hook=str)
    text = f"# gramloop {name} --config {path.name}\n{write_yaml(content)}"
    atomic_write(path, text.encode())


class Formatter(argparse.HelpFormatter):
    """Wraps paragraphs of a description, and keeps indented lines as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = (
            line if line.startswith("  ") else textwrap.fill(line, width, initial_indent=indent)
            for line in text.splitlines()
        )
        return "\n".join(lines)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """Of a flag and its opposite, the one that changes something."""
        return getattr(action, "shown", None) or super()._format_action_invocation(action)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line that suggests what was probably meant."""

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        """As in argparse; an unknown option is reported with the one that it looks like."""
        found, unknown = super().parse_known_args(args, namespace)
        wrong = next((word for word in unknown if word.startswith("-")), None)
        if wrong is not None:
            known = [text for action in self._actions for text in action.option_strings]
            self.error(f"there is no option {wrong.partition('=')[0]}{did_you_mean(wrong, known)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """One line, and where to read on."""
        self.exit(2, f"{self.prog}: {then(message, f'{self.prog} --help lists all options')}\n")
