"""From stored per-image statistics to scores, means over shifts, and intervals; needs numpy and scipy."""

from typing import TYPE_CHECKING

from gramloop.lazy import lazy_names

if TYPE_CHECKING:
    from gramloop.metrics.ap import box_average_precision, mask_average_precision
    from gramloop.metrics.bootstrap import (
        Interval,
        cluster_bootstrap,
        coverage,
        image_bootstrap,
        paired_delta,
        verdict,
        widened,
    )
    from gramloop.metrics.matching import Matches, box_iou, match_boxes, match_masks
    from gramloop.metrics.scores import (
        DepthScores,
        aligned_depth,
        depth_scores,
        effective_robustness,
        mean_corruption_error,
        mean_performance,
        relative_performance,
    )
    from gramloop.metrics.segmentation import (
        class_iou,
        class_quality,
        count_pixels,
        mean_iou,
        mean_quality,
        panoptic_statistics,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "DepthScores", "Interval", "Matches",
    "aligned_depth", "box_average_precision", "box_iou", "class_iou", "class_quality", "cluster_bootstrap",
    "count_pixels", "coverage", "depth_scores", "effective_robustness", "image_bootstrap",
    "mask_average_precision", "match_boxes", "match_masks", "mean_corruption_error", "mean_iou", "mean_performance",
    "mean_quality", "paired_delta", "panoptic_statistics", "relative_performance", "verdict", "widened",
]  # fmt: skip
