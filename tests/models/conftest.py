from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from golden import Golden, load_golden


@pytest.fixture(scope="session")
def golden() -> Callable[[str], Golden]:
    """``golden("backbone_s")``: configuration, expected values, and weights in the released naming."""
    return load_golden


@pytest.fixture
def golden_file(tmp_path: Path) -> Callable[[str], Path]:
    """``golden_file("backbone_s")``: a checkpoint as Meta would have released it."""

    def write(name: str, wrap: str | None = None) -> Path:
        weights = load_golden(name).weights
        path = tmp_path / f"{name}.pth"
        torch.save({wrap: weights} if wrap else weights, path)
        return path

    return write
