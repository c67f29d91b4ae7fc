"""Robustness from stored units: rPC, mCE and effective robustness against their formulas, and what does not belong together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gramloop.cli import main
from gramloop.data.suites import DOMAINS
from gramloop.data.truth import Instances
from gramloop.errors import GramLoopError
from gramloop.evaluate.methods import BASELINE, parse_method
from gramloop.evaluate.plan import DataSource, Plan, PlannedModel
from gramloop.evaluate.provenance import plan_workload
from gramloop.evaluate.results import (
    Results,
    check_clean_results,
    collect,
    robustness,
)
from gramloop.evaluate.rows import Facts, UnitRows
from gramloop.evaluate.store import RESULTS, Store, open_folder
from gramloop.report.load import load_runs
from gramloop.report.tables.main import relative_results
from gramloop.tasks.base import get_task
from gramloop.tasks.detection import Detection
from small_stores import make_plan, write_store

SHIFTED = make_plan()
CLEAN = make_plan(suite="scenes", conditions=["clean"])
Folders = tuple[Path, Path]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    folder = tmp_path_factory.mktemp("relative")
    write_store(folder / "c", SHIFTED)
    write_store(folder / "clean", CLEAN)
    return folder / "c", folder / "clean"


def by_condition(results: Results, method: str) -> dict[str, float]:
    return {one.condition: one.scores[method]["mIoU"] for one in results.conditions}


def expected(folders: Folders) -> tuple[dict[str, float], dict[str, float]]:
    """Both measures, from the scores alone and written once more."""
    results, clean = collect(Store(folders[0], SHIFTED)), collect(Store(folders[1], CLEAN))
    rpc, mce = {}, {}
    ordinary = by_condition(results, BASELINE)
    for method in (BASELINE, "gramloop"):
        scores = by_condition(results, method)
        rpc[method] = 100 * np.mean(list(scores.values())) / by_condition(clean, method)["clean"]
        ratios = [
            sum(100 - scores[f"{name}/{severity}"] for severity in (1, 3))
            / sum(100 - ordinary[f"{name}/{severity}"] for severity in (1, 3))
            for name in ("fog", "snow", "pixelate")
        ]
        mce[method] = 100 * float(np.mean(ratios))
    return rpc, mce


def test_they_are_what_their_formulas_say(folders: Folders) -> None:
    results = collect(Store(folders[0], SHIFTED))
    rpc, mce = expected(folders)
    found = robustness(results, folders[1])
    assert found.rpc == pytest.approx(rpc, rel=1e-13)
    assert found.mce == pytest.approx(mce, rel=1e-13)
    assert found.mce[BASELINE] == 100
    alone = robustness(results)
    assert (alone.rpc, alone.mce, alone.reason) == ({}, found.mce, ""), "rPC only where clean is known"


def test_a_person_sees_them_and_the_table_in_full_precision_does_not_change(
    folders: Folders, capsys: pytest.CaptureFixture[str]
) -> None:
    rpc, mce = expected(folders)
    words = ["evaluate", "--out", str(folders[0]), "--status"]
    assert main([*words, "--clean-results", str(folders[1])]) == 0
    told = capsys.readouterr().out
    for name, values in (("rPC", rpc), ("mCE", mce)):
        ordinary, replayed = values[BASELINE], values["gramloop"]
        assert (
            f"{name}: baseline {ordinary:.2f}, gramloop {replayed:.2f} ({replayed - ordinary:+.2f})" in told
        )
    assert main(words) == 0
    assert "rPC" not in capsys.readouterr().out
    results = collect(Store(folders[0], SHIFTED))
    assert "mCE" not in results.csv()
    assert f"{mce['gramloop']:.2f}" in str(results)
    assert not (folders[0] / RESULTS).exists()


def test_they_wait_for_all_conditions(tmp_path: Path) -> None:
    write_store(tmp_path, SHIFTED, skip=["fog/3"])
    found = robustness(collect(Store(tmp_path, SHIFTED)))
    assert (found.rpc, found.mce) == ({}, {})


def test_without_a_baseline_there_is_no_reference(tmp_path: Path) -> None:
    plan = make_plan(methods=["gramloop"])
    write_store(tmp_path, plan)
    assert robustness(collect(Store(tmp_path, plan))).mce == {}


def unlike(**changes: object) -> Plan:
    return replace(CLEAN, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("clean", "sentence"),
    [
        (
            make_plan(suite="other", conditions=["clean"]),
            "evaluates other, semantic; needed is scenes, semantic",
        ),
        (unlike(model=PlannedModel("tiny", {"folder": "m"}, {"folder/model": "others"}, 6)), "other weights"),
        (unlike(methods=CLEAN.methods[:1]), "has no method gramloop"),
        (make_plan(suite="scenes", conditions=["clean"], images=6), "has 6 images; rPC needs the 12"),
        (unlike(data=DataSource("set", contents={"clean": "b"})), "was made with other images"),
    ],
)
def test_clean_results_of_something_else_are_refused(tmp_path: Path, clean: Plan, sentence: str) -> None:
    shifted = replace(SHIFTED, data=DataSource("set", contents={"clean": "a"}))
    write_store(tmp_path, clean)
    with pytest.raises(GramLoopError, match=sentence):
        check_clean_results(shifted, tmp_path)


def test_clean_results_belong_to_shifted_ones_with_labels(folders: Folders) -> None:
    with pytest.raises(GramLoopError, match=r"belong to a -c or -p suite.*this is scenes"):
        check_clean_results(CLEAN, folders[1])
    with pytest.raises(GramLoopError, match="truth clean"):
        check_clean_results(replace(SHIFTED, truth="clean"), folders[1])
    with pytest.raises(
        GramLoopError, match="holds no evaluation; give the folder of a finished one of the suite scenes"
    ):
        check_clean_results(SHIFTED, folders[1] / "none")


def test_a_report_has_them_in_a_table_of_their_own(folders: Folders) -> None:
    rpc, mce = expected(folders)
    [group] = load_runs(folders).groups
    table = relative_results(group)
    assert table is not None
    cells = {row[1]: dict(zip((BASELINE, "gramloop"), row[2:], strict=True)) for row in table.rows}
    assert cells == {"rPC": pytest.approx(rpc, rel=1e-13), "mCE": pytest.approx(mce, rel=1e-13)}
    [alone] = load_runs(folders[:1]).groups
    table = relative_results(alone)
    assert table is not None
    assert [row[1] for row in table.rows] == ["mCE"]
    [clean] = load_runs(folders[1:]).groups
    assert relative_results(clean) is None


# effective robustness on COCO-O, from boxes whose AP is known in closed form

IMAGES = 10
DOMAINS_PLAN = Plan(
    suite="coco-o",
    task="detection",
    methods=(parse_method("baseline"), parse_method("gramloop").with_window(40)),
    conditions=dict.fromkeys(DOMAINS, IMAGES),
    shards=1,
    categories={1: "thing"},
    data=DataSource("data"),
    model=PlannedModel("files", {"head": "h"}, {"head": "123"}, 40),
)
COCO_PLAN = replace(DOMAINS_PLAN, suite="coco", conditions={"clean": IMAGES})
BOX = np.array([[10.0, 20.0, 30.0, 40.0]])  # left, top, width, height


def written(folder: Path, plan: Plan, found: dict[str, int], keys: int = 6) -> Store:
    """Stored units in which a method finds the one thing of each of its first so many images exactly."""
    store, subject, task = open_folder(folder, plan), plan_workload(plan), get_task("detection")
    truth = Instances(np.array([0]), BOX, np.array([1]), np.array([1200.0]), np.array([False]))
    for unit in [unit for part in plan.parts[:keys] for unit in part.units]:
        rows = UnitRows(subject, task, unit)
        for position in unit.images:
            many = int(position < found[unit.method.name])
            box = np.array([[10.0, 20.0, 40.0, 60.0]])
            prediction = Detection(box[:many], np.array([0.9])[:many], np.array([1])[:many], blocks=40)
            rows.add(position, str(position), prediction, truth)
        store.write(unit, rows.table(), [], [], Facts(1.0, "", 40, 1.0, 1, "cpu", "here"))
    return store


def precision(images: int) -> float:
    """AP when recall ends at images / IMAGES with every box right: the share of COCO's 101 levels reached."""
    return 100 * float((np.linspace(0, 1, 101) <= images / IMAGES).mean())


