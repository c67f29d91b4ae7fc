"""What a request leaves behind is freed before the next, and the page knows the embedded model before it is loaded."""

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gradio")
pytest.importorskip("transformers")

from gramloop.app import memory
from gramloop.app.models import Models
from gramloop.app.settings import AppSettings, ModelSource
from gramloop.app.shielding import sentences
from gramloop.app.trial import Bench
from gramloop.app.try_tab import try_once
from gramloop.data.records import Task
from gramloop.data.scenes.drawing import scene
from gramloop.models.tiny import WEIGHTS


class Ring:
    """Holds itself, as figures do: counting references alone never frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def seldom() -> Iterator[None]:
    """Python looks for rings by itself only at times; here never, as with a great many objects in memory."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("seldom")
def test_rings_are_freed_after_every_answer() -> None:
    seen: list[weakref.ref[Ring]] = []

    @sentences
    def draw() -> str:
        seen.append(weakref.ref(Ring()))
        assert seen[-1]() is not None  # still here while the answer is made
        return "done"

    assert draw() == "done"
    assert seen[0]() is None


@pytest.mark.usefixtures("seldom")
def test_what_has_settled_is_passed_over_until_released() -> None:
    before = gc.get_freeze_count()
    ring = weakref.ref(Ring())
    kept = Ring()
    memory.settle()
    assert ring() is None  # not everything that is there by then stays: garbage goes first
    assert gc.get_freeze_count() > before
    settled = weakref.ref(kept)
    del kept
    memory.tidy()
    assert settled() is not None
    memory.release()
    memory.tidy()
    assert settled() is None


@pytest.mark.usefixtures("seldom")
def test_no_figure_outlives_its_trial(
    small_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import Image

    from gramloop.util.plotting import Sheet

    drawn: list[weakref.ref[object]] = []
    make = Sheet.__post_init__

    def noted(sheet: Sheet) -> None:
        make(sheet)
        drawn.append(weakref.ref(sheet.figure))

    monkeypatch.setattr(Sheet, "__post_init__", noted)

    bench = Bench(AppSettings((ModelSource("small", {"folder": str(small_model)}),)))
    for number in range(2):
        path = tmp_path / f"{number}.png"
        Image.fromarray(np.asarray(scene(number).image)).save(path)
        assert "<figure>" in try_once(bench, path)
        assert len(drawn) > 5 * number
        assert not [each for each in drawn if each() is not None]


@pytest.mark.parametrize("task", [None, "detection", "depth"])
def test_the_embedded_model_is_known_before_it_is_loaded(task: Task | None) -> None:
    models = Models(AppSettings((ModelSource("tiny", {"folder": str(WEIGHTS)}, task),)))
    early = models.about("tiny")
    assert not models._opened
    assert early == models.open("tiny").about
