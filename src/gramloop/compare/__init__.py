"""Comparison: two or more models, or finished evaluations, on the same images and shifts."""

from typing import TYPE_CHECKING

from gramloop.lazy import calls, lazy_names

if TYPE_CHECKING:
    from gramloop.compare.models import compare_models
    from gramloop.compare.paired import ModelComparison, PairedRow, compare_folders, judge_gate, parse_gate
else:
    __getattr__, __dir__ = lazy_names(__name__)
    calls(__name__, "compare_models")  # gramloop.compare("a.onnx", "b.onnx", suite=…, out=…)

__all__ = [
    "ModelComparison", "PairedRow", "compare_folders", "compare_models", "judge_gate", "parse_gate",
]  # fmt: skip
