"""JSON and YAML from outside: read with limits, checked against a schema, refused with one message.

`read_json` can do without msgspec. A schema is a type that msgspec knows, such as a dataclass whose fields have
types; a message names the path of the wrong value, as in ``annotations[3].area``.
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from gramloop.errors import GramLoopError

_T = TypeVar("_T")

LARGEST_FILE = 1 << 26  # bytes of a file of settings, a plan or a manifest
_LARGEST_YAML = 1 << 20  # bytes
_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+\Z")
_ABSENT = "nothing"
_LONGEST = 64  # characters of a value in a message; a checksum fits


def read_json(path: Path, what: str, *, largest: int = LARGEST_FILE) -> Any:
    """Read a JSON file of at most ``largest`` bytes as plain values; ``what`` says what it ought to be."""
    return parse_json(_read_bytes(path, what, largest), str(path), what)


def _read_bytes(path: Path, what: str, largest: int) -> bytes:
    try:
        about = path.stat()
        if not (stat.S_ISREG(about.st_mode) or path.is_dir()):  # a pipe or a device may never end
            raise GramLoopError(f"cannot read {path}, {what}: it is not a regular file")
        data = path.read_bytes() if about.st_size <= largest else b""
    except OSError as error:
        raise GramLoopError(f"cannot read {path}, {what}: {error.strerror or error}") from error
    if about.st_size > largest:
        raise GramLoopError(f"{path} has {about.st_size} bytes; {what} has at most {largest}")
    return data


def parse_json(data: bytes, where: str, what: str) -> Any:
    """Parse JSON from bytes; ``where`` names them in messages."""
    try:
        with suppress(ImportError):
            import msgspec

            with suppress(msgspec.MsgspecError):  # it stops at NaN, which Python's own JSON has
                return msgspec.json.decode(data)
        value = json.loads(data)
        if b"\\u" in data:
            json.dumps(value, ensure_ascii=False).encode()  # fails on half a surrogate pair
        return value
    except RecursionError as error:
        raise GramLoopError(f"{where} is not {what}: it is nested too deeply") from error
    except ValueError as error:
        raise GramLoopError(f"{where} is not {what}: it is not valid JSON ({error})") from error


def read_yaml(path: Path, what: str) -> Any:
    """Read a YAML or JSON file as plain values; ``what`` says what it ought to be, as in "a file of settings"."""
    import yaml  # type: ignore[import-untyped]

    data = _read_bytes(path, what, _LARGEST_YAML)
    try:
        return yaml.load(data.decode(), _yaml_loader())
    except (yaml.YAMLError, ValueError, RecursionError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise GramLoopError(f"{path} is not {what}: it is not valid YAML ({reason})") from error


@cache
def _yaml_loader() -> Any:
    """Plain values alone; ``1e-6`` is a number, as in YAML 1.2 and JSON, and a key occurs once."""
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            found = super().construct_mapping(node, deep)
            if len(found) < len(node.value):
                raise yaml.constructor.ConstructorError("a key occurs twice", node.start_mark)
            return dict(found)

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+0123456789"))
    return Loader


def read_checked(path: Path, schema: type[_T], what: str, *, largest: int = LARGEST_FILE) -> _T:
    """Read a JSON file as an instance of ``schema``."""
    return checked(read_json(path, what, largest=largest), schema, str(path), what)


def checked(value: Any, schema: type[_T], where: str, what: str) -> _T:
    """Plain values as an instance of ``schema``; an error names the path of the first wrong value."""
    import msgspec

    try:
        return msgspec.convert(value, schema, str_keys=True)
    except msgspec.ValidationError as error:
        words, _, place = str(error).partition(" - at `$")
        reason, place = words[:1].lower() + words[1:], place.rstrip("`").lstrip(".")
        raise GramLoopError(f"{where} is not {what}: {f'{place}: ' if place else ''}{reason}") from error
    except RecursionError as error:
        raise GramLoopError(f"{where} is not {what}: it is nested too deeply") from error
    except GramLoopError as error:  # from the schema's own checks
        raise GramLoopError(f"{where}: {error}") from error


def refuse_unknown(content: Any, known: Mapping[str, Any], where: str, what: str) -> None:
    """Refuse an object with unknown fields: a misspelt one would have no effect."""
    strange = [name for name in content if name not in known] if isinstance(content, dict) else []
    if strange:
        raise GramLoopError(
            f"{where} is not {what}: it has {strange[0]!r}, which is none of {', '.join(known)}"
        )


def first_difference(found: Mapping[str, Any], wanted: Mapping[str, Any], skip: Collection[str] = ()) -> str:
    """Describe the first entry that differs, as in ``shards 3, not 4`` or ``versions: torch = 2, not 3``, or nothing.

    Both are plain values as JSON knows them; the entries ``skip`` may differ.
    """
    before, now = json.loads(json.dumps([found, wanted]))  # a tuple and the list it is stored as are equal
    for name in {**before, **now}:
        old, new = before.get(name, _ABSENT), now.get(name, _ABSENT)
        if name in skip or old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            pairs = {key: (old.get(key, _ABSENT), new.get(key, _ABSENT)) for key in {**old, **new}}
            key, (old, new) = next((key, pair) for key, pair in pairs.items() if pair[0] != pair[1])
            return f"{name}: {key} = {_short(old)}, not {_short(new)}"
        return f"{name} {_short(old)}, not {_short(new)}"
    return ""


def _short(value: object) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
