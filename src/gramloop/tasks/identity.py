"""What identifies a model of the user's own code, in a file, a package or in memory: its content and its behaviour.

The content is everything that the model reaches: code, closures, globals, defaults, arrays, attributes, and files that
strings name, as digests that are the same in every process. Code of installed packages counts by name alone, and what
cannot be read, such as an object of a C library, by its type. A version that the user gives takes the place of the
content. The behaviour, what the model predicts on two trial images, covers the rest; it is compared at every start.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import math
import platform
import re
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from importlib.metadata import packages_distributions, version
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gramloop.errors import GramLoopError, user_code
from gramloop.tasks.custom import FunctionPredictor, ModulePredictor, find_make
from gramloop.tasks.detection import Detection
from gramloop.tasks.images import RGB
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import AnyPredictor, name_of
from gramloop.tasks.segments import InstanceMasks, Panoptic, PanopticTask
from gramloop.util.files import file_digest

# of a summary: kernels of other processors change near ties, of boundary pixels and weak boxes, less than one in a hundred
SUMMARY_TOLERANCE = 0.01
_WAVES = (1.0, 2.399963, 0.618034)  # that tell class numbers from each other; no two are multiples
_DEEPEST = 80  # nested values that are read
_LONGEST_PATH = 1000
_DEVICE = re.compile(r"(cpu|cuda|mps|meta)(:\d+)?")
# hooks, what state_dict has, and what torch.compile made of it
_INTERNAL = (frozenset(vars(nn.Module())) | {"_compiled_call_impl"}) - {"training"}
_UNSTABLE = frozenset(["_name_or_path", "name_or_path", "_commit_hash"])  # where a transformers folder lay
_OPAQUE_MODULES = frozenset(["_io", "_thread", "io", "logging", "threading"])
# attributes of classes that say nothing about what they do
_CLASS_INTERNAL = frozenset(["_abc_impl", "__abstractmethods__", "__annotations__", "__dict__", "__doc__"])
_CLASS_INTERNAL |= {"__firstlineno__", "__module__", "__static_attributes__", "__weakref__"}
_ATOMS = (type(None), int, float, complex, bytes, bytearray, range, types.EllipsisType, np.dtype, torch.dtype)

# models in memory

_in_memory: dict[str, AnyPredictor] = {}


def hold_model(predictor: AnyPredictor) -> dict[str, str]:
    """Keep a model that is in no file, and return what `gramloop.tasks.load_predictor` takes for it."""
    name = f"{name_of(predictor)} #{len(_in_memory) + 1}"
    _in_memory[name] = predictor
    return {"object": name}


def held_model(name: str) -> AnyPredictor:
    """The model that `hold_model` kept under a name."""
    if name not in _in_memory:
        raise GramLoopError(
            "the model of this evaluation is an object of the program that began it; call gramloop.evaluate there again"
        )
    return _in_memory[name]


# content and behaviour together


def is_user_code(files: Mapping[str, str]) -> bool:
    """Whether a model is known by its content and behaviour, and not by its files."""
    return "make" in files or "object" in files


def identify(
    files: Mapping[str, str], predictor: AnyPredictor, size: tuple[int, int], device: str, version: str = ""
) -> tuple[dict[str, str], Behaviour | None]:
    """The content and the behaviour of a model of the user's code; nothing of other models.

    The content is read after the first predictions, which may load weights, and again after an image that the model
    never saw, which fills caches: what predictions change is left out.

    Args:
        files: the model, as `gramloop.tasks.load_predictor` takes it.
        predictor: the same, loaded.
        size: height and width of the images that it is tried with.
        device: where it runs.
        version: what the user calls it, instead of its content.
    """
    if not is_user_code(files):
        if version:
            raise GramLoopError(
                f"the version {version!r} belongs to a model of your own code; other weights are known"
            )
        return {}, None
    first = observe(predictor, size, device)
    before = {} if version else user_content(files, predictor)
    _probe(predictor, np.random.default_rng().integers(0, 256, (*size, 3), np.uint8))
    if observe(predictor, size, device).digest != first.digest:
        first = replace(first, digest="", summary=())
    if version:
        return {"version": version}, first
    after = user_content(files, predictor)
    varying = tuple(name for name in sorted({*before, *after}) if before.get(name) != after.get(name))
    stable = {name: value for name, value in before.items() if name not in varying}
    return stable, replace(first, varying=varying)


def check_identity(
    files: Mapping[str, str],
    predictor: AnyPredictor,
    device: str,
    content: Mapping[str, str],
    seen: Behaviour,
) -> str:
    """What differs in a loaded model from its planned ``content`` and behaviour; empty where it is the same."""
    now = observe(predictor, seen.size, device)
    if "version" not in content:
        found = user_content(files, predictor)
        left = {name: digest for name, digest in found.items() if name not in seen.varying}
        if changed := first_change(content, left):
            return changed
    return "" if not seen.repeatable or now.same_as(seen) else "what it predicts on the trial images"


def first_change(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """The first part of a content that differs; empty where none does."""
    return next((name for name in sorted({*before, *now}) if before.get(name) != now.get(name)), "")


def user_content(files: Mapping[str, str], predictor: AnyPredictor) -> dict[str, str]:
    """Digests of everything that a model of the user's code is made of."""
    parts: dict[str, object] = {"model": predictor}
    if isinstance(predictor, FunctionPredictor):
        parts = {"model": predictor.function}
    if isinstance(predictor, ModulePredictor):
        parts |= {"preprocess": predictor.preprocess, "postprocess": predictor.postprocess}
    if "make" not in files:
        return content_of(parts)
    make, place = find_make(files["make"]), files["make"].rpartition(":")[0]
    source = inspect.getsourcefile(inspect.unwrap(make))
    found = {} if source is None else {"make": hashlib.sha256(Path(source).read_bytes()).hexdigest()}
    if place.endswith(".py"):
        return {**content_of(parts, folder=Path(place).parent), **found}
    for distribution in sorted(set(packages_distributions().get(place.split(".")[0], ()))):
        found[f"version of {distribution}"] = version(distribution)
    return {**content_of(parts), **found}


