"""YAML from outside: plain values only, with the limits of `gramloop.util.json_files`, refused with one message.

Scalars are read as YAML 1.2 and JSON have them: ``no`` and ``on`` are texts and ``1e-6`` is a number, which YAML 1.1
reverses. Anchors, tags, keys that are not texts and keys that occur twice are refused.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

import yaml  # type: ignore[import-untyped]

from gramloop.errors import GramLoopError
from gramloop.util.json_files import LARGEST_FILE, read_bytes

MOST_NESTED = 100  # nested lists and objects

_SCALARS = {  # YAML 1.2's plain scalars: their pattern, and the letters they begin with
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
}
_Resolvers = dict[str, list[tuple[str, re.Pattern[str]]]]
_RESOLVERS: _Resolvers = {}
for _kind, (_pattern, _letters) in _SCALARS.items():
    for _letter in _letters:
        _entry = (f"tag:yaml.org,2002:{_kind}", re.compile(f"(?:{_pattern})\\Z"))
        _RESOLVERS.setdefault(_letter, []).append(_entry)


def read_yaml(path: Path, what: str, *, largest: int = LARGEST_FILE) -> Any:
    """Read a YAML file as plain values.

    Args:
        path: the file.
        what: what it ought to be, as in "a file of settings".
        largest: bytes that it may have.
    """
    return parse_yaml(read_bytes(path, what, largest), str(path), what)


def parse_yaml(data: bytes, where: str, what: str) -> Any:
    """Parse YAML from bytes; ``where`` names them in messages."""
    try:
        return yaml.load(data.decode(), _Loader)
    except _RefusedError as error:
        raise GramLoopError(f"{where} is not {what}: {error}") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: not UTF-8, or a number of thousands of digits
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        line = "" if mark is None else f", line {mark.line + 1}"
        reason = getattr(error, "problem", None) or getattr(error, "context", None) or error
        text = " ".join(str(reason).split())
        raise GramLoopError(f"{where} is not {what}: it is not valid YAML ({text}{line})") from error


def write_yaml(value: Any) -> str:
    """Plain values as text that `read_yaml` reads back unchanged, in their order."""
    options = {"sort_keys": False, "allow_unicode": True, "default_flow_style": False}
    return str(yaml.dump(value, Dumper=_Dumper, **options))


class _RefusedError(GramLoopError):
    """Valid YAML that is not accepted here."""


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    yaml_implicit_resolvers: ClassVar[_Resolvers] = _RESOLVERS
    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise _RefusedError(f"anchors (&) and aliases (*) are not accepted, line {line}")
        if event.tag is not None:
            raise _RefusedError(f"the tag {event.tag} is not accepted, line {line}")
        self._depth += 1
        if self._depth > MOST_NESTED:
            raise _RefusedError(f"its lists and objects are nested deeper than {MOST_NESTED}")
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key, line = self.construct_object(key_node, deep=True), key_node.start_mark.line + 1
            if not isinstance(key, str):
                raise _RefusedError(f"the key {key!r} is not a text, line {line}")
            if key in found:
                raise _RefusedError(f"{key!r} occurs twice, line {line}")
            found[key] = self.construct_object(value_node, deep=True)
        return found


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    yaml_implicit_resolvers: ClassVar[_Resolvers] = _RESOLVERS

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: Any, value: str) -> Any:
    odd = any(not letter.isprintable() for letter in value)  # YAML folds line breaks such as \x85
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style='"' if odd else None)


def _represent_float(dumper: Any, value: float) -> Any:
    text = ".nan" if value != value else repr(value).replace("inf", ".inf")
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


_Dumper.add_representer(float, _represent_float)
_Dumper.add_representer(str, _represent_text)
