"""The content of a model that lies in no weight file: code, closures, globals, defaults, arrays and attributes, as digests.

Everything that a function or object reaches is read, and files that strings name. Code of installed packages counts by
name alone. What cannot be read, such as an object of a C library, counts by its type; what the model predicts on trial
images covers it (`gramloop.tasks.identity`). Digests are the same in every process: nothing depends on addresses, the
order of sets, or the device that tensors lie on.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import re
import sys
import types
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gramloop.util.checksums import file_digest

LEAF_DEPTH = 4  # attributes of attributes that have digests of their own
_DEEPEST = 80  # nested values that are read
_LONGEST_PATH = 1000
_DEVICE = re.compile(r"(cpu|cuda|mps|meta)(:\d+)?")
_INTERNAL = frozenset(vars(nn.Module())) - {"training"}  # hooks, and what state_dict has
_UNSTABLE = frozenset(["_name_or_path", "name_or_path", "_commit_hash"])  # where a transformers folder lay
_OPAQUE_MODULES = frozenset(["_io", "_thread", "io", "logging", "queue", "socket", "threading"])
_CLASS_INTERNAL = re.compile(  # attributes of classes that say nothing about what they do
    "__(dict|weakref|doc|module|annotations|abstractmethods|firstlineno|static_attributes|annotate_func"
    "|annotations_cache)__|_abc_impl"
)
_CONTAINERS = (dict, types.MappingProxyType, set, frozenset, list, tuple)
_ATOMS = (type(None), int, float, complex, bytes, bytearray, range, types.EllipsisType)
_TYPES = (np.dtype, torch.dtype, torch.Size)


def content_of(parts: Mapping[str, object], own: str = "", folder: Path | None = None) -> dict[str, str]:
    """Digests of everything that named values reach.

    Args:
        parts: the values, such as a function or a torch module.
        own: a package that counts as the user's code although it is installed.
        folder: where relative paths in strings may lead, in addition to the working directory.

    Returns:
        Digests by the path of attributes that leads to a value.
    """
    reader = _Reader(own, folder)
    return {path: digest for name, value in parts.items() for path, digest in reader.leaves(value, name)}


class _Reader:
    """Reads values once each; what it has read is held, so that no address is used again."""

    def __init__(self, own: str, folder: Path | None) -> None:
        self._own, self._folder = own.split(".")[0], folder
        self._known: dict[int, tuple[object, str]] = {}

    def leaves(self, value: object, path: str, depth: int = 0) -> Iterator[tuple[str, str]]:
        """Digests of a value's parts by their path; of the value, where it is plain or nested too deeply."""
        parts = {}
        if depth < LEAF_DEPTH and id(value) not in self._known and not isinstance(value, _CONTAINERS):
            parts = {} if self._plain(value) is not None else self._parts(value)
        if not parts:
            yield path, self.digest(value)
            return
        self._known[id(value)] = value, "above"
        yield path, _hash(_kind(value))
        for name, part in sorted(parts.items()):
            yield from self.leaves(part, f"{path}.{name}", depth + 1)

    def digest(self, value: object, depth: int = 0) -> str:
        """The digest of a value and of everything in it."""
        if (plain := self._plain(value)) is not None:
            return _hash(plain)
        if id(value) in self._known:
            return self._known[id(value)][1]
        if depth > _DEEPEST:
            return _hash(_kind(value))
        self._known[id(value)] = value, "cycle"
        found = _hash(_kind(value), *self._inside(value, depth + 1))
        self._known[id(value)] = value, found
        return found

    def _inside(self, value: object, depth: int) -> Iterable[str]:
        """Digests of what a value holds, in an order that every process has."""
        if isinstance(value, dict | types.MappingProxyType):
            return sorted(self.digest(key, depth) + self.digest(each, depth) for key, each in value.items())
        if isinstance(value, set | frozenset):
            return sorted(self.digest(each, depth) for each in value)
        if isinstance(value, list | tuple):
            return [self.digest(each, depth) for each in value]
        return [f"{name}\0{self.digest(part, depth)}" for name, part in sorted(self._parts(value).items())]

    def _plain(self, value: object) -> str | None:
        """A value that has no parts, as text."""
        if isinstance(value, enum.Enum):
            return f"{_name(type(value))}.{value.name}"
        if isinstance(value, str | PurePath):
            return self._text(str(value))
        if isinstance(value, _ATOMS + _TYPES):
            return f"{type(value).__name__} {value!r}"
        if isinstance(value, torch.device):
            return "device"
        if isinstance(value, Tensor):
            return _tensor(value)
        if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            array = np.asarray(value)
            return f"array {array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"
        if isinstance(value, types.ModuleType):
            return f"module {value.__name__}"
        if isinstance(value, type) and not self._is_own(value.__module__):
            return f"class {_name(value)}"
        return None

    def _text(self, text: str) -> str:
        """A string; a file that it names counts by its content, and a device not at all."""
        if _DEVICE.fullmatch(text):
            return "device"
        if len(text) <= _LONGEST_PATH and ("." in text or "/" in text) and text.isprintable():
            for path in (Path(text), *([self._folder / text] if self._folder else [])):
                try:
                    if path.is_file():
                        return f"file {file_digest(path)}"
                except (OSError, ValueError):
                    continue
        return f"str {text}"

    def _parts(self, value: Any) -> dict[str, object]:
        """What a value is made of, by name; nothing where that cannot be read."""
        if isinstance(value, types.FunctionType):
            return self._function_parts(value)
        if isinstance(value, types.MethodType):
            return {"self": value.__self__, "function": value.__func__}
        if isinstance(value, functools.partial):
            return {"function": value.func, "arguments": value.args, "keywords": value.keywords}
        if isinstance(value, staticmethod | classmethod):
            return {"function": value.__func__}
        if isinstance(value, property):
            return {"get": value.fget}
        if isinstance(value, types.CodeType):
            names = (value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars)
            return {"bytecode": value.co_code, "constants": value.co_consts, "names": names}
        if isinstance(value, nn.Module):
            inner = {name: (type(each), _settings(each)) for name, each in value.named_modules() if name}
            weights = dict(value.state_dict())
            return {"weights": weights, "class": type(value), "modules": inner, **_settings(value)}
        if isinstance(value, type):
            held = {name: part for name, part in vars(value).items() if not _CLASS_INTERNAL.fullmatch(name)}
            return {**held, "bases": value.__bases__}
        if isinstance(value, types.GeneratorType | weakref.ref) or _root(type(value)) in _OPAQUE_MODULES:
            return {}
        held = {name: part for name, part in getattr(value, "__dict__", {}).items() if name not in _UNSTABLE}
        if not held and not self._is_own(type(value).__module__):
            return _reduced(value)
        return {**held, **_reduced(value, slots=True), "class": type(value)}

    def _function_parts(self, function: types.FunctionType) -> dict[str, object]:
        parts: dict[str, object] = {
            "defaults": (function.__defaults__, function.__kwdefaults__),
            **{f"attribute {name}": part for name, part in vars(function).items()},
        }
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                parts[f"closure {name}"] = cell.cell_contents
            except ValueError:  # not filled yet
                continue
        if self._is_own(str(function.__globals__.get("__name__"))):
            parts["code"] = function.__code__
            parts |= self._named(function.__globals__, set(_names_in(function.__code__)), "global ")
        return parts

    def _named(self, values: Mapping[str, object], names: set[str], prefix: str) -> dict[str, object]:
        """The values that code names; of the user's modules, what code names of them."""
        found: dict[str, object] = {}
        for name in sorted(names & set(values)):
            value = values[name]
            if isinstance(value, types.ModuleType) and self._is_own(value.__name__):
                found |= self._named(vars(value), names - {name}, f"{prefix}{name}.")
            else:
                found[f"{prefix}{name}"] = value
        return found

    def _is_own(self, module: str) -> bool:
        """Whether a module is the user's code, which is read, and not of an installed package."""
        root = module.split(".")[0]
        if root and root in (self._own, "__main__"):
            return True
        return not (root in ("gramloop", "builtins", *sys.stdlib_module_names) or _is_installed(module))


