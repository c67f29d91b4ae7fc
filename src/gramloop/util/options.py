"""Options: a dataclass is the source of a command's parser and help, and of the keywords of a function in Python.

A field made with `option` is an option, a field made with `group` holds the options of another dataclass. This module
imports nothing heavy, so that help is printed at once.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from gramloop.errors import GramLoopError, did_you_mean, then

_Kind = TypeVar("_Kind")
MANY = 10**9  # as a limit: any number


def option(
    help: str,
    default: Any = MISSING,
    *,
    metavar: str | None = None,
    positional: bool = False,
    several: bool = False,
    limits: tuple[float, float] | None = None,
    name: str = "",
) -> Any:
    """A field that is an option.

    Args:
        help: one line; a default that people should know is named there.
        default: without one, the option must be given.
        metavar: what stands for the value in the help.
        positional: on the command line it is given without its name.
        several: one option takes several values, as in ``--severity 1 3 5``.
        limits: least and most of a number.
        name: on the command line, where it is not that of the field.
    """
    about = {"help": help, "metavar": metavar, "positional": positional, "several": several, "limits": limits}
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata={**about, "name": name})
    return dataclasses.field(default=default, metadata={**about, "name": name})


def group(kind: type[Any], title: str) -> Any:
    """A field that holds the options of another dataclass, under a heading in the help."""
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

    def check(self, value: Any, label: str) -> None:
        """Refuse a number beyond the limits."""
        least, most = self.about["limits"] or (0, 0)
        for each in value if isinstance(value, list | tuple) else [value]:
            if most and each is not None and not least <= each <= most:
                bound = f"{least} or more" if most >= MANY else f"{least} to {most}"
                raise GramLoopError(f"{label} is {each}; it is {bound}")


def all_settings(options: type[Any], title: str | None = None) -> Iterator[Setting]:
    """The options of a dataclass, those of its groups among them; other fields are left out."""
    hints = typing.get_type_hints(options)
    for field in dataclasses.fields(options):
        if "group" in field.metadata:
            yield from all_settings(field.metadata["group"], field.metadata["title"])
        elif "help" in field.metadata:
            kind = hints[field.name]
            if typing.get_origin(kind) in (types.UnionType, typing.Union):  # with None
                kind = next(each for each in typing.get_args(kind) if each is not type(None))
            repeated = typing.get_origin(kind) in (list, Sequence)
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
    """The options of a dataclass by field, those of its groups among them."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if "group" in field.metadata:
            found |= flat_values(value)
        elif "help" in field.metadata:
            found[field.name] = value
    return found


def shared_values(options: Any, kind: type[Any]) -> dict[str, Any]:
    """The values of those fields that another dataclass has too."""
    return {field.name: getattr(options, field.name) for field in dataclasses.fields(kind)}


def check_limits(options: Any) -> None:
    """Refuse a number of a dataclass that is beyond its limits."""
    for setting in all_settings(type(options)):
        setting.check(getattr(options, setting.field), setting.field)


def build(options: type[_Kind], values: Mapping[str, Any]) -> _Kind:
    """The dataclass with these values by field, those of its groups among them."""
    found = {}
    for field in dataclasses.fields(options):  # type: ignore[arg-type]
        if "group" in field.metadata:
            found[field.name] = build(field.metadata["group"], values)
        elif field.name in values:
            found[field.name] = values[field.name]
    return options(**found)


def from_keywords(options: type[_Kind], values: Mapping[str, Any]) -> _Kind:
    """The dataclass from the keywords of a call; an unknown one is refused, and a number beyond its limits."""
    settings = {each.field: each for each in all_settings(options)}
    given = {}
    for name, value in values.items():
        if name not in settings:
            wrong = f"there is no option {name!r}{did_you_mean(name, settings)}"
            raise GramLoopError(then(wrong, f"there are {', '.join(settings)}"))
        settings[name].check(value, name)
        given[name] = Path(value) if settings[name].kind is Path and isinstance(value, str) else value
    return build(options, given)
