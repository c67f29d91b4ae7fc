"""Ways to predict one image differently, at a stated cost: on pixels, in the backbone, on features, on outputs."""

from typing import TYPE_CHECKING

from gramloop.lazy import lazy_names

if TYPE_CHECKING:
    from gramloop.mitigations.applying import Mitigated, apply, check_stack, stack_cost
    from gramloop.mitigations.files import StoredMitigations, read_mitigations, write_mitigations
    from gramloop.mitigations.mitigation import STAGES, Mitigation
    from gramloop.mitigations.source import Source, calibrate, read_source, write_source
    from gramloop.mitigations.texts import parse_mitigations, stack_text
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "STAGES", "Mitigated", "Mitigation", "Source", "StoredMitigations", "apply", "calibrate", "check_stack",
    "parse_mitigations", "read_mitigations", "read_source", "stack_cost", "stack_text", "write_mitigations",
    "write_source",
]  # fmt: skip
