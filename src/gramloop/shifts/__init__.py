"""Deterministic image shifts: corruptions (-C suites), perturbations (-P suites), and their seeds."""

from typing import TYPE_CHECKING

from gramloop.lazy import lazy_names

if TYPE_CHECKING:
    from gramloop.shifts.common import generator, signs
    from gramloop.shifts.recipes import (
        CORRUPTIONS,
        EXTRA_CORRUPTIONS,
        PERTURBATIONS,
        corrupt,
        corruption_names,
        get_corruption_names,
        perturb,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "CORRUPTIONS", "EXTRA_CORRUPTIONS", "PERTURBATIONS", "corrupt", "corruption_names", "generator",
    "get_corruption_names", "perturb", "signs",
]  # fmt: skip
