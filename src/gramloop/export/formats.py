"""The formats: pt2, ONNX and OpenVINO; what a file says of itself, fewer bits, and how much a file differs."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import logging
import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.export import ExportedProgram

from gramloop import __version__
from gramloop.errors import GramLoopError
from gramloop.tasks.graphs import METADATA, Arrays, Graph, first_line, runtime_package

Format = Literal["pt2", "onnx", "openvino"]
ENDINGS: dict[Format, str] = {"pt2": ".pt2", "onnx": ".onnx", "openvino": ".xml"}
ONE_FILE = 1_900_000_000  # bytes; an ONNX file ends at 2 GiB, and larger weights go into a second file
_ONNX_PACKAGES = ("onnx", "onnx_ir", "onnxscript", "onnxruntime")
GraphPrecision = Literal["fp32", "fp16", "int8"]
# of the largest value of an output, or of 1 if that is smaller
TOLERANCES: dict[GraphPrecision, float] = {"fp32": 1e-4, "fp16": 0.02, "int8": inf}
_QUANTISED = ["Conv", "MatMul", "Gemm"]  # where the time goes; norms and softmax lose more than they gain
_PT2_MEMBER = f"{METADATA}.json"  # of the extra files
_CLASSES = 8  # named in a table
_Run = Callable[[NDArray[np.generic]], Arrays]


@dataclass(frozen=True)
class About:
    """The description of an exported file.

    gramloop, torch: the versions that wrote it.
    model, task, classes: what it predicts; classes by number, None where they have no name.
    mitigations: as `gramloop.mitigations` reads them; empty for the baseline.
    settings: normalisation, the replay's settings, the origin of calibration statistics, and a precision below fp32.
    input, outputs: a description by name; ``shape`` is that of the input.
    recipe: how images are prepared and outputs read, as `gramloop.tasks.graphs.GraphRecipe` has it; empty where
        nothing that can be evaluated comes out.
    """

    gramloop: str
    torch: str
    model: str
    task: str
    classes: dict[str, str | None]
    mitigations: str
    settings: dict[str, Any]
    input: dict[str, str]
    shape: tuple[int, ...]
    outputs: dict[str, str]
    recipe: dict[str, Any]
    note: str = ""

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @property
    def precision(self) -> GraphPrecision:
        """Of weights and arithmetic."""
        found: GraphPrecision = self.settings.get("precision", "fp32")
        return found

    def rows(self) -> list[tuple[str, str]]:
        """What it is, for a table."""
        named = [f"{number} {name or ''}".strip() for number, name in self.classes.items()]
        more = f" and {len(named) - _CLASSES} more" if len(named) > _CLASSES else ""
        return [
            ("model", self.model),
            ("task", self.task),
            ("mitigations", self.mitigations or "none"),
            *((f"input {name}", words) for name, words in self.input.items()),
            *((f"output {name}", words) for name, words in self.outputs.items()),
            ("classes", ", ".join(named[:_CLASSES]) + more if named else "none"),
            ("written by", f"gramloop {self.gramloop}, torch {self.torch}"),
        ]


def write_program(
    program: ExportedProgram, path: Path, kind: Format, about: About, images: Iterable[NDArray[Any]] = ()
) -> list[Path]:
    """Write a program, and return its files, the one that readers open last; int8 is calibrated on images."""
    if kind == "pt2":
        held = (*program.state_dict.values(), *program.constants.values())
        size = sum(each.nbytes for each in held if isinstance(each, Tensor))
        if shutil.disk_usage(path.parent).free < 1.1 * size + 1e6:  # torch would abort
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        with quiet():
            torch.export.save(program, path, extra_files={_PT2_MEMBER: about.to_json()})
        return [path]
    import onnx_ir as ir

    model = _onnx_model(program, about)
    if about.precision == "fp32" and kind == "onnx":
        return _save_onnx(model, path, about, program)
    written = path.with_name("float32.onnx")
    ir.save(model, written, external_data="float32.data")
    if about.precision == "fp16":
        written = to_half(written)
    elif about.precision == "int8":
        written = to_int8(written, next(iter(about.input)), images)
    if kind == "onnx":
        return _save_onnx(ir.load(written), path, about, program)
    openvino: Any = runtime_package("openvino", path)
    with quiet():
        made = openvino.convert_model(written)
        made.set_rt_info(about.to_json(), [METADATA])
        openvino.save_model(made, path, compress_to_fp16=about.precision == "fp16")
    return [path.with_suffix(".bin"), path]


def _onnx_model(program: ExportedProgram, about: About) -> Any:
    import onnx_ir as ir
    import onnx_ir.passes.common as common
    from onnxscript import optimizer

    with quiet():
        made = torch.onnx.export(
            program,
            dynamo=True,
            input_names=list(about.input),
            output_names=list(about.outputs),
            optimize=False,  # its rewriting takes minutes, and gains nothing over what onnxruntime does
            verbose=False,
        )
    assert made is not None
    model = made.model
    common.InlinePass()(model)
    optimizer.fold_constants(model)
    ir.passes.Sequential(
        common.RemoveUnusedNodesPass(),
        common.RemoveUnusedFunctionsPass(),  # type: ignore[no-untyped-call]
        common.RemoveUnusedOpsetsPass(),
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.DeduplicateInitializersPass(),
        common.CommonSubexpressionEliminationPass(),
        common.OutputFixPass(),
        common.NameFixPass(),
    )(model)
    return model


def _save_onnx(model: Any, path: Path, about: About, program: ExportedProgram) -> list[Path]:
    """One file, or a second with the weights where one cannot hold them."""
    import onnx_ir as ir

    model.producer_name, model.producer_version = "gramloop", __version__
    model.doc_string = f"{about.model}, {about.task}: {about.mitigations or 'baseline'}"
    model.metadata_props.clear()
    model.metadata_props[METADATA] = about.to_json()
    weights = [value.const_value for value in model.graph.initializers.values()]
    if sum(int(each.nbytes) for each in weights if each is not None) <= ONE_FILE:
        ir.save(model, path)
        return [path]
    # named after the weights: an older file of this name keeps its own until it is replaced
    digest = hashlib.sha256(str(about.settings.get("precision")).encode())
    for name, value in sorted(program.state_dict.items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().data)
    data = path.with_name(f"{path.name}.{digest.hexdigest()[:16]}.data")
    ir.save(model, path, external_data=data.name)
    return [data, path]


def open_program(path: Path, about: About) -> _Run:
    """What runs a file of `write_program` on the CPU."""
    if path.suffix.lower() != ENDINGS["pt2"]:
        graph, (name,) = Graph(path), about.input
        return lambda images: graph.run({name: images})
    try:
        with quiet():
            module = torch.export.load(path).module()
    except Exception as error:
        raise GramLoopError(f"{path} cannot be opened as pt2: {first_line(error)}") from error

    def run(images: NDArray[np.generic]) -> Arrays:
        with torch.no_grad():
            found = module(torch.from_numpy(np.ascontiguousarray(images)))
        return {name: value.numpy() for name, value in zip(about.outputs, found, strict=True)}

    return run


def check_packages(kind: Format, path: Path) -> None:
    """Refuse a format whose packages are not installed, before the work begins."""
    needed = {"pt2": (), "onnx": _ONNX_PACKAGES, "openvino": (*_ONNX_PACKAGES, "openvino")}
    for name in needed[kind]:
        runtime_package(name, path)


@contextmanager
def quiet() -> Iterator[None]:
    """Without what torch prints meanwhile about packages that are not needed here, and of graphs in full."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    sink = io.StringIO()  # torch prints a graph that it cannot trace
    try:
        with warnings.catch_warnings(), redirect_stdout(sink), redirect_stderr(sink):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


