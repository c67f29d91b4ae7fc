"""Mitigations: named changes to how an image is predicted, on pixels, in the backbone, on features or on outputs."""

from typing import TYPE_CHECKING

from gramloop.lazy import lazy_names

if TYPE_CHECKING:
    from gramloop.mitigations.base import STAGES, Mitigation
    from gramloop.mitigations.calibration import CalibrationStats, calibrate, split_for_calibration
    from gramloop.mitigations.features import recentre
    from gramloop.mitigations.mitigated import Mitigated, apply, check_stack, mitigate, stack_cost
    from gramloop.mitigations.stack import parse_mitigations, read_mitigations, stack_text, write_mitigations
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "STAGES", "CalibrationStats", "Mitigated", "Mitigation", "apply", "calibrate", "check_stack", "mitigate",
    "parse_mitigations", "read_mitigations", "recentre", "split_for_calibration", "stack_cost", "stack_text",
    "write_mitigations",
]  # fmt: skip
