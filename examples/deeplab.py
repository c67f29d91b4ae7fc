"""DeepLabv3 with MobileNetV2 for VOC's 21 classes, as ``--model`` takes it, in torch or exported.

    export DEEPLAB=deeplab_voc
    gramloop evaluate --model examples/deeplab.py:make --suite voc-c --data voc --severity 3 \\
        --method baseline --method levels --method norms:0.1 --out results/deeplab
    gramloop export --model examples/deeplab.py:make --height 513 --width 513 --out deeplab.onnx
    cp examples/deeplab.py . && gramloop evaluate --model deeplab.onnx --suite voc-c --data voc --out results/onnx

DEEPLAB names a transformers folder (MobileNetV2ForSemanticSegmentation) without a processor, so this file prepares:
the long side becomes 513, grey fills the rest of a square of 513, and classes are read off that square. Next to an
exported file of the same name, ``prepare`` and ``read`` do that for it. It has no ViT, so nothing is replayed.
"""

from __future__ import annotations

import os

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gramloop.tasks import Segmentation

SIDE = 513
task = "semantic"
classes = [
    "background",
    "aeroplane",
    "bicycle",
    "bird",
    "boat",
    "bottle",
    "bus",
    "car",
    "cat",
    "chair",
    "cow",
    "diningtable",
    "dog",
    "horse",
    "motorbike",
    "person",
    "pottedplant",
    "sheep",
    "sofa",
    "train",
    "tvmonitor",
]


def prepare(image: np.ndarray) -> np.ndarray:  # (H, W, 3) uint8 → (1, 3, 513, 513)
    """The image at the top left of a grey square, in -1 to 1."""
    height, width = _inside(image.shape[:2])
    square = np.full((SIDE, SIDE, 3), 127.5, np.float32)
    square[:height, :width] = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
    return (square / 127.5 - 1).transpose(2, 0, 1)[None]  # channels last in memory


def read(outputs: dict[str, np.ndarray], size: tuple[int, int]) -> Segmentation:
    """The likeliest class of every pixel, and the probabilities of all."""
    (logits,) = outputs.values()  # (1, 21, 65, 65)
    rows, columns = (
        _enlarging(logits.shape[-1], inside, side) for inside, side in zip(_inside(size), size, strict=True)
    )
    scores = (rows.T @ torch.from_numpy(logits[0]) @ columns).softmax(0)
    return Segmentation(scores.argmax(0).int().numpy(), scores.numpy())


def _enlarging(cells: int, inside: int, side: int) -> Tensor:  # (cells, side)
    """The square in full, cut to the image, brought to its size: two linear steps as one matrix for an axis."""
    square = F.interpolate(torch.eye(cells)[None], SIDE, mode="linear", align_corners=True)
    return F.interpolate(square[:, :, :inside], side, mode="linear", align_corners=False)[0]


def _inside(size: tuple[int, int]) -> tuple[int, int]:
    """The size of an image within the square."""
    height, width = (round(side * SIDE / max(size)) for side in size)
    return height, width


class DeepLab(nn.Module):
    """Pixels (1, 3, 513, 513) in -1 to 1 to logits (1, 21, 65, 65)."""

    task = task

    def __init__(self, folder: str) -> None:
        super().__init__()
        from transformers import MobileNetV2ForSemanticSegmentation

        network = MobileNetV2ForSemanticSegmentation.from_pretrained(folder, local_files_only=True).eval()
        self.network = network.to(memory_format=torch.channels_last)  # a third faster on a CPU
        self.classes = dict(self.network.config.id2label)

    def forward(self, pixels: Tensor) -> Tensor:
        """The logits of every class."""
        return self.network(pixels).logits

    def preprocess(self, image: np.ndarray) -> Tensor:
        """What `prepare` returns, as a tensor."""
        return torch.from_numpy(prepare(image))

    def postprocess(self, logits: Tensor, size: tuple[int, int]) -> Segmentation:
        """What `read` makes of the logits."""
        return read({"logits": logits.numpy()}, size)


def make() -> DeepLab:
    """The network in the folder that DEEPLAB names."""
    return DeepLab(os.environ.get("DEEPLAB", "deeplab_voc"))
