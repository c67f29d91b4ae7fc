"""Finding a replay for a backbone: what can be seen without labels, and what labels say."""

from typing import TYPE_CHECKING

from gramloop.lazy import lazy_names

if TYPE_CHECKING:
    from gramloop.tune.scan.files import read_scan
    from gramloop.tune.scan.scanning import Scan, scan_windows
    from gramloop.tune.scan.scores import SCORES, rank_correlation, ranked
    from gramloop.tune.search.plan import Options
    from gramloop.tune.search.space import Space
    from gramloop.tune.search.tuning import Tuning, tune
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "SCORES", "Options", "Scan", "Space", "Tuning", "rank_correlation", "ranked", "read_scan",
    "scan_windows", "tune",
]  # fmt: skip
