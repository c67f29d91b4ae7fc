"""Models as users bring them: a torch module with a ViT inside, and a function."""

import numpy as np
import torch
from torch import nn

from gramloop.tasks import Depth
from library_models import build


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


def grey_depth(pixels):
    """As deep as it is bright: a model that treats left and right alike."""
    return Depth(1 + pixels.mean(2, dtype=np.float32))
