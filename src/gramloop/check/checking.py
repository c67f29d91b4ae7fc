"""All checks of a device, and what they say together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, Literal

import torch

from gramloop.check.arithmetic import drift_cases, placement_cases
from gramloop.check.behaviour import behaviour_cases
from gramloop.check.case import Case
from gramloop.check.heads import head_cases
from gramloop.check.machine import describe_machine
from gramloop.check.way import Way, true_float32
from gramloop.errors import GramLoopError

Precision = Literal["float32", "bfloat16"]
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Checked:
    """A machine, what was checked on it, and how it came out."""

    machine: dict[str, Any]
    precision: str
    cases: tuple[Case, ...]

    @property
    def failed(self) -> tuple[Case, ...]:
        """What does not agree."""
        return tuple(case for case in self.cases if case.passed is False)

    @property
    def verdict(self) -> str:
        """One sentence."""
        where = f"{self.machine['device']} in {self.precision}"
        judged = [case for case in self.cases if case.passed is not None]
        if not self.failed:
            return (
                f"GramLoop computes on {where} what it should: {len(judged)} of {len(judged)} checks agree."
            )
        names = ", ".join(f"{case.group}: {case.name}" for case in self.failed[:3])
        return (
            f"{len(self.failed)} of {len(judged)} checks on {where} do not agree ({names}): do not trust numbers of this "
            "machine; what gramloop check --json prints is what a report of the fault needs."
        )

    def as_json(self) -> dict[str, Any]:
        """Everything, as plain values."""
        return {
            "machine": self.machine,
            "precision": self.precision,
            "passed": not self.failed,
            "verdict": self.verdict,
            "cases": [asdict(case) for case in self.cases],
        }


def check_machine(
    device: torch.device | str = "cpu",
    autocast: bool = False,
    dtype: Precision = "float32",
    watch: Callable[[Case], None] = lambda case: None,
) -> Checked:
    """Run every check on a device.

    Args:
        device: such as ``cuda:1``.
        autocast: run the backbone's blocks under bfloat16 autocast, as GPUs run the released models.
        dtype: of the backbone's weights.
        watch: sees each case as it is done.
    """
    if dtype not in _DTYPES:
        raise GramLoopError(f"dtype is {dtype!r}; it is one of {', '.join(_DTYPES)}")
    if autocast and dtype != "float32":
        raise GramLoopError("autocast is for weights in float32; leave out --autocast or --dtype")
    way = Way(torch.device(device), _DTYPES[dtype], autocast)
    cases = []
    with true_float32():
        for case in _all(way):
            watch(case)
            cases.append(case)
    return Checked(describe_machine(way.device), way.words, tuple(cases))


def _all(way: Way) -> Iterator[Case]:
    return chain(drift_cases(way), placement_cases(way), head_cases(way), behaviour_cases(way))
