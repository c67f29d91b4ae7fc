"""Results folders of `gramloop evaluate` for the page: which may be opened, their scores, and their images by gain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import numpy as np

from gramloop.app.cache import Cache
from gramloop.app.choices import EVERY, Order
from gramloop.app.panes import Panes, compared_panes
from gramloop.app.settings import AppSettings
from gramloop.data.suites import Condition
from gramloop.errors import GramLoopError, short_repr
from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.results import measures_gain
from gramloop.evaluate.store import UNITS as UNIT_FOLDER
from gramloop.report.figures.images import KeptImage, ShownImages, kept_images
from gramloop.report.load import OnProgress, find_results, load_runs
from gramloop.report.run import Run


@dataclass(frozen=True)
class Ranked:
    """An image that keeps both predictions, with its scores in percent."""

    kept: KeptImage
    ordinary: float
    treated: float

    @property
    def gain(self) -> float:
        """Treated less ordinary."""
        return self.treated - self.ordinary


class ResultsRoom:
    """The folders that visitors may open; what was read is kept for all of them."""

    def __init__(self, settings: AppSettings, cache: Cache) -> None:
        self.roots = tuple(folder.resolve() for folder in settings.results)
        self.free = settings.local  # whether any folder may be typed in
        self.cache = cache
        self._images: tuple[object, ShownImages] | None = (
            None  # of one run: the list of a large set fills memory
        )
        self._lock = Lock()

    def place(self, typed: str) -> Path:
        """The folder that a visitor means. One outside of what is allowed is refused before it is looked at."""
        text = typed.strip()
        if not text or len(text) > 1000 or "\0" in text:
            raise GramLoopError("type the folder that gramloop evaluate wrote, such as out/demo/segment")
        try:
            path = Path(text).expanduser().resolve() if self.free else Path(text).resolve()
        except (OSError, RuntimeError, ValueError) as error:
            raise GramLoopError(f"{text} is no folder") from error
        inside = any(path.is_relative_to(root) for root in self.roots)
        if not inside and not self.free:
            raise GramLoopError("only folders below those given with --results can be opened here")
        return path

    def open(self, typed: str, on_progress: OnProgress = lambda _: None) -> tuple[Run, ...]:
        """The runs of a folder, or of the folders in it; read again when something there has changed."""
        path = self.place(typed)
        if not path.is_dir():
            raise GramLoopError(f"{typed.strip()} is no folder")
        key = str(path), _state(path)
        return self.cache.get("runs", key, lambda: load_runs([path], on_progress).runs)

    def ranked(self, run: Run, method: str) -> tuple[Ranked, ...]:
        """The images that keep pictures of the baseline and a method, in the order of the plan."""
        if not isinstance(method, str) or method not in run.compared:
            raise GramLoopError(f"{run.name} compares no method {short_repr(method)} with the baseline")
        key = str(run.folder), _state(run.folder), method
        return self.cache.get("ranked", key, lambda: _ranked(run, method))

    def row(self, run: Run, method: str, chosen: Ranked) -> Panes:
        """The pictures of one image: input, truth and both predictions."""
        state = str(run.folder), _state(run.folder)
        key = *state, method, chosen.kept.condition.key, chosen.kept.position

        def draw() -> Panes:
            with self._lock:
                if self._images is None or self._images[0] != state:
                    self._images = state, ShownImages(run)
                row = self._images[1].compared(chosen.kept, method, "")
            return compared_panes(row, truth_words(run), (BASELINE, method))

        return self.cache.get("stored pictures", key, draw)


def _ranked(run: Run, method: str) -> tuple[Ranked, ...]:
    score = run.task.image_score
    return tuple(
        Ranked(kept, score(kept.rows[BASELINE]), score(kept.rows[method]))
        for kept in kept_images(run, method)
    )


def _state(path: Path) -> tuple[tuple[str, int], ...]:
    """What changes when results do: the plans, and when units were added last."""
    found = []
    for folder in find_results([path]):
        for each in (
            folder,
            folder / UNIT_FOLDER,
            *sorted((folder / UNIT_FOLDER).glob("*")),
            *sorted((folder / UNIT_FOLDER).glob("*/*")),
        ):
            try:
                found.append((str(each), each.stat().st_mtime_ns))
            except OSError:
                continue  # gone in the meantime, or not there yet
    return tuple(found)


def in_order(ranked: Sequence[Ranked], order: Order, condition: str = EVERY) -> list[Ranked]:
    """Some of the images, sorted; those without a score come last."""
    chosen = [each for each in ranked if condition in (EVERY, each.kept.condition.key)]
    if order == "condition":
        return chosen
    sign = -1 if order == "gain" else 1
    return sorted(chosen, key=lambda each: (not np.isfinite(each.gain), sign * np.nan_to_num(each.gain)))


def conditions_of(ranked: Sequence[Ranked]) -> list[str]:
    """The conditions with pictures, in the order of the plan."""
    return list(dict.fromkeys(each.kept.condition.key for each in ranked))


def truth_words(run: Run) -> str:
    """What predictions are compared with."""
    return "clean prediction" if run.plan.label_free else "annotation"


def gain_words(run: Run, each: Ranked) -> str:
    """The scores of an image in a sentence; without labels, clean images have no gain."""
    unit = f"points of {run.task.image_metric}"
    condition: Condition = each.kept.condition
    before, after = f"{each.ordinary:.1f}", f"{each.treated:.1f}"
    if not np.isfinite(each.gain):
        return f"no score of its own, in {unit}"
    if not measures_gain(run.plan, condition.key):
        return f"{before} → {after} {unit}: how far the clean prediction changes, no gain and no loss"
    agreement = " with the clean prediction" if run.plan.label_free else ""
    return f"{each.gain:+.1f} {unit}{agreement} ({before} → {after})"
