"""Gram-gated replay: extra inference computation for frozen vision transformers.

loop = gramloop.attach(model)   # every forward now replays
loop.detach()                   # and the model is what it was
"""

from typing import TYPE_CHECKING

from gramloop.errors import GramLoopError, GramLoopWarning, UntunedWindowWarning
from gramloop.lazy import lazy_names
from gramloop.util.device import configure_cublas

if TYPE_CHECKING:
    from gramloop import compare as compare  # rooms that can be called, too
    from gramloop import evaluate as evaluate
    from gramloop import export as export
    from gramloop import tune as tune
    from gramloop.mitigations.calibration import CalibrationStats, calibrate
    from gramloop.mitigations.features import recentre
    from gramloop.mitigations.mitigated import mitigate
    from gramloop.replay.attach import Loop, attach, attached
    from gramloop.replay.config import (
        Adaptive,
        Cost,
        ReplayConfig,
        cost,
        parse_replay,
        read_replay,
        write_replay,
    )
    from gramloop.replay.gram import Trace
    from gramloop.util.forward_patch import counting
else:
    __getattr__, __dir__ = lazy_names(__name__)

configure_cublas()  # later would be too late

__version__ = "0.1.0"

__all__ = [
    "Adaptive", "CalibrationStats", "Cost", "GramLoopError", "GramLoopWarning", "Loop", "ReplayConfig", "Trace",
    "UntunedWindowWarning", "attach", "attached", "calibrate", "cost", "counting", "mitigate", "parse_replay",
    "read_replay", "recentre", "write_replay",
]  # fmt: skip