@pytest.fixture
def shifted(tmp_path: Path) -> Store:
    return written(tmp_path / "coco-o", DOMAINS_PLAN, {"baseline": 3, "gramloop": 5})


def test_er_is_what_its_formula_says(shifted: Store, tmp_path: Path, capsys):
    written(tmp_path / "coco", COCO_PLAN, {"baseline": 8, "gramloop": 7})
    check_clean_results(DOMAINS_PLAN, tmp_path / "coco")
    found = robustness(collect(shifted), tmp_path / "coco")
    expected = {
        "baseline": precision(3) - 0.45 * precision(8),
        "gramloop": precision(5) - 0.45 * precision(7),
    }
    assert found.reason == ""
    assert found.er == pytest.approx(expected, abs=1e-9)
    arguments = ["evaluate", "--status", "--out", str(tmp_path / "coco-o")]
    assert main([*arguments, "--coco-results", str(tmp_path / "coco")]) == 0
    base, gain = expected["baseline"], expected["gramloop"] - expected["baseline"]
    told = capsys.readouterr().out
    assert f"baseline {base:.2f}, gramloop {expected['gramloop']:.2f} ({gain:+.2f})" in told
    assert main(arguments) == 0
    assert "ER is not known: give --coco-results" in capsys.readouterr().out


