"""Gram-gated replay: extra inference computation for frozen vision transformers.

loop = gramloop.attach(model)   # every forward now replays
loop.detach()                   # and the model is what it was
"""

from typing import TYPE_CHECKING

from gramloop.errors import GramLoopError, GramLoopWarning, MeasuredElsewhereWarning, UntunedWindowWarning
from gramloop.lazy import lazy_names
from gramloop.util.device import configure_cublas

if TYPE_CHECKING:
    from gramloop import evaluate as evaluate  # rooms that can be called, too
    from gramloop import export as export
    from gramloop import tune as tune
    from gramloop.core.config import Adaptive, ReplayConfig
    from gramloop.core.cost import Cost, cost, counting
    from gramloop.core.known import Known, known_settings
    from gramloop.core.loop import Loop, attach, attached
    from gramloop.core.settings import parse_replay, read_replay, write_replay
    from gramloop.core.trace import Trace
    from gramloop.mitigations.calibration import CalibrationStats, calibrate
    from gramloop.mitigations.features import recentre
    from gramloop.mitigations.mitigated import mitigate
else:
    __getattr__, __dir__ = lazy_names(__name__)

configure_cublas()  # later would be too late

__version__ = "0.1.0"

__all__ = [
    "Adaptive", "CalibrationStats", "Cost", "GramLoopError", "GramLoopWarning", "Known", "Loop",
    "MeasuredElsewhereWarning", "ReplayConfig", "Trace", "UntunedWindowWarning", "attach", "attached", "calibrate", "cost",
    "counting", "known_settings", "mitigate", "parse_replay", "read_replay", "recentre", "write_replay",
]  # fmt: skip
