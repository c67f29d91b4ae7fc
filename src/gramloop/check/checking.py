"""All checks of a device, and what they say together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import torch

from gramloop.check.arithmetic import drift_cases, placement_cases
from gramloop.check.behaviour import behaviour_cases
from gramloop.check.case import Case
from gramloop.check.heads import head_cases
from gramloop.check.machine import describe_machine


@dataclass(frozen=True)
class Checked:
    """A machine, what was checked on it, and how it came out."""

    machine: dict[str, Any]
    autocast: bool
    cases: tuple[Case, ...]

    @property
    def failed(self) -> tuple[Case, ...]:
        """What does not agree."""
        return tuple(case for case in self.cases if not case.passed)

    @property
    def verdict(self) -> str:
        """One sentence."""
        where = f"{self.machine['device']} in {'bfloat16 autocast' if self.autocast else 'float32'}"
        if not self.failed:
            return f"GramLoop computes on {where} what it should: {len(self.cases)} of {len(self.cases)} checks agree."
        names = ", ".join(case.name for case in self.failed[:3])
        return (
            f"{len(self.failed)} of {len(self.cases)} checks on {where} do not agree ({names}): do not trust numbers of "
            "this machine; gramloop check --json FILE is what a report of the fault needs."
        )

    def as_json(self) -> dict[str, Any]:
        """Everything, as plain values."""
        return {
            "machine": self.machine,
            "autocast": self.autocast,
            "passed": not self.failed,
            "verdict": self.verdict,
            "cases": [asdict(case) for case in self.cases],
        }


def check_machine(
    device: torch.device | str = "cpu",
    autocast: bool = False,
    watch: Callable[[Case], None] = lambda case: None,
) -> Checked:
    """Run every check on a device, in float32 or under bfloat16 autocast; ``watch`` sees each as it is done."""
    place = torch.device(device)
    cases = []
    for case in _all(place, autocast):
        watch(case)
        cases.append(case)
    return Checked(describe_machine(place), autocast, tuple(cases))


def _all(device: torch.device, autocast: bool) -> Iterator[Case]:
    return chain(
        drift_cases(device),
        placement_cases(device, autocast),
        head_cases(device, autocast),
        behaviour_cases(device),
    )
