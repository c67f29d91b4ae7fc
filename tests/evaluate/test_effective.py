"""Effective robustness from stored boxes whose AP is known in closed form."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gramloop.cli import main
from gramloop.data.suites import DOMAINS
from gramloop.data.truth import Instances
from gramloop.errors import GramLoopError
from gramloop.evaluate.beginning import begin
from gramloop.evaluate.effective import check_use
from gramloop.evaluate.results import effective
from gramloop.evaluate.methods import parse_method
from gramloop.evaluate.plan import DataSource, ModelSource, Plan
from gramloop.evaluate.results import collect
from gramloop.evaluate.rows import Rows, statistics_of
from gramloop.evaluate.store import Facts, Store
from gramloop.tasks.detection import Detection

IMAGES = 10
SHIFTED = Plan(
    suite="coco-o",
    task="detection",
    methods=(parse_method("baseline"), parse_method("gramloop").with_window(40)),
    conditions=dict.fromkeys(DOMAINS, IMAGES),
    shards=1,
    categories={1: "thing"},
    data=DataSource("data"),
    model=ModelSource("files", {"head": "h"}, {"head": "123"}, 40),
)
CLEAN = replace(SHIFTED, suite="coco", conditions={"clean": IMAGES})
BOX = np.array([[10.0, 20.0, 30.0, 40.0]])  # left, top, width, height


def written(folder: Path, plan: Plan, found: dict[str, int], keys: int = 6) -> Store:
    """Stored units in which a method finds the one thing of each of its first so many images exactly."""
    store = begin(folder, plan)
    truth = Instances(
        np.array([0]), BOX, np.array([1]), np.array([1200.0]), np.array([False]), segmentations=(None,)
    )
    for unit in plan.units[:keys]:
        rows = Rows("detection")
        for position in range(unit.start, unit.stop):
            for method in plan.methods:
                many = int(position < found[method.name])
                box = np.array([[10.0, 20.0, 40.0, 60.0]])
                prediction = Detection(box[:many], np.array([0.9])[:many], np.array([1])[:many], blocks=40)
                rows.add(position, position, method.name, prediction, statistics_of(prediction, truth, [1]))
        store.write(unit, rows.table(), [], Facts(1.0, {}, 40, 1, "cpu", "here"))
    return store


def precision(images: int) -> float:
    """AP when recall ends at images / IMAGES with every box right: the share of COCO's 101 levels reached."""
    return 100 * float((np.linspace(0, 1, 101) <= images / IMAGES).mean())


@pytest.fixture
def shifted(tmp_path: Path) -> Store:
    return written(tmp_path / "coco-o", SHIFTED, {"baseline": 3, "gramloop": 5})


def test_er_is_what_its_formula_says(shifted: Store, tmp_path: Path, capsys):
    written(tmp_path / "coco", CLEAN, {"baseline": 8, "gramloop": 7})
    check_use(SHIFTED, tmp_path / "coco")
    found = effective(collect(shifted), tmp_path / "coco")
    expected = {
        "baseline": precision(3) - 0.45 * precision(8),
        "gramloop": precision(5) - 0.45 * precision(7),
    }
    assert found.reason == ""
    assert found.values == pytest.approx(expected, abs=1e-9)
    arguments = ["evaluate", "--status", "--out", str(tmp_path / "coco-o")]
    assert main([*arguments, "--coco-results", str(tmp_path / "coco")]) == 0
    base, gain = expected["baseline"], expected["gramloop"] - expected["baseline"]
    told = capsys.readouterr().out
    assert f"baseline {base:.3f}, gramloop {expected['gramloop']:.3f} ({gain:+.3f})" in told
    assert main(arguments) == 0
    assert "ER is not known without results on COCO; give --coco-results" in capsys.readouterr().out


def test_one_sentence_says_why_it_is_not_known(shifted: Store, tmp_path: Path):
    results = collect(shifted)
    both = {"baseline": 8, "gramloop": 7}
    unfinished = written(tmp_path / "coco", CLEAN, both, keys=0)
    assert "is not finished" in effective(results, unfinished.folder).reason
    fewer = collect(written(tmp_path / "fewer", SHIFTED, both, keys=5))
    whole = written(tmp_path / "whole", CLEAN, both)
    assert "no finite score for handmake" in effective(fewer, whole.folder).reason
    assert "holds no evaluation" in effective(results, tmp_path / "nowhere").reason


@pytest.mark.parametrize(
    ("clean", "sentence"),
    [
        (replace(CLEAN, suite="coco-c", conditions={"fog/1": 10}), "evaluates coco-c, detection"),
        (replace(CLEAN, model=replace(CLEAN.model, sha256={"head": "124"})), "other weights"),
        (replace(CLEAN, model=replace(CLEAN.model, sizes={"short_side": 64})), "other sizes"),
        (replace(CLEAN, methods=CLEAN.methods[:1]), "has no method gramloop"),
        (
            replace(CLEAN, methods=(CLEAN.methods[0], parse_method("gramloop").with_window(24))),
            "the method gramloop has other settings",
        ),
    ],
    ids=["suite", "weights", "sizes", "methods", "settings"],
)
def test_other_evaluations_are_refused_before_any_work(tmp_path: Path, shifted: Store, clean, sentence):
    store = begin(tmp_path / "coco", clean)
    with pytest.raises(GramLoopError, match=sentence):
        check_use(SHIFTED, store.folder)
    assert sentence in effective(collect(shifted), store.folder).reason
    with pytest.raises(GramLoopError, match="--coco-results belongs to --suite coco-o"):
        check_use(CLEAN, store.folder)
