"""Fewer bits: an ONNX file in half precision, or in 8-bit integers calibrated on images; and how much a file differs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gramloop.errors import GramLoopError
from gramloop.export.formats import ONE_FILE, quiet
from gramloop.tasks.graphs import Arrays

Precision = Literal["fp32", "fp16", "int8"]
TOLERANCE = 1e-4  # of the largest value of an output, or of 1 if that is smaller
TOLERANCES: dict[Precision, float] = {"fp32": TOLERANCE, "fp16": 0.02, "int8": inf}
_QUANTISED = ["Conv", "MatMul", "Gemm"]  # where the time goes; norms and softmax lose more than they gain


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
    """Weights and activations of layers in 8 bits, with the ranges that activations have on images.

    Args:
        source: an ONNX file.
        name: of its input.
        images: arrays that it takes.
    """
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


def largest_difference(expected: Arrays, found: Arrays, tolerance: float = TOLERANCE) -> float:
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
            largest = max(largest, _difference(values, other, _settled(name, expected, tolerance)))
        elif (values != other)[_settled(name, expected, tolerance)].any():
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
