"""YAML that comes from outside: plain values alone, with the limits of `gramloop.io.json_files`, refused in one sentence.

Scalars are read as YAML 1.2 and JSON have them: ``no`` and ``on`` are texts, and ``1e-6`` is a number, which YAML 1.1
turns around. Anchors, tags, keys that are no texts and keys that stand twice are refused.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

import yaml  # type: ignore[import-untyped]

from gramloop.errors import GramLoopError
from gramloop.io.json_files import DEEPEST, LARGEST, read_bytes

_CORE = {
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
    "null": (r"~|null|Null|NULL|", "~nN\0"),
}  # YAML 1.2's kinds of plain scalars: what they look like, and with what they begin; "\0" is nothing at all


_Resolvers = dict[str, list[tuple[str, re.Pattern[str]]]]


def read_yaml(path: Path, what: str, *, largest: int = LARGEST) -> Any:
    """What a YAML file holds, as plain values.

    Args:
        path: the file.
        what: what it ought to be, as in "a file of settings".
        largest: bytes that it may have.
    """
    return parse_yaml(read_bytes(path, what, largest), str(path), what)


def parse_yaml(data: bytes, where: str, what: str) -> Any:
    """The same of bytes; ``where`` they stand is named in the refusal."""
    try:
        return yaml.load(data.decode(), _Loader)
    except _RefusedError as error:
        raise GramLoopError(f"{where} is not {what}: {error}") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = "" if mark is None else f", line {mark.line + 1}"
        said = " ".join(str(error.problem or error.context).split())
        raise GramLoopError(f"{where} is not {what}: it is not valid YAML ({said}{line})") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: no UTF-8, or a number of thousands of digits
        said = " ".join(str(error).split())
        raise GramLoopError(f"{where} is not {what}: it is not valid YAML ({said})") from error


def write_yaml(value: Any) -> str:
    """Plain values as text that `read_yaml` reads back as they were, in their order."""
    return str(
        yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False)
    )


class _RefusedError(GramLoopError):
    """Something that is valid YAML and not taken here."""


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    yaml_implicit_resolvers: ClassVar[_Resolvers] = {}
    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """A node that is no alias and no deeper than others, with no tag but those that plain values have."""
        event = self.peek_event()
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise _RefusedError(f"anchors (&) and aliases (*) are not taken, line {line}")
        if event.tag is not None:
            raise _RefusedError(f"the tag {event.tag} is not taken, line {line}")
        self._depth += 1
        if self._depth > DEEPEST:
            raise _RefusedError(f"its lists and objects are nested deeper than {DEEPEST}")
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[str, Any]:
        """Values by name, each name once."""
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key, line = self.construct_object(key_node, deep=True), key_node.start_mark.line + 1
            if not isinstance(key, str):
                raise _RefusedError(f"the key {key!r} is no text, line {line}")
            if key in found:
                raise _RefusedError(f"{key!r} stands there twice, line {line}")
            found[key] = self.construct_object(value_node, deep=True)
        return found


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    yaml_implicit_resolvers: ClassVar[_Resolvers] = {}

    def ignore_aliases(self, data: Any) -> bool:
        """Write the same value twice where it stands twice."""
        return True


def _quoted(dumper: Any, value: str) -> Any:
    odd = any(
        not letter.isprintable() for letter in value
    )  # YAML folds line breaks that are none elsewhere, as \x85
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style='"' if odd else None)


def _float_text(dumper: Any, value: float) -> Any:
    text = ".nan" if value != value else repr(value).replace("inf", ".inf")
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


for _kind, (_pattern, _first) in _CORE.items():
    for _class in (_Loader, _Dumper):
        for _letter in _first:
            _class.yaml_implicit_resolvers.setdefault("" if _letter == "\0" else _letter, []).append(
                (f"tag:yaml.org,2002:{_kind}", re.compile(f"(?:{_pattern})\\Z"))
            )
_Dumper.add_representer(float, _float_text)
_Dumper.add_representer(str, _quoted)
