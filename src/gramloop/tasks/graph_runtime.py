"""A model as one file with its graph, run by onnxruntime (.onnx) or OpenVINO (.xml)."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gramloop.errors import GramLoopError

Arrays = Mapping[str, NDArray[Any]]
RUNTIMES = {".onnx": "onnxruntime", ".xml": "openvino"}  # by the ending of the file
METADATA = "gramloop"  # the entry of a file's metadata that gramloop export writes
_EXTRAS = {"onnxruntime": "export", "openvino": "openvino"}
_TYPES = {"float": "float32", "double": "float64"}  # where onnxruntime's names differ from numpy's


@dataclass(frozen=True)
class GraphInput:
    """One input: its name, its shape with None for a dimension that is not fixed, and its type."""

    name: str
    shape: tuple[int | None, ...]
    dtype: str


class Graph:
    """An opened graph: its inputs, the names of its outputs, its metadata, and ``run``.

    Args:
        path: ``FILE.onnx`` or ``FILE.xml``.
        device: "cpu", or "cuda" where onnxruntime has it. On "meta" it is opened on the CPU.
    """

    def __init__(self, path: Path, device: torch.device | str = "cpu") -> None:
        self.path, self.runtime = path, RUNTIMES[path.suffix.lower()]
        if not path.is_file():
            raise GramLoopError(f"{path} does not exist; --model takes FILE.onnx or FILE.xml")
        self.device = "cpu" if str(device) == "meta" else torch.device(device).type
        self.inputs: tuple[GraphInput, ...] = ()
        self.outputs: tuple[str, ...] = ()
        self.metadata: dict[str, str] = {}
        self._open()

    def _open(self) -> None:
        self.threads = torch.get_num_threads()
        package = runtime_package(self.runtime, self.path)
        opener = self._open_onnx if self.runtime == "onnxruntime" else self._open_openvino
        try:
            self._run: Callable[[Arrays], list[NDArray[Any]]] = opener(package)
        except GramLoopError:
            raise
        except Exception as error:  # the runtimes raise types of their own
            raise GramLoopError(f"{self.runtime} cannot open {self.path}: {first_line(error)}") from error

    def _open_onnx(self, package: Any) -> Callable[[Arrays], list[NDArray[Any]]]:
        wanted = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}.get(self.device, "")
        if wanted not in package.get_available_providers():
            raise GramLoopError(
                f"onnxruntime cannot run {self.path.name} on {self.device} here; give --device cpu"
            )
        options = package.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self.threads, 1
        options.log_severity_level = 3
        session = package.InferenceSession(str(self.path), options, providers=[wanted])
        self.inputs = tuple(
            GraphInput(each.name, tuple(_fixed(side) for side in each.shape), _numpy_type(each.type))
            for each in session.get_inputs()
        )
        self.outputs = tuple(each.name for each in session.get_outputs())
        self.metadata = dict(session.get_modelmeta().custom_metadata_map)
        return lambda feeds: list(session.run(list(self.outputs), dict(feeds)))

    def _open_openvino(self, package: Any) -> Callable[[Arrays], list[NDArray[Any]]]:
        if self.device != "cpu":
            raise GramLoopError(f"OpenVINO runs {self.path.name} on the CPU here; give --device cpu")
        core = package.Core()
        model = core.read_model(str(self.path))
        # f32 whatever the processor offers: the same file gives the same numbers on every machine
        settings = {"INFERENCE_NUM_THREADS": self.threads, "INFERENCE_PRECISION_HINT": "f32"}
        request = core.compile_model(model, "CPU", settings).create_infer_request()
        self.inputs = tuple(
            GraphInput(
                each.get_any_name(),
                tuple(_fixed(side.get_length() if side.is_static else None) for side in each.partial_shape),
                np.dtype(each.element_type.to_dtype()).name,
            )
            for each in model.inputs
        )
        self.outputs = tuple(each.get_any_name() for each in model.outputs)
        self.metadata = _openvino_metadata(model, self.path)

        def run(feeds: Arrays) -> list[NDArray[Any]]:
            found = request.infer(dict(feeds))
            return [np.array(found[place]) for place in range(len(self.outputs))]

        return run

    def run(self, feeds: Arrays) -> dict[str, NDArray[Any]]:
        """The outputs by name, computed with as many threads as torch has at this moment."""
        if self.threads != torch.get_num_threads():
            self._open()
        types = {each.name: each.dtype for each in self.inputs}
        cast = {
            name: np.ascontiguousarray(value, types.get(name, value.dtype)) for name, value in feeds.items()
        }
        try:
            found = self._run(cast)
        except Exception as error:
            shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in cast.items())
            raise GramLoopError(f"{self.path.name} fails on {shapes}: {first_line(error)}") from error
        return dict(zip(self.outputs, found, strict=True))

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "device": self.device}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["path"], state["device"])  # type: ignore[misc]


def graph_files(path: Path) -> dict[str, Path]:
    """The file of a graph, those with its weights, and the recipe next to it."""
    found = {"graph": path}
    if path.suffix.lower() == ".onnx":
        weights = sorted(each for each in path.parent.glob("*data") if each.name.startswith(path.name))
    else:
        weights = [each for each in (path.with_suffix(".bin"),) if each.is_file()]
    for number, each in enumerate(weights):
        found["weights" if not number else f"weights {number}"] = each
    recipes = [each for ending in RECIPES if (each := path.with_suffix(ending)).is_file()]
    if len(recipes) > 1:
        raise GramLoopError(f"{recipes[0]} and {recipes[1]} both say how to read {path.name}; keep one")
    return found | ({"recipe": recipes[0]} if recipes else {})


def is_dinov3_graph(path: str | Path) -> bool:
    """Whether the name of a graph's file says that its backbone is a DINOv3."""
    return "dinov3" in Path(path).stem.lower()


RECIPES = (".json", ".py")


def runtime_versions(path: Path) -> dict[str, str]:
    """The version of the package that runs a graph, which its numbers depend on."""
    name = RUNTIMES[path.suffix.lower()]
    return {f"version of {name}": version(name)}


def runtime_package(name: str, path: Path) -> Any:
    """The package that runs a file."""
    # openvino's telemetry package would otherwise try to reach a server
    os.environ.setdefault("OPENVINO_TELEMETRY_DISABLE", "1")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise GramLoopError(
            f"{path.name} needs the package {name}; the extra gramloop[{_EXTRAS.get(name, 'export')}] installs it"
        ) from error


def _openvino_metadata(model: Any, path: Path) -> dict[str, str]:
    entries = {}
    for key in (METADATA, "names", "task"):  # of this project's exporter, and of Ultralytics'
        if model.has_rt_info([key]):
            entries[key] = str(model.get_rt_info([key]).astype(str))
        elif model.has_rt_info(["framework", key]):
            entries[key] = str(model.get_rt_info(["framework", key]).astype(str))
    described = path.with_name("metadata.yaml")  # where Ultralytics describes an OpenVINO folder
    if not entries and described.is_file():
        import yaml  # type: ignore[import-untyped]

        given = yaml.safe_load(described.read_text(encoding="utf-8"))
        entries = {str(key): repr(value) for key, value in given.items()} if isinstance(given, dict) else {}
    return entries


def _fixed(side: object) -> int | None:
    return side if isinstance(side, int) and side > 0 else None


def _numpy_type(text: str) -> str:
    inside = text.removeprefix("tensor(").removesuffix(")")
    return _TYPES.get(inside, inside)


def first_line(error: Exception) -> str:
    """The first line that an error says, at most 300 characters."""
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__)[:300]
