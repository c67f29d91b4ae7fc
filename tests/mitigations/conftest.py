"""The embedded model for every task, a transformers folder, a custom module, a function, scenes and statistics."""

import numpy as np
import pytest
import torch
from torch import nn

from library_models import build


@pytest.fixture(scope="session")
def images():
    from gramloop.data.scenes.drawing import scene

    return [scene(index, split="val").image for index in range(8)]


def embedded(task):
    from gramloop.models.tiny import WEIGHTS
    from gramloop.tasks import load_predictor

    return load_predictor(task, {"folder": str(WEIGHTS)})


@pytest.fixture(scope="session")
def segmenter():
    return embedded("semantic")


@pytest.fixture(scope="session")
def detector():
    return embedded("detection")


@pytest.fixture(scope="session")
def estimator():
    return embedded("depth")


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Depth Anything on DINOv2, as transformers saves it."""
    from dense_folders import save_model
    from gramloop.tasks.model_spec import open_model

    return open_model(f"hf:{save_model('DepthAnything', tmp_path_factory.mktemp('folder') / 'saved')}")


class PatchDepth(nn.Module):
    """A custom model: the mean channel of DINOv3's patches as depth, in any size that its patches divide."""

    task = "depth"

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.vit = build("DINOv3ViTModel")[0]
        self.read = nn.Linear(32, 1)

    def preprocess(self, pixels):
        height, width = (side // 16 * 16 for side in pixels.shape[:2])
        return torch.from_numpy(pixels[:height, :width].copy()).permute(2, 0, 1)[None] / 255

    def forward(self, pixels):
        patches = self.vit(pixels).last_hidden_state[:, 5:]
        return self.read(patches).reshape(1, 1, pixels.shape[2] // 16, pixels.shape[3] // 16)

    def postprocess(self, depth, size):
        return nn.functional.interpolate(depth, size)[0, 0].abs() + 1


@pytest.fixture(scope="session")
def module():
    from gramloop.tasks import as_predictor

    return as_predictor(PatchDepth().eval(), "depth", name="PatchDepth")


def grey_depth(pixels):
    """As deep as it is bright: a model that treats left and right alike."""
    from gramloop.tasks import Depth

    return Depth(1 + pixels.mean(2, dtype=np.float32))


@pytest.fixture(scope="session")
def function():
    from gramloop.tasks import as_predictor

    return as_predictor(grey_depth, "depth")


@pytest.fixture(scope="session")
def stats(segmenter, images):
    from gramloop.mitigations import calibrate

    return calibrate(segmenter, images)


@pytest.fixture(scope="session")
def all_stats(request, images):
    """Statistics for every predictor, by the name of its fixture."""
    from gramloop.mitigations import calibrate

    names = ("segmenter", "detector", "estimator", "folder", "module", "function")
    return {name: calibrate(request.getfixturevalue(name), images) for name in names}
