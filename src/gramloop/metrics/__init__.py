"""From stored per-image statistics to scores, means over shifts, and intervals; numpy, and scipy for Student's t."""

from typing import TYPE_CHECKING

from gramloop.lazy import lazy_names

if TYPE_CHECKING:
    from gramloop.metrics.bootstrap import (
        Interval,
        cluster_bootstrap,
        coverage,
        image_bootstrap,
        verdict,
        widened,
    )
    from gramloop.metrics.boxes import FoundBoxes, TrueBoxes
    from gramloop.metrics.coco_ap import ApResult, average_precision
    from gramloop.metrics.depth import DepthScores, aligned_depth, depth_scores
    from gramloop.metrics.mask_ap import MaskMatches, mask_average_precision, match_masks
    from gramloop.metrics.miou import Counts, class_iou, count, mean_iou, merge
    from gramloop.metrics.panoptic import class_quality, mean_quality, panoptic_statistics, pq_delta
    from gramloop.metrics.robustness import (
        Comparison,
        Scores,
        coco_o_map,
        compare,
        effective_robustness,
        mean_corruption_error,
        mean_performance,
        relative_performance,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "ApResult", "Comparison", "Counts", "DepthScores", "FoundBoxes", "Interval", "MaskMatches", "Scores",
    "TrueBoxes", "aligned_depth", "average_precision", "class_iou", "class_quality", "cluster_bootstrap",
    "coco_o_map", "compare", "count", "coverage", "depth_scores", "effective_robustness", "image_bootstrap",
    "mask_average_precision", "match_masks", "mean_corruption_error", "mean_iou", "mean_performance", "mean_quality",
    "merge", "panoptic_statistics", "pq_delta", "relative_performance", "verdict", "widened",
]  # fmt: skip
