"""Options of a command from one dataclass: its parser, its help, and its settings file.

A field made with `option` is an option of the command line, a field made with `group` holds the options of another
dataclass under a heading. Types say how values are read: ``bool`` is a flag, ``list[...]`` can be repeated, a
``Literal`` has choices. `parse` fills the dataclass from the command line, then from ``--config FILE``, then from the
defaults.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

from gramloop import __version__
from gramloop.errors import GramLoopError, did_you_mean, then

C = TypeVar("C")
COMMAND = "command"  # the key of a settings file that says which command it is for
WHAT = "a file of settings for gramloop"
LARGEST = 1 << 20  # bytes of a settings file
MANY = 10**9
_SUFFIXES = (".yaml", ".yml", ".json")
_ONE_CALL = ("config", "save_config", "quiet", "json", "dry_run", "status")  # not kept in a settings file


@dataclass(frozen=True)
class Extra:
    """What the type of a field does not say."""

    help: str
    metavar: str | None = None
    positional: bool = False
    several: bool = False  # one option takes several values: --severity 1 3 5
    values: int | None = None  # exactly so many: --window 21 23
    limits: tuple[int, int] | None = None  # least and most of a number
    name: str = ""  # of the option, where it is not that of the field


def option(help: str, default: Any = MISSING, *, metavar: str | None = None, **extra: Any) -> Any:
    """A field of a command's dataclass that is an option of the command line.

    Args:
        help: one line; a default that people should know is named there.
        default: without one, the option must be given.
        metavar: what stands for the value in the help.
        extra: the other fields of `Extra`.
    """
    metadata = {"option": Extra(help, metavar, **extra)}
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def group(kind: type[Any], title: str) -> Any:
    """A field of a command's dataclass that holds the options of another one, under a heading."""
    return dataclasses.field(metadata={"group": (kind, title)})


@dataclass(frozen=True)
class _Setting:
    """An option with everything that is known of it."""

    field: Field[Any]
    kind: Any  # the type of one value
    repeated: bool
    extra: Extra
    title: str | None

    @property
    def name(self) -> str:
        return (self.extra.name or self.field.name).replace("_", "-")

    @property
    def flag(self) -> bool:
        return self.kind is bool

    @property
    def required(self) -> bool:
        return self.field.default is MISSING and self.field.default_factory is MISSING

    @property
    def default(self) -> Any:
        if self.field.default_factory is not MISSING:
            return self.field.default_factory()
        return None if self.field.default is MISSING else self.field.default

    @property
    def choices(self) -> tuple[str, ...] | None:
        return typing.get_args(self.kind) if typing.get_origin(self.kind) is Literal else None

    @property
    def label(self) -> str:
        return self.extra.metavar or self.field.name.upper() if self.extra.positional else f"--{self.name}"


def settings_of(options: Any) -> tuple[_Setting, ...]:
    """The options of a dataclass, those of its groups among them."""
    return tuple(_settings(options, None))


def _settings(options: type[Any], title: str | None) -> Iterator[_Setting]:
    hints = typing.get_type_hints(options)
    for field in dataclasses.fields(options):
        if "group" in field.metadata:
            kind, heading = field.metadata["group"]
            yield from _settings(kind, heading)
            continue
        kind = hints[field.name]
        if isinstance(kind, types.UnionType):
            kind = next(each for each in typing.get_args(kind) if each is not type(None))
        repeated = typing.get_origin(kind) is list
        one = typing.get_args(kind)[0] if repeated else kind
        yield _Setting(field, one, repeated, field.metadata["option"], title)


@dataclass(frozen=True)
class CommonOptions:
    """What every command takes."""

    config: Path | None = option("options from a .yaml or .json; those given here win", None, metavar="FILE")
    save_config: Path | None = option("write the options of this call, for --config", None, metavar="FILE")
    quiet: bool = option("print nothing but errors", False)
    json: bool = option("print one JSON document, for scripts", False)


def default_of(options: type[Any], name: str) -> Any:
    """The default of an option of a dataclass."""
    return next(each.default for each in settings_of(options) if each.field.name == name)


