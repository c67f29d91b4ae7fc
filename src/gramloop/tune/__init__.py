"""Finding a replay for a backbone: what can be seen without labels, and what labels say."""

from typing import TYPE_CHECKING

from gramloop.lazy import calls, lazy_names

if TYPE_CHECKING:
    from gramloop.tune.scan.files import read_scan
    from gramloop.tune.scan.scanning import Scan, scan_windows
    from gramloop.tune.scan.scores import SCORES, rank_correlation, ranked
    from gramloop.tune.search.from_python import tune_model
    from gramloop.tune.search.options import Options
    from gramloop.tune.search.space import Space
    from gramloop.tune.search.tuning import Tuning, tune
else:
    __getattr__, __dir__ = lazy_names(__name__)
    calls(__name__, "tune_model")  # gramloop.tune(model, data, suite=…, out=…)

__all__ = [
    "SCORES", "Options", "Scan", "Space", "Tuning", "rank_correlation", "ranked", "read_scan",
    "scan_windows", "tune", "tune_model",
]  # fmt: skip
