"""Mitigations as text: ``recentre:0.3``, or several joined by a plus, ``median+recentre:0.3+gramloop``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gramloop.errors import GramLoopError
from gramloop.mitigations.denoise import Denoise
from gramloop.mitigations.filters import Gaussian, Median, Nlm
from gramloop.mitigations.levels import Levels, Sharpen
from gramloop.mitigations.mitigation import STAGES, Mitigation
from gramloop.mitigations.norms import Norms
from gramloop.mitigations.outputs import Flip, PairMean, Resize, Scales
from gramloop.mitigations.recentre import Recentre
from gramloop.mitigations.replay import REPLAYS, SUBSTEPS, Replay, parse_substeps

KINDS: Mapping[str, type[Mitigation]] = {
    kind.name: kind
    for kind in (
        Median,
        Gaussian,
        Nlm,
        Denoise,
        Levels,
        Sharpen,
        Replay,
        Recentre,
        Norms,
        Scales,
        Resize,
        Flip,
        PairMean,
    )
}


def parse_mitigations(text: str) -> tuple[Mitigation, ...]:
    """The mitigations of a text, in the order in which they act, whatever the order written."""
    return ordered([_parse_one(part.strip()) for part in text.split("+")])


def stack_text(stack: Sequence[Mitigation]) -> str:
    """What `parse_mitigations` reads back."""
    return "+".join(each.text for each in stack)


def names_mitigations(text: str) -> bool:
    """Whether every part of a text begins with the name of a mitigation."""
    return all(part.strip().partition(":")[0] in {*KINDS, *REPLAYS, SUBSTEPS} for part in text.split("+"))


def ordered(stack: Sequence[Mitigation]) -> tuple[Mitigation, ...]:
    """By stage, and within one as written, the average of ordinary and replayed first; each kind once."""
    for index, each in enumerate(stack):
        if any(type(each) is type(other) for other in stack[:index]):
            raise GramLoopError(f"{each.name} is given twice in {stack_text(stack)!r}")
    return tuple(sorted(stack, key=lambda each: (STAGES.index(each.stage), not isinstance(each, PairMean))))


def _parse_one(text: str) -> Mitigation:
    name, colon, arguments = text.partition(":")
    if name in REPLAYS:
        if colon:
            raise GramLoopError(f"{name} has its settings already; others are given as replay:{arguments}")
        return Replay(REPLAYS[name])
    if name == SUBSTEPS:
        return parse_substeps(arguments)
    if name not in KINDS:
        raise GramLoopError(
            f"there is no mitigation {name!r}; there are {', '.join([*KINDS, SUBSTEPS])}, and the replays {', '.join(REPLAYS)}"
        )
    return KINDS[name].parse(arguments)
