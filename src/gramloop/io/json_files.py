"""JSON that comes from outside: read with limits, checked against a schema, refused in one sentence.

`read_json` needs nothing but Python. A schema is a type that msgspec knows, such as a dataclass whose fields have
types; what is wrong is told with its path in the file, as in ``annotations[3].area``.
"""

from __future__ import annotations

import gc
import json
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from gramloop.errors import GramLoopError

T = TypeVar("T")

LARGEST = 1 << 26  # bytes of an ordinary file: settings, plans, manifests, scans
DEEPEST = 100  # lists and objects inside one another

_OPENING, _CLOSING, _TEXT = b"[{", b"]}", re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


def read_json(path: Path, what: str, *, largest: int = LARGEST, fast: bool = False) -> Any:
    """What a JSON file holds, as plain values.

    Args:
        path: the file.
        what: what it ought to be, as in "a plan written by gramloop evaluate".
        largest: bytes that it may have.
        fast: parse with msgspec, for files of hundreds of megabytes; it must be installed.
    """
    return parse_json(read_bytes(path, what, largest), str(path), what, fast=fast)


def read_bytes(path: Path, what: str, largest: int = LARGEST) -> bytes:
    """The bytes of a file, unless there are more than may be."""
    try:
        about = path.stat()
        if not (
            stat.S_ISREG(about.st_mode) or path.is_dir()
        ):  # a pipe or a device has no size, and may never end
            raise GramLoopError(f"cannot read {path}, {what}: it is no ordinary file")
        size = about.st_size
        data = path.read_bytes() if size <= largest else b""
    except OSError as error:
        raise GramLoopError(f"cannot read {path}, {what}: {error.strerror or error}") from error
    if size > largest:
        raise GramLoopError(f"{path} has {size} bytes; {what} has at most {largest}")
    return data


def parse_json(data: bytes, where: str, what: str, *, fast: bool = False, unique: bool = False) -> Any:
    """The same of bytes; ``where`` they stand is named in the refusal. ``unique`` refuses a name that stands twice."""
    try:
        return _fast(data) if fast else _plain(data, unique)
    except RecursionError as error:
        raise GramLoopError(
            f"{where} is not {what}: its lists and objects are nested deeper than {DEEPEST}"
        ) from error
    except ValueError as error:
        raise GramLoopError(f"{where} is not {what}: it is not valid JSON ({error})") from error


def read_checked(path: Path, schema: type[T], what: str, *, largest: int = LARGEST) -> T:
    """What a JSON file holds, as an instance of ``schema``."""
    return checked(read_json(path, what, largest=largest), schema, str(path), what)


def checked(value: Any, schema: type[T], where: str, what: str) -> T:
    """Plain values as an instance of ``schema``, or a sentence with the path of the first wrong one."""
    import msgspec

    try:
        return msgspec.convert(value, schema, str_keys=True)
    except msgspec.ValidationError as error:
        raise GramLoopError(f"{where} is not {what}: {problem_of(error)}") from error
    except RecursionError as error:
        raise GramLoopError(f"{where} is not {what}: it is nested too deeply") from error
    except GramLoopError as error:  # of the schema's own checks
        raise GramLoopError(f"{where}: {error}") from error


def problem_of(error: Exception) -> str:
    """What msgspec found, as ``images[2].width: expected `int`, got `str```."""
    words, _, place = str(error).partition(" - at `$")
    said = words[:1].lower() + words[1:]
    place = place.rstrip("`").lstrip(".")
    return f"{place}: {said}" if place else said


def refuse_unknown(content: Any, known: Mapping[str, Any], where: str, what: str) -> None:
    """Refuse an object that has other fields than the known ones: a misspelt one would have no effect."""
    strange = [name for name in content if name not in known] if isinstance(content, dict) else []
    if strange:
        raise GramLoopError(
            f"{where} is not {what}: it has {strange[0]!r}, which is none of {', '.join(known)}"
        )


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep Python from searching millions of new objects for garbage again and again while they are made."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def _fast(data: bytes) -> Any:
    """A typed parser's speed; where it stops at NaN, which Python's JSON has and others do not, Python's own."""
    import msgspec

    try:
        return msgspec.json.decode(data)
    except msgspec.MsgspecError:
        return _plain(data)


def _plain(data: bytes, unique: bool = False) -> Any:
    _refuse_depth(data)
    value = json.loads(data, object_pairs_hook=_once if unique else None)
    if b"\\u" in data:
        json.dumps(value, ensure_ascii=False).encode()  # half a character is a text that nobody can write
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r} stands there twice")
        found[name] = value
    return found


def _refuse_depth(data: bytes) -> None:
    """Raise RecursionError where brackets are nested too deeply; a parser's own limit depends on who calls it."""
    if data.count(b"[") + data.count(b"{") <= DEEPEST:
        return
    depth = 0
    for byte in _TEXT.sub(b"", data):
        if byte in _OPENING:
            depth += 1
            if depth > DEEPEST:
                raise RecursionError
        elif byte in _CLOSING:
            depth -= 1
