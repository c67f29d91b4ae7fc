"""The door to transformers, which stays open beside a torchvision that does not fit the torch installed."""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType

import torch

_OPERATORS = {
    "torchvision::nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "torchvision::qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


@cache
def transformers_module(name: str) -> ModuleType:
    """A module of transformers, such as ``models.dinov3_vit``."""
    _let_torchvision_import()
    return importlib.import_module(f"transformers.{name}")


def _let_torchvision_import() -> None:
    # transformers imports torchvision wherever it is installed. One built for CUDA fails beside a torch for
    # CPUs, for want of two operators that nothing here calls: declaring them is enough.
    try:
        importlib.import_module("torchvision")
    except ImportError:
        return
    except RuntimeError:
        for name, schema in _OPERATORS.items():
            try:
                torch.library.define(name, schema)
            except RuntimeError:
                continue  # already declared
