"""How gains add when methods are stacked: a, b and both together, and whether that is more or less than the sum."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from gramloop.evaluate.methods import BASELINE, Method
from gramloop.mitigations.base import Mitigation
from gramloop.mitigations.replay import Replay
from gramloop.report.evidence import Differences, Evidence, differences_of
from gramloop.report.resampling import Resampled


@dataclass(frozen=True)
class Stack:
    """A method that is two others of the run together."""

    whole: str
    parts: tuple[str, str]
    excess: Differences  # of the stack's gain over the sum; joint over all stacks of the run

    @property
    def words(self) -> str:
        """Whether the gains add."""
        if all(each.joint.low > 0 for each in self.excess):
            return "more than the sum"
        if all(each.joint.high < 0 for each in self.excess):
            return "less than the sum"
        return "not told from the sum"


def stacks_of(evidence: Evidence) -> list[Stack]:
    """Every method of the run that is made of two others of it."""
    methods = [each for each in evidence.run.plan.methods if each.name in evidence.run.replays]
    found = list(_stacked(methods))
    if not found:
        return []

    def excess(drawn: Resampled) -> list[NDArray[np.float64]]:
        return [
            drawn.difference(whole, BASELINE)
            - drawn.difference(first, BASELINE)
            - drawn.difference(second, BASELINE)
            for whole, (first, second) in found
        ]

    differences = differences_of(evidence.drawn, excess)
    return [Stack(*each, apart) for each, apart in zip(found, differences, strict=True)]


def _stacked(methods: list[Method]) -> Iterator[tuple[str, tuple[str, str]]]:
    made_of = {method.name: parts_of(method) for method in methods}
    for whole, parts in made_of.items():
        smaller = [name for name, own in made_of.items() if own < parts]
        for first, second in combinations(smaller, 2):
            if made_of[first] | made_of[second] == parts and not made_of[first] & made_of[second]:
                yield whole, (first, second)


def parts_of(method: Method) -> frozenset[Mitigation]:
    """What a method is made of; a replay alone is one part."""
    return frozenset(method.mitigations or ((Replay(method.replay),) if method.replay else ()))