# behaviour


@dataclass(frozen=True)
class Behaviour:
    """What a model predicts on the probe images."""

    size: tuple[int, int]  # height and width of the probe images
    digest: str  # of the predictions; empty where the same image was predicted twice, differently
    summary: tuple[float, ...]  # numbers that are nearly the same on another processor
    machine: str  # where the predictions were made
    varying: tuple[str, ...] = ()  # parts of the content that predictions change, such as caches and counters

    @property
    def repeatable(self) -> bool:
        """Whether the same image is always predicted alike."""
        return bool(self.digest)

    def same_as(self, other: Behaviour) -> bool:
        """Whether one model can have predicted both: to the last bit, where both were made on one machine."""
        if not (self.repeatable and other.repeatable):
            return self.repeatable == other.repeatable
        if self.machine == other.machine:
            return self.digest == other.digest
        near = functools.partial(math.isclose, rel_tol=SUMMARY_TOLERANCE, abs_tol=SUMMARY_TOLERANCE)
        return len(self.summary) == len(other.summary) and all(map(near, self.summary, other.summary))


def observe(predictor: AnyPredictor, size: tuple[int, int], device: str = "cpu") -> Behaviour:
    """Predict the two probe images; an error of the model is raised as `UserCodeError`."""
    found = [_probe(predictor, pixels) for pixels in probe_images(*size)]
    names = [each.name for each in fields(found[0]) if each.name not in ("blocks", "trace")]
    values = [{name: getattr(one, name) for name in names} for one in found]
    summary = tuple(round(number, 6) for one in found for number in _summary(one))
    return Behaviour(size, content_of({"": values})[""], summary, _machine(device))