def make_parser(command: str, summary: str, options: type[Any], epilog: str) -> Parser:
    """The parser of a command. Nothing has a default there: `parse` fills in what is not given."""
    parser = Parser(
        prog=f"gramloop {command}",
        description=summary,
        epilog=epilog,
        formatter_class=Formatter,
        argument_default=argparse.SUPPRESS,
    )
    groups: dict[str | None, Any] = {None: parser}
    common = [dataclasses.replace(each, title="settings and output") for each in settings_of(CommonOptions)]
    for setting in (*settings_of(options), *common):
        if setting.title not in groups:
            groups[setting.title] = parser.add_argument_group(setting.title)
        _add(groups[setting.title], setting)
    parser.usage = _usage(parser.prog, settings_of(options))
    return parser


def _add(target: Any, setting: _Setting) -> None:
    extra, known = setting.extra, {str: None, Path: Path, int: int, float: float}
    if setting.flag:
        flag = argparse.BooleanOptionalAction
        added = target.add_argument(
            f"--{setting.name}", dest=setting.field.name, action=flag, help=extra.help
        )
        added.shown = f"--no-{setting.name}" if setting.default else f"--{setting.name}"
        return
    more: dict[str, Any] = {"help": extra.help, "choices": setting.choices}
    if setting.choices is None:
        more |= {"type": known.get(setting.kind), "metavar": extra.metavar}
    if setting.extra.values:
        more |= {"nargs": setting.extra.values, "metavar": tuple((extra.metavar or "N").split())}
    if extra.positional:
        more |= {"nargs": "*" if setting.repeated else "?", "default": None}
        target.add_argument(setting.field.name, **more)
        return
    if setting.repeated and not extra.values:
        more |= {"action": "extend", "nargs": "+"} if extra.several else {"action": "append"}
    target.add_argument(f"--{setting.name}", dest=setting.field.name, **more)


def parse(parser: Parser, command: str, options: type[C], words: Sequence[str]) -> tuple[C, CommonOptions]:
    """The options of the words, then of the file that they name, then the defaults."""
    settings = {each.field.name: each for each in (*settings_of(options), *settings_of(CommonOptions))}
    given = {
        name: value
        for name, value in vars(parser.parse_args(list(words))).items()
        if not (settings[name].extra.positional and value in (None, []))
    }
    path = given.get("config")
    stored = {} if path is None else read_settings(path, command, settings)
    values = {**stored, **given}
    for setting in settings.values():
        name, value = setting.field.name, values.get(setting.field.name)
        if setting.required and value in (None, []):
            parser.error(f"{setting.label} is missing: {setting.extra.help}")
        if setting.extra.limits and value is not None:
            _check_limits(setting, value)
        values.setdefault(name, setting.default)
    return _build(options, values), _build(CommonOptions, values)


def _build(options: type[C], values: Mapping[str, Any]) -> C:
    found = {}
    for field in dataclasses.fields(options):  # type: ignore[arg-type]
        inner = field.metadata.get("group")
        found[field.name] = _build(inner[0], values) if inner else values[field.name]
    return options(**found)


def _check_limits(setting: _Setting, value: Any) -> None:
    assert setting.extra.limits is not None
    least, most = setting.extra.limits
    for each in value if isinstance(value, list) else [value]:
        if not least <= each <= most:
            bound = f"{least} or more" if most >= MANY else f"{least} to {most}"
            raise GramLoopError(f"{setting.label} is {each}; it is {bound}")


def read_settings(path: Path, command: str, settings: Mapping[str, _Setting]) -> dict[str, Any]:
    """The values of a settings file, by field."""
    content = _content(path)
    if content.get(COMMAND, command) != command:
        raise GramLoopError(f"{path} is for gramloop {content[COMMAND]}, not for gramloop {command}")
    known = {
        each.name: each for each in settings.values() if each.field.name not in ("config", "save_config")
    }
    found: dict[str, Any] = {}
    for key, value in content.items():
        name = str(key).replace("_", "-")
        if key == COMMAND:
            continue
        if name not in known:
            wrong = f"{path}: gramloop {command} has no option {key!r}{did_you_mean(name, known)}"
            raise GramLoopError(then(wrong, f"it has {', '.join(sorted(known))}"))
        field = known[name].field.name
        if field in found:
            raise GramLoopError(f"{path}: {name} is given twice, with - and with _")
        found[field] = _checked(known[name], value, f"{path}: {key}")
    return found


