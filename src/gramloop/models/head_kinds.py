"""Which head a file holds: its names tell."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from gramloop.errors import GramLoopError
from gramloop.models.checkpoint import open_checkpoint
from gramloop.models.pmt_files import CLASSES, INSIDE, QUERIES, clean_names

HeadKind = Literal["mask2former", "plain-detr", "pmt", "depther", "linear"]
HEADS: dict[HeadKind, str] = {
    "mask2former": "a Mask2Former head of Meta's",
    "plain-detr": "a Plain-DETR head of Meta's",
    "pmt": "a PMT head",
    "depther": "a depth head of Meta's",
    "linear": "a linear head",
}
# a name, or the beginning of one, that files of this kind alone have
_MARKS: dict[HeadKind, str] = {
    "mask2former": "segmentation_model.",
    "plain-detr": "transformer.decoder.",
    "pmt": QUERIES,
    "depther": "reassemble_blocks.",
    "linear": "conv.weight",
}
_WRAPPED = ("model", INSIDE)  # keys under which the released files keep their weights


def head_kind(path: str | Path) -> HeadKind:
    """The kind of head that a file holds; no tensor is read."""
    names = list(clean_names(open_checkpoint(path, inside=_WRAPPED)).shapes)
    for kind, mark in _MARKS.items():
        if any(name.startswith(mark) for name in names):
            return kind
    raise GramLoopError(
        f"{path} is no head that is known, which are {', '.join(HEADS.values())}: its names begin with "
        f"{', '.join(names[:3])}"
    )


def head_classes(path: str | Path) -> int:
    """How many classes a PMT head tells apart."""
    checkpoint = clean_names(open_checkpoint(path, inside=_WRAPPED))
    checkpoint.require([CLASSES], "a PMT head")
    return checkpoint.shapes[CLASSES][0] - 1
