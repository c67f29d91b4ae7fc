"""Fewer bits: an ONNX file in half precision, or in 8-bit integers calibrated on images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gramloop.export.difference import TOLERANCE
from gramloop.export.formats import ONE_FILE, quiet

Precision = Literal["fp32", "fp16", "int8"]
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
