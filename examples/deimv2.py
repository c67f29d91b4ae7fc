"""DEIMv2 detectors in ONNX, as ``--model`` takes them: onnxruntime runs the file, this file prepares and reads.

    DEIMV2_ONNX=deimv2_hgnetv2_femto_coco.onnx gramloop evaluate --model examples/deimv2.py:make --task detection \\
        --suite coco-c --data coco --images 20 --severity 3 --method baseline --method denoise --out results/femto

The graph takes RGB / 255, resized to its own square whatever the image's shape, and the image's width and height;
it returns labels (0 to 79), boxes in pixels and scores. Nothing inside it can be replayed.
"""

from __future__ import annotations

import os
from pathlib import Path

import cv2
import numpy as np
import onnxruntime

# the 80 of COCO's 91 category ids that have instances
COCO_IDS = np.array(
    [number for number in range(1, 91) if number not in (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)]
)


class Deimv2:
    """Pixels (H, W, 3) uint8 to boxes, scores and COCO's category ids."""

    task = "detection"

    def __init__(self, path: Path, threads: int = 1) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.side = int(self.session.get_inputs()[0].shape[-1])

    def __call__(self, image: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Boxes (left, top, right, bottom), scores and labels."""
        height, width = image.shape[:2]
        resized = cv2.resize(image, (self.side, self.side), interpolation=cv2.INTER_LINEAR)
        pixels = resized.astype(np.float32).transpose(2, 0, 1)[None] / 255
        size = np.array([[width, height]], np.int64)
        labels, boxes, scores = self.session.run(
            ["labels", "boxes", "scores"], {"images": pixels, "orig_target_sizes": size}
        )
        return boxes[0], scores[0], COCO_IDS[labels[0]]


def make() -> Deimv2:
    """The detector in the file that DEIMV2_ONNX names."""
    return Deimv2(Path(os.environ.get("DEIMV2_ONNX", "deimv2_hgnetv2_femto_coco.onnx")))