def probe_images(height: int, width: int) -> tuple[RGB, RGB]:
    """Two images with all brightnesses, many colours, edges and texture; the same wherever they are made."""
    rows, columns = np.mgrid[0:height, 0:width].astype(np.int64)
    across, down = columns * 255 // max(1, width - 1), rows * 255 // max(1, height - 1)
    smooth = np.stack([across, down, (across + down) // 2], axis=2)
    coarse = (rows * 8 // height) * 8 + columns * 8 // width
    noise = (rows * 73_856_093 ^ columns * 19_349_663 ^ (rows * columns + 1) * 83_492_791) >> 7
    colours = np.stack([coarse * 37 % 256, coarse * 101 % 256, coarse * 211 % 256], axis=2)
    textured = np.clip(colours + (noise % 64)[..., None] - 32, 0, 255)
    return smooth.astype(np.uint8), textured.astype(np.uint8)


def _probe(predictor: AnyPredictor, pixels: RGB) -> Prediction:
    what = f"{name_of(predictor)} failed on a trial image of {pixels.shape[1]} x {pixels.shape[0]} pixels"
    with user_code(what):
        return predictor.predict(pixels)


def _summary(prediction: Prediction) -> list[float]:
    """A few numbers of a prediction, of which every change of many pixels or of a strong box changes one.

    Means over pixels, and sums over objects by their squared score, so that weak ones hardly count. Class numbers count by
    their waves, and segments by their class.
    """
    labels, values = getattr(prediction, "labels", None), getattr(prediction, "values", None)
    if isinstance(prediction, Panoptic):
        labels = PanopticTask().class_map(prediction, 0.0) + 1
    columns = [] if labels is None else [np.cos(labels * wave) for wave in _WAVES]
    if values is not None:
        columns.append(np.nan_to_num(values.astype(np.float64), posinf=0.0, neginf=0.0))
    if not isinstance(prediction, Detection | InstanceMasks):
        return [float(each.mean()) if each.size else 0.0 for each in columns]
    columns += list(np.nan_to_num(prediction.boxes.astype(np.float64), posinf=0.0, neginf=0.0).T)
    weights = np.nan_to_num(prediction.scores.astype(np.float64)) ** 2
    return [float(weights.sum()), *(float((weights * each).sum()) for each in columns)]


def _machine(device: str) -> str:
    """The machine and its processor, or its GPU."""
    if torch.device(device).type == "cuda":
        return f"{platform.node()}, {torch.cuda.get_device_name(device)}"
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{platform.node()}, {name}"


# content


def content_of(parts: Mapping[str, object], folder: Path | None = None) -> dict[str, str]:
    """Digests of everything that named values reach, by name, and of the attributes of each by ``name.attribute``.

    Relative paths in strings may lead to the working directory or to ``folder``.
    """
    reader, found = _Reader(folder), {}
    for name, value in parts.items():
        held = reader.read(value)
        named = held if isinstance(held, dict) else {}
        found[name] = _hash(_kind(value)) if named else reader.digest(value)
        found |= {f"{name}.{part}": reader.digest(each) for part, each in sorted(named.items())}
    return found


class _Unordered(list[object]):
    """Parts of a value in an order that differs from process to process."""


class _Reader:
    """Digests of values; each is read once, and kept so that its address is not used again."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._known: dict[int, tuple[object, str]] = {}

    def digest(self, value: object, depth: int = 0) -> str:
        """The digest of a value and of everything in it."""
        if id(value) in self._known:
            return self._known[id(value)][1]
        if isinstance(held := self.read(value), str):
            return _hash(held)
        if depth > _DEEPEST:
            return _hash(_kind(value))
        self._known[id(value)] = value, "cycle"
        if isinstance(held, dict):
            inside = [f"{name}\0{self.digest(part, depth + 1)}" for name, part in sorted(held.items())]
        else:
            inside = [self.digest(part, depth + 1) for part in held]
        found = _hash(_kind(value), *(sorted(inside) if isinstance(held, _Unordered) else inside))
        self._known[id(value)] = value, found
        return found

    def read(self, value: Any) -> str | list[object] | dict[str, object]:
        """A plain value as text; else what it holds, or is made of by name: nothing where that cannot be read."""
        if isinstance(value, str | PurePath):
            return self._text(str(value))
        if isinstance(value, _ATOMS):
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
        if isinstance(value, type) and not _is_own(value.__module__):
            return f"class {_name(value)}"
        if isinstance(value, dict | types.MappingProxyType):
            return _Unordered(value.items())
        if isinstance(value, set | frozenset):
            return _Unordered(value)
        return list(value) if isinstance(value, list | tuple) else _parts(value)

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


def _parts(value: Any) -> dict[str, object]:
    if isinstance(value, types.FunctionType):
        return _function_parts(value)
    if isinstance(value, staticmethod | classmethod | property):
        return {"function": value.fget if isinstance(value, property) else value.__func__}
    if isinstance(value, types.CodeType):
        names = (value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars)
        return {"bytecode": value.co_code, "constants": value.co_consts, "names": names}
    if isinstance(value, nn.Module):
        inner = {name: (type(each), _settings(each)) for name, each in value.named_modules() if name}
        weights = dict(value.state_dict())
        return {"weights": weights, "class": type(value), "modules": inner, **_settings(value)}
    if isinstance(value, type):
        held = {name: part for name, part in vars(value).items() if name not in _CLASS_INTERNAL}
        return {**held, "bases": value.__bases__}
    if type(value).__module__.split(".")[0] in _OPAQUE_MODULES:
        return {}
    held = {name: part for name, part in getattr(value, "__dict__", {}).items() if name not in _UNSTABLE}
    return {**(held or _pickled(value)), "class": type(value)}


def _function_parts(function: types.FunctionType) -> dict[str, object]:
    parts: dict[str, object] = {
        "defaults": (function.__defaults__, function.__kwdefaults__),
        **{f"attribute {name}": part for name, part in vars(function).items()},
    }
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            parts[f"closure {name}"] = cell.cell_contents
        except ValueError:  # not filled yet
            continue
    if _is_own(str(function.__globals__.get("__name__"))):
        parts["code"] = function.__code__
        parts |= _named(function.__globals__, set(_names_in(function.__code__)), "global ")
    return parts


def _named(values: Mapping[str, object], names: set[str], prefix: str) -> dict[str, object]:
    """The values that code names; of the user's modules, what code names of them."""
    found: dict[str, object] = {}
    for name in sorted(names & set(values)):
        value = values[name]
        if isinstance(value, types.ModuleType) and _is_own(value.__name__):
            found |= _named(vars(value), names - {name}, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


@functools.cache
def _is_own(module: str) -> bool:
    """Whether a module is the user's code, which is read, and not of an installed package."""
    root = module.split(".")[0]
    file = getattr(sys.modules.get(module) or sys.modules.get(root), "__file__", None)
    installed = file is not None and "site-packages" in Path(file).parts
    return not installed and root not in ("gramloop", "builtins", *sys.stdlib_module_names)


def _settings(module: nn.Module) -> dict[str, object]:
    if hasattr(module, "_orig_mod"):  # what torch.compile returns: its own state changes, the model is inside
        return {}
    held, hidden = vars(module).items(), _INTERNAL | _UNSTABLE
    return {name: value for name, value in held if name not in hidden and not isinstance(value, nn.Module)}


def _pickled(value: object) -> dict[str, object]:
    """What pickle would keep of an object without attributes; nothing where it cannot be pickled."""
    try:
        kept: Any = value.__reduce_ex__(4)
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


def _name(value: Any) -> str:
    # a file that is executed under a name made of its content is the same module under any
    module = re.sub(r"^_gramloop_(.+)_[0-9a-f]{16}$", r"\1", str(getattr(value, "__module__", "")))
    return f"{module}.{getattr(value, '__qualname__', '')}"


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
