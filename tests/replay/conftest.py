import pytest
from torch import Tensor, nn

from library_models import build, images


@pytest.fixture
def vit() -> nn.Module:
    return build("DINOv3ViTModel")[0]


@pytest.fixture
def x() -> Tensor:
    return images(64)
