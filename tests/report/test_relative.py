"""What is left of the clean score, and errors against the baseline, against their formulas written once more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.plan import DataSource, Plan, PlannedModel
from gramloop.evaluate.results import collect
from gramloop.evaluate.store import Store
from gramloop.report.load import load_runs
from gramloop.report.tables import main_results, relative_results
from gramloop.util.table import Table
from small_stores import make_plan, write_store

SHIFTED = make_plan()
CLEAN = make_plan(suite="scenes", conditions=["clean"])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("relative")
    write_store(folder / "c", SHIFTED)
    write_store(folder / "clean", CLEAN)
    return folder / "c", folder / "clean"


def by_condition(folder: Path, plan: Plan, method: str) -> dict[str, float]:
    return {one.condition: one.scores[method]["mIoU"] for one in collect(Store(folder, plan)).conditions}


def relative(*folders: Path) -> Table | None:
    return relative_results(load_runs(folders).groups[0])


def measures(*folders: Path) -> list[object]:
    table = relative(*folders)
    return [] if table is None else [row[1] for row in table.rows]


def test_they_are_what_their_formulas_say(folders: tuple[Path, Path]) -> None:
    rpc, mce = {}, {}
    errors = {key: 100 - score for key, score in by_condition(folders[0], SHIFTED, BASELINE).items()}
    for method in (BASELINE, "gramloop"):
        scores = by_condition(folders[0], SHIFTED, method)
        rpc[method] = 100 * np.mean(list(scores.values())) / by_condition(folders[1], CLEAN, method)["clean"]
        ratios = [
            sum(100 - scores[f"{name}/{severity}"] for severity in (1, 3))
            / sum(errors[f"{name}/{severity}"] for severity in (1, 3))
            for name in ("fog", "snow", "pixelate")
        ]
        mce[method] = 100 * float(np.mean(ratios))
    table = relative(*folders)
    assert table is not None
    cells = {row[1]: dict(zip((BASELINE, "gramloop"), row[2:], strict=True)) for row in table.rows}
    assert cells == {"rPC": pytest.approx(rpc, rel=1e-13), "mCE": pytest.approx(mce, rel=1e-13)}
    assert cells["mCE"][BASELINE] == 100


def test_each_needs_what_it_is_relative_to(folders: tuple[Path, Path], tmp_path: Path) -> None:
    assert measures(folders[0]) == ["mCE"]
    assert measures(folders[1]) == []
    write_store(tmp_path / "incomplete", SHIFTED, skip=["fog/3"])
    assert measures(tmp_path / "incomplete") == []
    write_store(tmp_path / "alone", make_plan(methods=["gramloop"]))
    assert measures(tmp_path / "alone") == []


@pytest.mark.parametrize(
    ("clean", "sentence"),
    [
        (make_plan(suite="other", conditions=["clean"]), ""),
        (make_plan(suite="scenes", conditions=["clean"], images=6), "has 6 images; rPC needs the 12"),
        (replace(CLEAN, data=DataSource("set", contents={"clean": "b"})), "was made with other images"),
        (replace(CLEAN, model=PlannedModel("tiny", {"folder": "m"}, {"folder/model": "others"}, 6)), ""),
    ],
    ids=["suite", "number", "images", "weights"],
)
def test_clean_results_of_something_else_are_not_used(tmp_path: Path, clean: Plan, sentence: str) -> None:
    write_store(tmp_path / "c", replace(SHIFTED, data=DataSource("set", contents={"clean": "a"})))
    write_store(tmp_path / "clean", clean)
    table = relative(tmp_path / "c", tmp_path / "clean")
    assert table is not None
    assert [row[1] for row in table.rows] == ["mCE"]
    assert sentence in " ".join(table.notes)


def test_effective_robustness_is_what_its_formula_says(tmp_path: Path) -> None:
    found = {}
    for suite, conditions in (("coco-o", ["cartoon", "sketch"]), ("coco", ["clean"])):
        plan = make_plan(suite, "detection", conditions=conditions)
        store = write_store(tmp_path / suite, plan)
        scores = [one.scores["baseline"]["AP"] for one in collect(store).conditions]
        found[suite] = float(np.mean(scores))
    (group,) = load_runs([tmp_path / "coco-o", tmp_path / "coco"]).groups
    rows = {row[:2]: row for row in main_results(group).rows}
    assert rows["coco-o", "ER"][2] == pytest.approx(found["coco-o"] - 0.45 * found["coco"], abs=1e-12)
    assert ("coco-o", "ER") not in {row[:2] for row in main_results(group[:1]).rows}
