"""The formats: pt2 by torch.export, ONNX, and OpenVINO; written, opened, and described."""

from __future__ import annotations

import errno
import hashlib
import io
import logging
import os
import shutil
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.export import ExportedProgram

from gramloop import __version__
from gramloop.errors import GramLoopError
from gramloop.export.about import PT2_MEMBER, About
from gramloop.tasks.graphs import METADATA, Arrays, Graph, first_line, runtime_package

Format = Literal["pt2", "onnx", "openvino"]
ENDINGS: dict[Format, str] = {"pt2": ".pt2", "onnx": ".onnx", "openvino": ".xml"}
FORMATS: tuple[Format, ...] = tuple(ENDINGS)
"""What can be written."""
ONE_FILE = 1_900_000_000  # bytes; an ONNX file ends at 2 GiB, and larger weights go into a second file
_LARGEST_ABOUT = 1 << 24  # bytes of a description that are read
Run = Callable[[NDArray[np.generic]], Arrays]
Convert = Callable[[Path], Path]  # an ONNX file into another with fewer bits


def write_program(
    program: ExportedProgram, path: Path, kind: Format, about: About, convert: Convert | None = None
) -> list[Path]:
    """Write a program, and return its files, the one that readers open last."""
    if kind == "pt2":
        held = [
            *program.state_dict.values(),
            *(each for each in program.constants.values() if isinstance(each, Tensor)),
        ]
        if (
            shutil.disk_usage(path.parent).free < sum(each.nbytes for each in held) * 1.1 + 1e6
        ):  # torch would abort
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        with quiet():
            torch.export.save(program, path, extra_files={PT2_MEMBER: about.to_json()})
        return [path]
    ir, *_ = _onnx_packages()
    model = _onnx_model(program, about)
    if convert is None and kind == "onnx":
        return _save_onnx(model, path, about, program)
    plain = path.with_name("float32.onnx")
    ir.save(model, plain, external_data="float32.data")
    converted = plain if convert is None else convert(plain)
    if kind == "onnx":
        return _save_onnx(ir.load(converted), path, about, program)
    openvino: Any = runtime_package("openvino", path)
    with quiet():
        made = openvino.convert_model(converted)
        made.set_rt_info(about.to_json(), [METADATA])
        openvino.save_model(made, path, compress_to_fp16=about.settings.get("precision") == "fp16")
    return [path.with_suffix(".bin"), path]


def _onnx_model(program: ExportedProgram, about: About) -> Any:
    ir, common, optimizer = _onnx_packages()
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
        common.RemoveUnusedFunctionsPass(),
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
    ir, *_ = _onnx_packages()
    model.producer_name, model.producer_version = "gramloop", __version__
    model.doc_string = f"{about.model}, {about.task}: {about.mitigations or 'baseline'}"
    model.metadata_props.clear()
    model.metadata_props[METADATA] = about.to_json()
    weights = [value.const_value for value in model.graph.initializers.values()]
    if sum(int(each.nbytes) for each in weights if each is not None) <= ONE_FILE:
        ir.save(model, path)
        return [path]
    # named after the weights: an older file of this name keeps its own until it is replaced
    data = path.with_name(f"{path.name}.{_digest(program, about)}.data")
    ir.save(model, path, external_data=data.name)
    return [data, path]


def open_program(path: Path, about: About) -> Run:
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


def read_about(path: str | Path) -> tuple[Format, About]:
    """The format of a file and what it says of itself."""
    path = Path(path)
    kind = next((kind for kind, ending in ENDINGS.items() if path.suffix.lower() == ending), None)
    if kind is None or not path.is_file():
        raise GramLoopError(f"{path} is not a file that gramloop export writes: .pt2, .onnx or .xml")
    text = _about_pt2(path) if kind == "pt2" else Graph(path).metadata.get(METADATA)
    if text is None:
        raise GramLoopError(f"{path} does not say what it is; gramloop export writes files that do")
    return kind, About.from_json(text, str(path))


def _about_pt2(path: Path) -> str | None:
    try:
        with zipfile.ZipFile(path) as archive:
            members = [each for each in archive.infolist() if each.filename.endswith(f"/extra/{PT2_MEMBER}")]
            if len(members) != 1 or members[0].file_size > _LARGEST_ABOUT:
                return None
            return archive.read(members[0]).decode()
    except (zipfile.BadZipFile, OSError, UnicodeDecodeError, NotImplementedError, RuntimeError) as error:
        raise GramLoopError(f"{path} cannot be read as pt2: {error}") from error


def check_packages(kind: Format, path: Path) -> None:
    """Refuse a format whose packages are not installed, before the work begins."""
    if kind != "pt2":
        _onnx_packages()
        runtime_package("onnxruntime", path)
    if kind == "openvino":
        runtime_package("openvino", path)


def _onnx_packages() -> tuple[Any, Any, Any]:
    try:
        import onnx  # noqa: F401
        import onnx_ir
        import onnx_ir.passes.common
        from onnxscript import optimizer
    except ModuleNotFoundError as error:
        raise GramLoopError(
            f"ONNX needs the package {error.name}; the extra gramloop[export] installs it"
        ) from error
    return onnx_ir, onnx_ir.passes.common, optimizer


def _digest(program: ExportedProgram, about: About) -> str:
    digest = hashlib.sha256(str(about.settings.get("precision")).encode())
    for name, value in sorted(program.state_dict.items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()[:16]


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
