"""The two formats, pt2 by torch.export and ONNX: written, opened, and compared with the model in torch."""

from __future__ import annotations

import hashlib
import io
import logging
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.export import ExportedProgram

from gramloop import __version__
from gramloop.errors import GramLoopError
from gramloop.export.about import KEY, PT2_MEMBER, About

Format = Literal["pt2", "onnx"]
FORMATS: tuple[Format, ...] = ("pt2", "onnx")
"""What can be written."""
TOLERANCE = 1e-4  # of the largest value of an output, or of 1 if that is smaller
Arrays = Mapping[str, NDArray[np.generic]]
ONE_FILE = 1_900_000_000  # bytes; an ONNX file ends at 2 GiB, and larger weights lie beside it
_LARGEST_ABOUT = 1 << 24  # bytes of a description that are read
Run = Callable[[NDArray[np.generic]], Arrays]


def write_pt2(program: ExportedProgram, path: Path, about: About, one_file: int = ONE_FILE) -> list[Path]:
    """Write a program as pt2, and return its files; it is one at any size."""
    with quiet():
        torch.export.save(program, path, extra_files={PT2_MEMBER: about.to_json()})
    return [path]


def open_pt2(path: Path, about: About) -> Run:
    """What runs a file of `write_pt2`."""
    try:
        with quiet():
            module = torch.export.load(path).module()
    except Exception as error:
        raise GramLoopError(f"{path} cannot be opened as pt2: {_first_line(error)}") from error

    def run(images: NDArray[np.generic]) -> Arrays:
        with torch.no_grad():
            found = module(torch.from_numpy(np.ascontiguousarray(images)))
        return {name: value.numpy() for name, value in zip(about.outputs, found, strict=True)}

    return run


