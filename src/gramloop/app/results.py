"""Result folders: which ones the page may open, and the report of one of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from threading import RLock

from gramloop.app.settings import AppSettings
from gramloop.errors import GramLoopError
from gramloop.evaluate.store import PLAN

DEEPEST = 4  # levels of folders that are searched
_LONGEST = 1000  # characters of a path


def find_folders(roots: Sequence[Path]) -> list[Path]:
    """The result folders at and below some folders, in order."""
    patterns = ["*/" * depth + PLAN for depth in range(DEEPEST + 1)]
    found = [sorted(path.parent for pattern in patterns for path in root.glob(pattern)) for root in roots]
    return list(dict.fromkeys(folder for each in found for folder in each))


def allowed_folder(settings: AppSettings, typed: str) -> Path:
    """The folder that a visitor names; one outside of ``--results`` is refused unless the page is local."""
    text = typed.strip()
    if not text or len(text) > _LONGEST or "\0" in text:
        raise GramLoopError("choose a folder that gramloop evaluate wrote, such as out/first")
    try:
        path = (Path(text).expanduser() if settings.local else Path(text)).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise GramLoopError(f"{text} is no folder") from error
    inside = any(path.is_relative_to(root.resolve()) for root in settings.results)
    if not inside and not settings.local:
        raise GramLoopError("only folders below those of --results can be opened here")
    if not path.is_dir():
        raise GramLoopError(f"{text} is no folder")
    return path


def report_page(folder: Path, drawing: RLock) -> str:
    """The report of a result folder, or of the folders in it, as one HTML page.

    Args:
        folder: As `allowed_folder` returned it. A report is made again when its files have changed.
        drawing: Held while figures are drawn.
    """
    from gramloop.report.load import find_results
    from gramloop.report.tuned import is_tuned

    if is_tuned(folder):
        return _made_page(folder, (1, (folder / "best.json").stat().st_mtime_ns), drawing)
    files = [path.stat() for place in find_results([folder]) for path in place.rglob("*") if path.exists()]
    return _made_page(folder, (len(files), max(each.st_mtime_ns for each in files)), drawing)


@lru_cache(maxsize=8)
def _made_page(folder: Path, _state: tuple[int, int], drawing: RLock) -> str:
    from gramloop.report.document import make_document
    from gramloop.report.figures import draw_figures
    from gramloop.report.load import load_runs, report_workers
    from gramloop.report.page import render
    from gramloop.report.stats import compare_methods
    from gramloop.report.tuned import is_tuned, tuning_document

    if is_tuned(folder):
        with drawing:
            return render(tuning_document(folder, pdf=False))
    workers = report_workers([folder])
    loaded = load_runs([folder], workers=workers)
    evidence = compare_methods(loaded.runs, ("families",), workers=workers)
    with drawing:
        drawn = draw_figures(loaded, evidence, pdf=False)
    return render(make_document(loaded, evidence, drawn.figures, drawn.remarks))