def _content(path: Path) -> dict[str, Any]:
    check_suffix(path)
    if path.suffix == ".json":
        from gramloop.util.json_files import parse_json, read_bytes

        content = parse_json(read_bytes(path, WHAT, LARGEST), str(path), WHAT, unique=True)
    else:
        from gramloop.util.yaml_files import read_yaml

        content = read_yaml(path, WHAT, largest=LARGEST)
    if not isinstance(content, dict):
        raise GramLoopError(f"{path} is not {WHAT}: it holds no values by name, such as suite: scenes-c")
    return content


def _checked(setting: _Setting, value: Any, where: str) -> Any:
    """A value of a settings file as the option would have it."""
    import msgspec

    if value is None:
        raise GramLoopError(f"{where} is empty; leave it out to get the default")
    kind = str if setting.kind is Path else setting.kind
    values = value if isinstance(value, list) else [value]
    if isinstance(value, list) and not setting.repeated:
        raise GramLoopError(f"{where} is a list; it is one value")
    if setting.extra.values and len(values) != setting.extra.values:
        raise GramLoopError(f"{where} has {len(values)} values; it has {setting.extra.values}")
    if setting.repeated and setting.required and not values:
        raise GramLoopError(f"{where} is an empty list; it has one value or more")
    found = []
    for place, each in enumerate(values):
        at = f"{where}[{place}]" if isinstance(value, list) else where
        if setting.choices is not None and each not in setting.choices:
            raise GramLoopError(f"{at} is {each!r}; it is one of {', '.join(setting.choices)}")
        try:
            found.append(msgspec.convert(each, kind))
        except msgspec.ValidationError as error:
            raise GramLoopError(f"{at}: {str(error)[:1].lower()}{str(error)[1:]}") from error
    made = [Path(each) for each in found] if setting.kind is Path else found
    return made if setting.repeated else made[0]


def check_suffix(path: Path) -> None:
    """Refuse a settings file of another kind."""
    if path.suffix not in _SUFFIXES:
        raise GramLoopError(f"{path} is not {WHAT}: its name ends with {', '.join(_SUFFIXES)}")


def check_target(path: Path) -> None:
    """Refuse a settings file that cannot be written, before any work is done."""
    check_suffix(path)
    if not path.parent.is_dir() or path.is_dir():
        raise GramLoopError(f"--save-config {path}: {path.parent} is no folder that could hold this file")


def save_settings(path: Path, command: str, options: Any) -> None:
    """Write the options of a call that are not the defaults; ``--config FILE`` is that call again."""
    from gramloop.util.files import atomic_write

    content: dict[str, Any] = {COMMAND: command}
    values = _flat(options)
    for setting in settings_of(type(options)):
        value = values[setting.field.name]
        if value != setting.default and setting.field.name not in _ONE_CALL:
            content[setting.name] = _plain(value)
    if path.suffix == ".json":
        text = json.dumps(content, indent=2) + "\n"
    else:
        from gramloop.util.yaml_files import write_yaml

        text = f"# gramloop {__version__}: gramloop {command} --config {path.name}\n{write_yaml(content)}"
    atomic_write(path, text.encode())


def _flat(options: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        found |= _flat(value) if "group" in field.metadata else {field.name: value}
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value


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


def _usage(prog: str, settings: Iterable[_Setting]) -> str:
    """What has to be given; everything else is in the groups below."""
    words = [prog]
    for each in settings:
        metavar = each.extra.metavar or each.field.name.upper()
        if each.extra.positional:
            many = f"{metavar} [{metavar} ...]" if each.repeated else metavar
            words.append(many if each.required else f"[{many}]")
        elif each.required:
            words.append(f"--{each.name} {metavar}")
    return " ".join([*words, "[options]"])