# fewer bits


def to_half(source: Path) -> Path:
    """Weights and arithmetic in half precision; inputs and outputs keep their types."""
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16  # type: ignore[import-untyped]

    target = source.with_name("fp16.onnx")
    with quiet():
        model = convert_float_to_float16(onnx.load(str(source)), keep_io_types=True)
        onnx.save(model, str(target), save_as_external_data=_large(source), location="fp16.data")
    return target


def to_int8(source: Path, name: str, images: Iterable[NDArray[Any]]) -> Path:
    """Weights and activations of layers in 8 bits, with the ranges that activations have on images for the input ``name``."""
    from onnxruntime.quantization import (  # type: ignore[import-untyped]
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        """The images, one after another."""

        def __init__(self, feeds: Iterator[dict[str, NDArray[Any]]]) -> None:
            self.feeds = feeds

        def get_next(self) -> dict[str, NDArray[Any]] | None:
            return next(self.feeds, None)

    target = source.with_name("int8.onnx")
    with quiet():
        quantize_static(
            str(source),
            str(target),
            Reader({name: np.ascontiguousarray(each)} for each in images),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            op_types_to_quantize=_QUANTISED,
            use_external_data_format=_large(source),
        )
    return target


def _large(source: Path) -> bool:
    return sum(each.stat().st_size for each in source.parent.glob(f"{source.stem}.*")) > ONE_FILE


def largest_difference(expected: Arrays, found: Arrays, tolerance: float = TOLERANCES["fp32"]) -> float:
    """The largest difference of any number, relative to the largest of its output, at least 1.

    Classes follow from scores. They may differ where two scores are as close as the scores themselves may differ;
    anywhere else a different class counts as 1.
    """
    largest = 0.0
    for name, values in expected.items():
        other = found[name]
        if other.shape != values.shape:
            raise GramLoopError(
                f"{name} has the shape {other.shape} in the file and {values.shape} in the model"
            )
        first, second = values.astype(np.float64), other.astype(np.float64)
        differs = ~((first == second) | (np.isnan(first) & np.isnan(second)))  # not where both are infinite
        settled = _settled(name, expected, tolerance)
        differs &= settled.reshape(settled.shape + (1,) * (first.ndim - settled.ndim))
        if differs.any() and np.issubdtype(values.dtype, np.floating):
            scale = max(1.0, np.abs(first[np.isfinite(first)]).max(initial=0.0))
            difference = float(np.abs(first - second)[differs].max() / scale)
            largest = max(largest, difference if np.isfinite(difference) else inf)
        elif differs.any():
            largest = max(largest, 1.0)
    return largest


def _settled(name: str, expected: Arrays, tolerance: float) -> NDArray[np.bool_]:
    """Where an output does not depend on which of two almost equal scores is larger."""
    if name == "labels" and "logits" in expected:
        two = np.partition(expected["logits"].astype(np.float64), -2, axis=1)[:, -2:]
        scale = max(1.0, float(np.abs(two).max()))
        clear: NDArray[np.bool_] = two[:, 1] - two[:, 0] > 2 * tolerance * scale
        return clear if expected["logits"].shape[1] > 1 else np.ones_like(clear)
    if name in ("boxes", "classes") and "scores" in expected:
        scores = expected["scores"].astype(np.float64)
        gaps = np.abs(np.diff(scores, axis=1)) > 2 * tolerance
        edge: NDArray[np.bool_] = np.ones((len(scores), 1), dtype=np.bool_)
        apart = np.concatenate([edge, gaps], 1) & np.concatenate([gaps, edge], 1)
        settled: NDArray[np.bool_] = apart | (scores == 0)
        return settled
    return np.ones(expected[name].shape[:1], dtype=np.bool_)
