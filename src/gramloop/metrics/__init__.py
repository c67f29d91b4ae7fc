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
    from gramloop.metrics.miou import Counts, class_iou, count, mean_iou, merge
    from gramloop.metrics.robustness import (
        Comparison,
        Scores,
        coco_o_map,
        compare,
        effective_robustness,
        mean_performance,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "ApResult", "Comparison", "Counts", "DepthScores", "FoundBoxes", "Interval", "Scores", "TrueBoxes",
    "aligned_depth", "average_precision", "class_iou", "cluster_bootstrap", "coco_o_map", "compare",
    "count", "coverage", "depth_scores", "effective_robustness", "image_bootstrap", "mean_iou",
    "mean_performance", "merge", "verdict", "widened",
]  # fmt: skip
