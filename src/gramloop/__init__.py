"""Gram-gated replay: extra inference computation for frozen vision transformers.

loop = gramloop.attach(model)   # every forward now replays
loop.detach()                   # and the model is what it was
"""

from gramloop.attach import Loop, attach, attached
from gramloop.config import ReplayConfig
from gramloop.cost import Cost, cost, counting
from gramloop.errors import GramLoopError, GramLoopWarning
from gramloop.trace import Trace

__version__ = "0.1.0"

__all__ = [
    "Cost",
    "GramLoopError",
    "GramLoopWarning",
    "Loop",
    "ReplayConfig",
    "Trace",
    "attach",
    "attached",
    "cost",
    "counting",
]
