"""Finding mitigations for a model on its data under shift, and whether any helps."""

from typing import TYPE_CHECKING

from gramloop.lazy import calls, lazy_names

if TYPE_CHECKING:
    from gramloop.tune.options import SearchOptions
    from gramloop.tune.result import Tuning
    from gramloop.tune.space import Space
    from gramloop.tune.tuning import tune
else:
    __getattr__, __dir__ = lazy_names(__name__)
    calls(__name__, "tune")  # gramloop.tune(model, data, suite=…, out=…)

__all__ = ["SearchOptions", "Space", "Tuning", "tune"]
