"""Import timm beside a CPU build of torch."""

from __future__ import annotations

from types import ModuleType

import pytest

from gramloop.models.hf import transformers_module


def import_timm() -> ModuleType:
    """timm, or skip the test; needs the torchvision that importing transformers' models makes importable."""
    transformers_module("models.dinov3_vit")
    return pytest.importorskip("timm", exc_type=ImportError)