def test_one_message_says_why_er_is_not_known(shifted: Store, tmp_path: Path):
    results = collect(shifted)
    both = {"baseline": 8, "gramloop": 7}
    unfinished = written(tmp_path / "coco", COCO_PLAN, both, keys=0)
    assert "is not finished" in robustness(results, unfinished.folder).reason
    fewer = collect(written(tmp_path / "fewer", DOMAINS_PLAN, both, keys=5))
    whole = written(tmp_path / "whole", COCO_PLAN, both)
    assert "no finite score for handmake" in robustness(fewer, whole.folder).reason
    assert "holds no evaluation" in robustness(results, tmp_path / "nowhere").reason


@pytest.mark.parametrize(
    ("clean", "sentence"),
    [
        (replace(COCO_PLAN, suite="coco-c", conditions={"fog/1": 10}), "evaluates coco-c, detection"),
        (replace(COCO_PLAN, model=replace(COCO_PLAN.model, sha256={"head": "124"})), "other weights"),
        (replace(COCO_PLAN, model=replace(COCO_PLAN.model, sizes={"short_side": 64})), "other sizes"),
        (replace(COCO_PLAN, methods=COCO_PLAN.methods[:1]), "has no method gramloop"),
        (
            replace(COCO_PLAN, methods=(COCO_PLAN.methods[0], parse_method("gramloop").with_window(24))),
            "has no method gramloop with these settings",
        ),
    ],
    ids=["suite", "weights", "sizes", "methods", "settings"],
)
def test_other_evaluations_are_refused_before_any_work(tmp_path: Path, shifted: Store, clean, sentence):
    store = open_folder(tmp_path / "coco", clean)
    with pytest.raises(GramLoopError, match=sentence):
        check_clean_results(DOMAINS_PLAN, store.folder)
    assert sentence in robustness(collect(shifted), store.folder).reason
    with pytest.raises(GramLoopError, match="results on clean images belong to"):
        check_clean_results(COCO_PLAN, store.folder)
