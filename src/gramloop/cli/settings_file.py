"""``--config FILE``: a command's options in a file, YAML or JSON; and ``--save-config FILE``, which writes one.

Keys are the names of the command's options and arguments, with - or _. Values have the types that the options have,
lists where they can be repeated. What the command line gives wins, option by option.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from gramloop import __version__
from gramloop.cli.help import meant, then
from gramloop.errors import GramLoopError

WHAT = "a file of settings for gramloop"
COMMAND = "command"  # the key that says which command a file is for
LARGEST = 1 << 20  # bytes; options are few
_SUFFIXES = (".yaml", ".yml", ".json")
_NOT_KEPT = ("help", "config", "save_config", "quiet", "dry_run", "status")  # of a single call
_NOT_GIVEN = object()  # argparse would make a value of a text
_SCALARS = {None: str, str: str, Path: str, int: int, float: float}


def add_options(group: argparse._ArgumentGroup) -> None:
    """Add the two."""
    group.add_argument(
        "--config", type=Path, metavar="FILE", help="options from a .yaml or .json; those given here win"
    )
    group.add_argument(
        "--save-config", type=Path, metavar="FILE", help="write the options of this call, for --config"
    )


def parse(parser: argparse.ArgumentParser, command: str, words: Sequence[str]) -> argparse.Namespace:
    """The options of the words, then of the file that they name, then the defaults."""
    defaults = {action.dest: _default(action) for action in _settable(parser)}
    path = _named(words)
    settings = {} if path is None else _read(path, parser, command)
    undone = _undone(parser, settings, words)
    for action in _settable(parser):
        action.default = argparse.SUPPRESS if action.option_strings else _NOT_GIVEN
        if action.dest in settings:
            _relax(action)
    parsed = parser.parse_args([word for word in words if word not in undone])
    for name in [name for name, value in vars(parsed).items() if value is _NOT_GIVEN]:
        delattr(parsed, name)
    if getattr(parsed, "config", path) != path:  # an abbreviation that argparse knows, and nobody read
        raise GramLoopError(f"write --config {parsed.config} in full")
    from_file = {name: value for name, value in settings.items() if name not in undone.values()}
    for name, value in {**defaults, **from_file}.items():
        if not hasattr(parsed, name):
            setattr(parsed, name, value)
    parsed.given = {
        name: getattr(parsed, name) for name in defaults if getattr(parsed, name) != defaults[name]
    }
    return parsed


def check_target(path: Path) -> None:
    """Refuse a file that cannot be written, before any work is done."""
    _check_suffix(path)
    if not path.parent.is_dir() or path.is_dir():
        raise GramLoopError(f"--save-config {path}: {path.parent} is no folder that could hold this file")


def save(path: Path, parser: argparse.ArgumentParser, command: str, given: Mapping[str, Any]) -> None:
    """Write the options of a call; ``gramloop COMMAND --config FILE`` is that call again."""
    from gramloop.util.files import atomic_write

    content: dict[str, Any] = {COMMAND: command}
    for action in _settable(parser):
        if action.dest in given and not _belongs_to_one_call(action):
            content[_name(action)] = _kept(given[action.dest])
    if path.suffix == ".json":
        text = json.dumps(content, indent=2) + "\n"
    else:
        from gramloop.util.yaml_files import write_yaml

        text = f"# gramloop {__version__}: gramloop {command} --config {path.name}\n{write_yaml(content)}"
    atomic_write(path, text.encode())


def _settable(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if action.dest not in ("help", argparse.SUPPRESS)]


def _belongs_to_one_call(action: argparse.Action) -> bool:
    return action.dest in _NOT_KEPT or (action.dest == "json" and action.nargs == 0)


def _name(action: argparse.Action) -> str:
    """The key of an option: its first long name, or that of a positional argument."""
    long = [text for text in action.option_strings if text.startswith("--")]
    return (long[0][2:] if long else action.dest).replace("_", "-")


def _default(action: argparse.Action) -> Any:
    if action.default is None and action.nargs == argparse.ZERO_OR_MORE:
        return []
    if isinstance(action.default, str) and callable(action.type):
        return action.type(action.default)
    return list(action.default) if isinstance(action.default, list) else action.default


def _relax(action: argparse.Action) -> None:
    """What a file gives need not be given again."""
    action.required = False
    if not action.option_strings:
        action.nargs = argparse.ZERO_OR_MORE if action.nargs in ("+", "*") else argparse.OPTIONAL


def _named(words: Sequence[str]) -> Path | None:
    """The file that the words name."""
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    finder.add_argument("--config", type=Path)
    try:
        found: Path | None = finder.parse_known_args(list(words))[0].config
    except argparse.ArgumentError:  # without a file; the real parser says so
        return None
    return found


def _read(path: Path, parser: argparse.ArgumentParser, command: str) -> dict[str, Any]:
    """The values of a file, by their place in the namespace."""
    content = _content(path)
    _refuse_other_command(content, path, command)
    known = {
        _name(action): action for action in _settable(parser) if action.dest not in ("config", "save_config")
    }
    found: dict[str, Any] = {}
    for key, value in content.items():
        name = key.replace("_", "-")
        if key == COMMAND:
            continue
        if name not in known:
            said = f"{path}: gramloop {command} has no option {key!r}{meant(name, known)}"
            raise GramLoopError(then(said, f"it has {', '.join(sorted(known))}"))
        if known[name].dest in found:
            raise GramLoopError(f"{path}: {name} stands there twice, with - and with _")
        found[known[name].dest] = _value(known[name], value, path, key)
    return found


def _content(path: Path) -> dict[str, Any]:
    _check_suffix(path)
    if path.suffix == ".json":
        from gramloop.util.json_files import parse_json, read_bytes

        content = parse_json(read_bytes(path, WHAT, LARGEST), str(path), WHAT, unique=True)
    else:
        from gramloop.util.yaml_files import read_yaml

        content = read_yaml(path, WHAT, largest=LARGEST)
    if not isinstance(content, dict):
        raise GramLoopError(f"{path} is not {WHAT}: it holds no values by name, such as suite: scenes-c")
    return content


def _check_suffix(path: Path) -> None:
    if path.suffix not in _SUFFIXES:
        raise GramLoopError(f"{path} is not {WHAT}: its name ends with {', '.join(_SUFFIXES)}")


def _refuse_other_command(content: Mapping[str, Any], path: Path, command: str) -> None:
    other = content.get(COMMAND, command)
    if other != command:
        raise GramLoopError(f"{path} is for gramloop {other}, not for gramloop {command}")


def _value(action: argparse.Action, value: Any, path: Path, key: str) -> Any:
    """A value as the option would have it, or a sentence with the path of what is wrong."""
    from gramloop.util.json_files import checked

    where = f"{path}: {key}"
    if value is None:
        raise GramLoopError(f"{where} is empty; leave it out, and it has its default")
    if action.nargs == 0:
        return _checked(checked, value, bool, where)
    repeated = isinstance(action, argparse._AppendAction | argparse._ExtendAction)
    if not repeated and action.nargs in (None, argparse.OPTIONAL):
        return _scalar(action, value, where)
    values = value if isinstance(value, list) else [value]
    if isinstance(action.nargs, int) and len(values) != action.nargs:
        raise GramLoopError(f"{where} has {len(values)} values; it has {action.nargs}")
    if action.nargs == argparse.ONE_OR_MORE and not values:
        raise GramLoopError(f"{where} is an empty list; it has one value or more")
    return [_scalar(action, each, f"{where}[{place}]") for place, each in enumerate(values)]


def _scalar(action: argparse.Action, value: Any, where: str) -> Any:
    from gramloop.util.json_files import checked

    if action.choices is not None:
        return _checked(checked, value, Literal[tuple(action.choices)], where)
    if action.type in _SCALARS:
        found = _checked(checked, value, _SCALARS[action.type], where)
        return Path(found) if action.type is Path else found
    text = _checked(checked, value, int | float | str, where)
    try:
        return action.type(str(text)) if callable(action.type) else str(text)
    except (argparse.ArgumentTypeError, ValueError) as error:
        raise GramLoopError(f"{where}: {error}") from error


def _checked(check: Any, value: Any, kind: Any, where: str) -> Any:
    """The value, if it is of a kind; a choice is told with all of them."""
    try:
        return check(value, kind, where, "right")
    except GramLoopError as error:
        said = str(error).removeprefix(f"{where} is not right: ")
        if choices := get_args(kind) if getattr(kind, "__origin__", None) is Literal else ():
            raise GramLoopError(f"{where} is {value!r}; it is one of {', '.join(choices)}") from error
        raise GramLoopError(f"{where}: {said}") from error


def _undone(
    parser: argparse.ArgumentParser, settings: Mapping[str, Any], words: Sequence[str]
) -> dict[str, str]:
    """Words that take back a flag of the file, ``--no-verify`` for ``verify: true``, and what they take back."""
    taken = {text for action in parser._actions for text in action.option_strings}
    found = {}
    for action in _settable(parser):
        if action.nargs == 0 and settings.get(action.dest):
            name = _name(action)
            opposite = f"--{name[3:]}" if name.startswith("no-") else f"--no-{name}"
            if opposite in words and opposite not in taken:
                found[opposite] = action.dest
    return found


def _kept(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_kept(each) for each in value]
    return str(value) if isinstance(value, Path) else value
