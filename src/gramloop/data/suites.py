"""The table of suites: which shifted conditions belong to which name.

A suite is a base set (``coco``, ``ade20k``, ``nyu``, ``kitti``, or a custom one) and a kind: clean, ``-c``
(corruptions), ``-p`` (perturbations) or ``-o`` (domains). Any other name is a suite as well: ``my-set-c`` is the
corruptions of a custom set, ``my-set`` the set itself.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gramloop.errors import GramLoopError, did_you_mean, then
from gramloop.shifts.recipes import (
    CORRUPTION_GROUPS,
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    PERTURBATION_GROUPS,
    PERTURBATIONS,
)

SuiteKind = Literal["clean", "c", "p", "o"]
SEVERITIES = (1, 2, 3, 4, 5)
DOMAINS = ("sketch", "weather", "cartoon", "painting", "tattoo", "handmake")

# by the kind of suite: groups of conditions with one name
SHIFT_GROUPS: dict[str, dict[str, tuple[str, ...]]] = {"c": CORRUPTION_GROUPS, "p": PERTURBATION_GROUPS}
SHIFT_KINDS = ("noise", "blur", "weather", "digital", "geometry")  # groups that share no condition
_GROUP_OF = {
    **{
        name: kind
        for groups in SHIFT_GROUPS.values()
        for kind in SHIFT_KINDS
        for name in groups.get(kind, ())
    },
    **dict(zip(EXTRA_CORRUPTIONS, SHIFT_KINDS, strict=False)),  # one of each of the four kinds
}


@dataclass(frozen=True, order=True)
class Condition:
    """One shift at one strength; clean images and domains have severity 0."""

    name: str
    severity: int = 0

    @property
    def family(self) -> str:
        """What is resampled together: all severities of one shift."""
        return self.name

    @property
    def group(self) -> str:
        """The kind of shift: noise, blur, weather, digital, geometry, domain or clean."""
        return "clean" if self.name == "clean" else _GROUP_OF.get(self.name, "domain")

    @property
    def key(self) -> str:
        """The name in tables, and the folder in a set on disk: ``fog/3``, ``sketch``, ``clean``."""
        return f"{self.name}/{self.severity}" if self.severity else self.name

    @property
    def display_name(self) -> str:
        """In words: ``gaussian noise 3``, ``sketch``."""
        return display_name(self.name) + (f" {self.severity}" if self.severity else "")

    def __str__(self) -> str:
        return self.key


def display_name(name: str, *, capital: bool = False) -> str:
    """A shift, a domain or a kind of shift in words: ``jpeg_compression`` is JPEG compression."""
    words = name.replace("_", " ").replace("jpeg", "JPEG")
    return words[:1].upper() + words[1:] if capital else words


@dataclass(frozen=True)
class Suite:
    """A named list of conditions over one base set."""

    name: str
    base: str
    kind: SuiteKind
    conditions: tuple[Condition, ...]

    @property
    def generated(self) -> bool:
        """Whether the shifted images can be made from the clean set."""
        return self.kind in ("c", "p")

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """Names that stand for several conditions, such as noise."""
        return SHIFT_GROUPS.get(self.kind, {})

    @property
    def names(self) -> list[str]:
        """The shifts of the suite, and the extra corruptions, which belong to no suite but can be requested."""
        extra = EXTRA_CORRUPTIONS if self.kind == "c" else ()
        return list(dict.fromkeys((*(condition.name for condition in self.conditions), *extra)))

    def expand(self, names: Sequence[str]) -> list[str]:
        """The conditions of some names, groups among them, each once."""
        for name in names:
            if name not in self.names and name not in self.groups:
                meant = did_you_mean(name, [*self.groups, *self.names])
                groups = f", and the groups {', '.join(self.groups)}" if self.groups else ""
                wrong = f"the suite {self.name} has no condition {name!r}{meant}"
                raise GramLoopError(then(wrong, f"it has {', '.join(self.names)}{groups}"))
        return list(dict.fromkeys(each for name in names for each in self.groups.get(name, (name,))))

    def select(
        self, names: Sequence[str] | None = None, severities: Sequence[int] | None = None
    ) -> tuple[Condition, ...]:
        """Some of the conditions, in the suite's order.

        Args:
            names: conditions or groups of them; all of the suite by default.
            severities: from 1, also beyond 5; 1 to 5 by default.
        """
        wanted = self.expand(names or ())
        if not self.generated:
            if severities:
                raise GramLoopError(f"the suite {self.name} has no severities, so not {list(severities)}")
            return tuple(condition for condition in self.conditions if not wanted or condition.name in wanted)
        if severities and min(severities) < 1:
            raise GramLoopError(f"severity {min(severities)} does not exist; severities start at 1")
        chosen = wanted or [condition.name for condition in self.conditions]
        ordered = [name for name in self.names if name in chosen]
        strengths = sorted(set(severities)) if severities else SEVERITIES
        return tuple(Condition(name, severity) for name in ordered for severity in strengths)


def _suites_over(base: str) -> list[Suite]:
    corrupted, perturbed = (
        tuple(Condition(name, severity) for name in names for severity in SEVERITIES)
        for names in (CORRUPTIONS, PERTURBATIONS)
    )
    return [
        Suite(base, base, "clean", (Condition("clean"),)),
        Suite(f"{base}-c", base, "c", corrupted),
        Suite(f"{base}-p", base, "p", perturbed),
    ]


SUITES = {
    suite.name: suite
    for suite in (
        *(suite for base in ("ade20k", "coco", "nyu", "kitti") for suite in _suites_over(base)),
        Suite("coco-o", "coco", "o", tuple(Condition(domain) for domain in DOMAINS)),
    )
}


def find_suite(name: str) -> Suite:
    """The suite of a name; a name outside the table is a suite over a custom set."""
    if name in SUITES:
        return SUITES[name]
    if name.strip("-_.") != name or not re.fullmatch(r"[\w.+-]+", name):
        raise GramLoopError(
            f"{name!r} is not a name for a suite; try my-set-c, or one of {', '.join(SUITES)}"
        )
    # a typo must not become a custom set with seeds of its own, but kitti360-c and my-coco-c may be sets
    close = difflib.get_close_matches(name.lower(), SUITES, n=1, cutoff=0.8)
    if close and abs(len(name) - len(close[0])) < 2 and _digits(name) == _digits(close[0]):
        raise GramLoopError(f"there is no suite {name!r}; did you mean {close[0]!r}?")
    base = name.removesuffix("-c").removesuffix("-p")
    return next(suite for suite in _suites_over(base) if suite.name == name)


def _digits(text: str) -> str:
    return "".join(filter(str.isdecimal, text))
