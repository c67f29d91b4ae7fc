"""rPC and mCE of stored evaluations, against their formulas; and clean results that do not belong to a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gramloop.cli import main
from gramloop.errors import GramLoopError
from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.plan import DataSource, ModelSource, Plan
from gramloop.evaluate.relative import relative
from gramloop.evaluate.results import check_clean_results
from gramloop.evaluate.results import Results, collect
from gramloop.evaluate.store import RESULTS, Store
from gramloop.report.load import load_runs
from gramloop.report.tables.main import relative_results
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
    found = relative(results, folders[1])
    assert found.rpc == pytest.approx(rpc, rel=1e-13)
    assert found.mce == pytest.approx(mce, rel=1e-13)
    assert found.mce[BASELINE] == 100
    alone = relative(results)
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
            f"{name}: baseline {ordinary:.3f}, gramloop {replayed:.3f} ({replayed - ordinary:+.3f})" in told
        )
    assert main(words) == 0
    assert "rPC" not in capsys.readouterr().out
    results = collect(Store(folders[0], SHIFTED))
    assert "mCE" not in results.csv()
    assert f"{mce['gramloop']:.3f}" in str(results)
    assert not (folders[0] / RESULTS).exists()


def test_they_wait_for_all_conditions(tmp_path: Path) -> None:
    write_store(tmp_path, SHIFTED, skip=["fog/3"])
    found = relative(collect(Store(tmp_path, SHIFTED)))
    assert (found.rpc, found.mce) == ({}, {})


def test_without_a_baseline_there_is_no_reference(tmp_path: Path) -> None:
    plan = make_plan(methods=["gramloop"])
    write_store(tmp_path, plan)
    assert relative(collect(Store(tmp_path, plan))).mce == {}


def unlike(**changes: object) -> Plan:
    return replace(CLEAN, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("clean", "sentence"),
    [
        (
            make_plan(suite="other", conditions=["clean"]),
            "evaluates other, semantic; rPC needs scenes, semantic",
        ),
        (unlike(model=ModelSource("tiny", {"folder": "m"}, {"folder/model": "others"}, 6)), "other weights"),
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
    with pytest.raises(GramLoopError, match="belongs to a -c or -p suite with labels: scenes is none"):
        check_clean_results(CLEAN, folders[1])
    with pytest.raises(GramLoopError, match="relative to the clean prediction as it is"):
        check_clean_results(replace(SHIFTED, truth="clean"), folders[1])
    with pytest.raises(GramLoopError, match="holds no evaluation; give --clean-results DIR"):
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
