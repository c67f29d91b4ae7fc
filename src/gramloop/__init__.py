"""Gram-gated replay: extra inference computation for frozen vision transformers.

loop = gramloop.attach(model)   # every forward now replays
loop.detach()                   # and the model is what it was
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gramloop.errors import GramLoopError, GramLoopWarning

if TYPE_CHECKING:
    from gramloop.core.config import Adaptive, ReplayConfig
    from gramloop.core.cost import Cost, cost, counting
    from gramloop.core.loop import Loop, attach, attached
    from gramloop.core.trace import Trace

__version__ = "0.1.0"

__all__ = [
    "Adaptive",
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

_HOMES = {
    "Adaptive": "core.config",
    "Cost": "core.cost",
    "Loop": "core.loop",
    "ReplayConfig": "core.config",
    "Trace": "core.trace",
    "attach": "core.loop",
    "attached": "core.loop",
    "cost": "core.cost",
    "counting": "core.cost",
}


def __getattr__(name: str) -> Any:
    # On first use: torch takes seconds to import, and commands that only shift images never need it.
    if name not in _HOMES:
        raise AttributeError(f"module 'gramloop' has no attribute {name!r}")
    value = getattr(import_module(f"gramloop.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
