"""What predictions are compared with: the labels of a set, or what the plain model says on the clean image.

The second needs no labels, and says nothing about accuracy: it is agreement with the clean prediction.
"""

from __future__ import annotations

from typing import Literal

from gramloop.errors import GramLoopError

TruthKind = Literal["labels", "clean"]
LABELS, CLEAN_PREDICTION = "labels", "clean"
SCORE = 0.5  # a box or mask of the clean prediction that scores less is not taken for an object
SCORED = ("detection", "instance")  # tasks whose predictions have scores, of which some are taken for truth
UNSCORED = 65535  # where a shift moved no clean prediction to
AGREEMENT = "agreement"  # before the name of every metric of a run without labels
SENTENCE = (
    "every number is agreement with the clean prediction, that is with what the plain model says on the clean image; "
    "none is accuracy"
)


def check_truth(kind: str, score: float) -> None:
    """Refuse a kind that there is not, and a score that no box or every box has."""
    if kind not in (LABELS, CLEAN_PREDICTION):
        raise GramLoopError(f"the truth is labels or clean, not {kind!r}")
    if not 0 < score < 1:
        raise GramLoopError(f"the score of a box that counts as truth lies between 0 and 1, not at {score}")
