"""What ordinary images look like, learnt from clean images of the search alone: nothing that is decided or judged on.

The file lies beside the result, and the journal holds its checksum: a search that goes on uses the same numbers.
"""

from __future__ import annotations

from pathlib import Path

from gramloop.errors import GramLoopError
from gramloop.mitigations.calibration import sha256_of
from gramloop.tune.search.journal import Journal
from gramloop.tune.search.plan import Search
from gramloop.tune.search.workers import Workers
from gramloop.util.files import atomic_write

JOB = "source"  # its name in the journal; trials have tabs in theirs


def find_source(search: Search, journal: Journal, workers: Workers, path: Path) -> Path | None:
    """The file about ordinary images: a given one is copied here, else it is made where a candidate needs it."""
    if search.subject.source is not None:
        atomic_write(path, Path(search.subject.source).read_bytes())
        return path
    if not search.calibration:
        return None
    known = journal.done.get(JOB)
    if known is not None and path.is_file() and sha256_of(path) == known["sha256"]:
        return path
    made = {"job": JOB, **workers.calibrate(search.calibration, str(path))}
    if known is None:
        journal.add(made)
    elif made != known:
        raise GramLoopError(
            f"{path} comes out differently than when this search began; choose another folder, or use the machine and "
            "versions it was begun with"
        )
    return path
