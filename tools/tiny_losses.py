"""The losses of the embedded model: pixel cross-entropy, quality focal loss on cells, GIoU and L1 on sides."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def segmentation_loss(logits: Tensor, labels: Tensor) -> Tensor:  # (B, K, h, w), (B, H, W)
    """Cross-entropy after bilinear upsampling to the size of the labels."""
    full = F.interpolate(logits, size=labels.shape[-2:], mode="bilinear", align_corners=False)
    return F.cross_entropy(full, labels)


def side_iou(
    first: Tensor, second: Tensor
) -> tuple[Tensor, Tensor]:  # (n, 4) distances from one shared point
    """IoU and GIoU of boxes that contain the same point, given as distances to their sides."""
    low, high = torch.minimum(first, second), torch.maximum(first, second)
    shared = (low[:, 0] + low[:, 2]) * (low[:, 1] + low[:, 3])
    hull = (high[:, 0] + high[:, 2]) * (high[:, 1] + high[:, 3])
    area = [(box[:, 0] + box[:, 2]) * (box[:, 1] + box[:, 3]) for box in (first, second)]
    union = area[0] + area[1] - shared
    iou = shared / union
    return iou, iou - (hull - union) / hull


def detection_loss(logits: Tensor, sides: Tensor, cell_class: Tensor, cell_box: Tensor) -> Tensor:
    """Scores learn the IoU that the cell's own box reaches; sides learn GIoU and relative L1."""
    positive = cell_class >= 0
    target = torch.zeros_like(logits)  # (B, K, h, w)
    count = positive.sum().clamp(min=1)
    box_loss = logits.new_zeros(())
    if positive.any():
        batch, row, column = positive.nonzero(as_tuple=True)
        predicted = sides[batch, :, row, column]
        wanted = cell_box[positive].clamp(min=0.5)
        iou, giou = side_iou(predicted, wanted)
        log_error = (predicted.log() - wanted.log()).abs().sum(1)
        box_loss = ((1 - giou) + 0.25 * log_error).sum() / count
        target[batch, cell_class[positive], row, column] = iou.detach()
    chance = logits.sigmoid()
    weight = (target - chance.detach()).abs().square()
    cross_entropy = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    score_loss = (weight * cross_entropy).sum() / count
    return 2 * score_loss + box_loss
