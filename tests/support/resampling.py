"""The slow and plain way to resample images: every draw is put together and scored anew."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gramloop.metrics.bootstrap import Delta, Weights
from random_boxes import FoundBoxes, TrueBoxes


def picked_delta(difference: Callable[[NDArray[np.int64]], float]) -> Delta:
    """Any statistic at all, from the images drawn: called once per replicate, so as slow as it is.

    ``difference`` gets the positions of the images drawn, in order and repeated as often as drawn.
    """

    def delta(weights: Weights) -> NDArray[np.float64]:
        images = np.arange(weights.shape[1])
        return np.array([difference(np.repeat(images, row)) for row in weights], dtype=np.float64)

    return delta


def resample(
    truth: TrueBoxes, detections: FoundBoxes, picks: NDArray[np.int64]
) -> tuple[TrueBoxes, FoundBoxes]:
    """A set made of images drawn by position, repeated as often as drawn, numbered by place in the draw."""
    images = np.asarray(truth.images)
    order = np.argsort(images)
    owners = [order[np.searchsorted(images[order], each.image_ids)] for each in (truth, detections)]
    kept, new_truth = _drawn_rows(owners[0], len(images), picks)
    found, new_found = _drawn_rows(owners[1], len(images), picks)
    return (
        TrueBoxes(
            range(len(picks)),
            truth.categories,
            new_truth,
            truth.boxes[kept],
            truth.labels[kept],
            truth.areas[kept],
            truth.crowd[kept],
        ),
        FoundBoxes(new_found, detections.boxes[found], detections.scores[found], detections.labels[found]),
    )


def _drawn_rows(
    owners: NDArray[np.int64], images: int, picks: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of the images drawn, and the place in the draw that each belongs to."""
    order = np.argsort(owners, kind="stable")
    sizes = np.bincount(owners, minlength=images)
    first = np.cumsum(sizes) - sizes
    taken = sizes[picks]
    within = np.arange(taken.sum()) - np.repeat(np.cumsum(taken) - taken, taken)
    return order[np.repeat(first[picks], taken) + within], np.repeat(np.arange(len(picks)), taken)
