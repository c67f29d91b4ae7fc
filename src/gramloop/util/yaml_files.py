"""YAML from outside: plain values, refused with one message."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from gramloop.errors import GramLoopError
from gramloop.util.json_files import read_bytes

_LARGEST = 1 << 20  # bytes


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Plain values alone; ``1e-6`` is a number, as in YAML 1.2 and JSON, and a key occurs once."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        found = super().construct_mapping(node, deep)
        if len(found) < len(node.value):
            raise yaml.constructor.ConstructorError("a key occurs twice", node.start_mark)
        return dict(found)


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Quotes texts that `_Loader` would take for numbers, and escapes line breaks that it would read as spaces."""

    def represent_str(self, text: str) -> Any:
        style = '"' if re.search("[\x85\u2028\u2029]", text) else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style)


_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+\Z")
_Dumper.add_representer(str, _Dumper.represent_str)
for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+0123456789"))


def read_yaml(path: Path, what: str) -> Any:
    """Read a YAML or JSON file as plain values; ``what`` says what it ought to be, as in "a file of settings"."""
    data = read_bytes(path, what, _LARGEST)
    try:
        return yaml.load(data.decode(), _Loader)
    except (yaml.YAMLError, ValueError, RecursionError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise GramLoopError(f"{path} is not {what}: it is not valid YAML ({reason})") from error


def write_yaml(value: Any) -> str:
    """Plain values as text that `read_yaml` reads back unchanged, in their order."""
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True))
