"""Packages that only tests compare with, from a folder of the environment that is on no program's path."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

FOLDER = Path(sys.prefix) / "test-packages"
OPERATORS = {
    "torchvision::nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "torchvision::qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


def import_reference(name: str) -> ModuleType:
    """timm, imagecorruptions or segment_anything, or skip the test."""
    # Only while importing: a worker process inherits the path, and transformers would find torchvision there.
    sys.path.append(str(FOLDER))
    try:
        if name in ("timm", "segment_anything"):
            _import_torchvision()
        return pytest.importorskip(name, exc_type=ImportError)
    finally:
        sys.path.remove(str(FOLDER))


def _import_torchvision() -> None:
    # Both import torchvision. One built for CUDA fails beside a torch for CPUs, for want of two operators
    # that nothing here calls: declaring them is enough.
    try:
        importlib.import_module("torchvision")
    except ImportError:
        return
    except RuntimeError:
        for operator, schema in OPERATORS.items():
            torch.library.define(operator, schema)
        importlib.import_module("torchvision")