def write_onnx(program: ExportedProgram, path: Path, about: About, one_file: int = ONE_FILE) -> list[Path]:
    """Write a program as ONNX, and return its files: one, or a second with the weights where one cannot hold them."""
    ir, common, optimizer = _onnx_packages()
    with quiet():
        made = torch.onnx.export(
            program,
            dynamo=True,
            input_names=list(about.input),
            output_names=list(about.outputs),
            optimize=False,  # its rewriting takes minutes, and gains nothing beside what onnxruntime does itself
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
    model.producer_name, model.producer_version = "gramloop", __version__
    model.doc_string = f"{about.model}, {about.task}: {about.mitigations or 'baseline'}"
    model.metadata_props.clear()
    model.metadata_props[KEY] = about.to_json()
    weights = [value.const_value for value in model.graph.initializers.values()]
    size = sum(int(each.nbytes) for each in weights if each is not None)
    if size <= one_file:
        ir.save(model, path)
        return [path]
    # named after the weights: an older file of this name keeps its own until it is replaced
    data = path.with_name(f"{path.name}.{_digest(program)}.data")
    ir.save(model, path, external_data=data.name)
    return [data, path]


def open_onnx(path: Path, about: About) -> Run:
    """What runs a file of `write_onnx` on the CPU."""
    try:
        import onnxruntime  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:
        raise GramLoopError(f"onnxruntime cannot open {path}: {_first_line(error)}") from error
    (name,) = about.input

    def run(images: NDArray[np.generic]) -> Arrays:
        found = session.run(list(about.outputs), {name: np.ascontiguousarray(images)})
        return dict(zip(about.outputs, found, strict=True))

    return run


def read_about(path: str | Path) -> tuple[Format, About]:
    """The format of a file and what it says of itself; its weights are not read."""
    path = Path(path)
    if not path.is_file():
        raise GramLoopError(f"{path} is not a file; gramloop export writes .pt2 and .onnx files")
    kind, text = ("pt2", _about_pt2(path)) if zipfile.is_zipfile(path) else ("onnx", _about_onnx(path))
    if text is None:
        raise GramLoopError(f"{path} does not say what it is; gramloop export writes files that do")
    return kind, About.from_json(text, str(path))  # type: ignore[return-value]


def _about_pt2(path: Path) -> str | None:
    try:
        with zipfile.ZipFile(path) as archive:
            members = [each for each in archive.infolist() if each.filename.endswith(f"/extra/{PT2_MEMBER}")]
            if len(members) != 1 or members[0].file_size > _LARGEST_ABOUT:
                return None
            return archive.read(members[0]).decode()
    except (zipfile.BadZipFile, OSError, UnicodeDecodeError, NotImplementedError, RuntimeError) as error:
        raise GramLoopError(f"{path} cannot be read as pt2: {error}") from error


def _about_onnx(path: Path) -> str | None:
    try:
        import onnx
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:
        raise GramLoopError(f"{path} is neither pt2 nor ONNX: {_first_line(error)}") from error
    return next((each.value for each in model.metadata_props if each.key == KEY), None)


WRITERS: Mapping[Format, Callable[..., list[Path]]] = {"pt2": write_pt2, "onnx": write_onnx}
OPENERS: Mapping[Format, Callable[[Path, About], Run]] = {"pt2": open_pt2, "onnx": open_onnx}


def check_packages(kind: Format) -> None:
    """Refuse a format whose packages are not installed, before the work begins."""
    if kind == "onnx":
        _onnx_packages()
        try:
            import onnxruntime  # noqa: F401
        except ModuleNotFoundError as error:
            raise _missing(error) from error


def _onnx_packages() -> tuple[Any, Any, Any]:
    try:
        import onnx  # noqa: F401
        import onnx_ir
        import onnx_ir.passes.common
        from onnxscript import optimizer
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    return onnx_ir, onnx_ir.passes.common, optimizer


def _missing(error: ModuleNotFoundError) -> GramLoopError:
    return GramLoopError(f"ONNX needs the package {error.name}; pip install 'gramloop[export]' brings it")


def _digest(program: ExportedProgram) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(program.state_dict.items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()[:16]


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[
        :300
    ]


@contextmanager
def quiet() -> Iterator[None]:
    """Without what torch tells meanwhile about packages that are not needed here, and of graphs in full."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    sink = io.StringIO()  # torch prints a graph that it cannot trace
    try:
        with warnings.catch_warnings(), redirect_stdout(sink), redirect_stderr(sink):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def largest_difference(expected: Arrays, found: Arrays) -> float:
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
        if np.issubdtype(values.dtype, np.floating):
            largest = max(largest, _difference(values, other, _settled(name, expected)))
        elif (values != other)[_settled(name, expected)].any():
            largest = max(largest, 1.0)
    return largest


def _difference(values: NDArray[np.generic], other: NDArray[np.generic], where: NDArray[np.bool_]) -> float:
    first, second = values.astype(np.float64), other.astype(np.float64)
    same = (first == second) | (np.isnan(first) & np.isnan(second))  # also where both are infinite
    mask = ~same & where.reshape(where.shape + (1,) * (first.ndim - where.ndim))
    if not mask.any():
        return 0.0
    finite = np.abs(first[np.isfinite(first)])
    difference = np.abs(first - second)[mask].max() / max(1.0, finite.max(initial=0.0))
    return float(difference) if np.isfinite(difference) else np.inf


def _settled(name: str, expected: Arrays) -> NDArray[np.bool_]:
    """Where an output does not depend on which of two almost equal scores is larger."""
    if name == "labels" and "logits" in expected:
        two = np.partition(expected["logits"].astype(np.float64), -2, axis=1)[:, -2:]
        scale = max(1.0, float(np.abs(two).max()))
        clear: NDArray[np.bool_] = two[:, 1] - two[:, 0] > 2 * TOLERANCE * scale
        return clear if expected["logits"].shape[1] > 1 else np.ones_like(clear)
    if name in ("boxes", "classes") and "scores" in expected:
        scores = expected["scores"].astype(np.float64)
        gaps = np.abs(np.diff(scores, axis=1)) > 2 * TOLERANCE
        edge: NDArray[np.bool_] = np.ones((len(scores), 1), dtype=np.bool_)
        apart = np.concatenate([edge, gaps], 1) & np.concatenate([gaps, edge], 1)
        settled: NDArray[np.bool_] = apart | (scores == 0)
        return settled
    return np.ones(expected[name].shape[:1], dtype=np.bool_)