@functools.cache
def _is_installed(module: str) -> bool:
    found = sys.modules.get(module) or sys.modules.get(module.split(".")[0])
    file = getattr(found, "__file__", None)
    return file is not None and "site-packages" in Path(file).parts


def _settings(module: nn.Module) -> dict[str, object]:
    held = vars(module).items()
    hidden = _INTERNAL | _UNSTABLE
    return {name: value for name, value in held if name not in hidden and not isinstance(value, nn.Module)}


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _reduced(value: object, slots: bool = False) -> dict[str, object]:
    """What pickle would keep of an object, or of its slots alone; nothing where it cannot be pickled."""
    try:
        kept: Any = value.__reduce_ex__(4)
        if slots:
            return dict(kept[2][1]) if isinstance(kept[2], tuple) else {}
        if isinstance(kept, str):
            return {"name": kept}
        return {"state": [list(part) if isinstance(part, Iterator) else part for part in kept]}
    except Exception:  # any object may refuse, each in its own manner
        return {}


def _tensor(value: Tensor) -> str:
    kind = f"tensor {value.dtype} {tuple(value.shape)}"
    try:
        if value.is_meta:
            return kind
        dense = value.to_dense() if value.layout is not torch.strided else value
        content = dense.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
        return f"{kind} {hashlib.sha256(content).hexdigest()}"
    except (RuntimeError, TypeError, NotImplementedError):  # quantised, or of a kind that numpy does not have
        return f"{kind} {value!r}"


def _kind(value: object) -> str:
    if isinstance(value, types.FunctionType | types.BuiltinFunctionType | type):
        return f"{type(value).__name__} {_name(value)}"
    return _name(type(value))


def _root(kind: type) -> str:
    return kind.__module__.split(".")[0]


def _name(value: Any) -> str:
    # a file that is executed under a name made of its content is the same module under any
    module = re.sub(r"^_gramloop_(.+)_[0-9a-f]{16}$", r"\1", str(getattr(value, "__module__", "")))
    return f"{module}.{getattr(value, '__qualname__', '')}"


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
