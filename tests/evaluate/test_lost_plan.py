"""A plan.json that was edited, torn or deleted costs no finished unit."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gramloop.cli import main
from gramloop.errors import GramLoopError
from gramloop.evaluate import store as storing
from gramloop.evaluate.beginning import begin
from gramloop.evaluate.store import check_folder, plan_in
from gramloop.evaluate.store import Store
from gramloop.report.load import load_runs
from small_stores import make_plan, write_store

PLAN = make_plan(conditions=("fog/1", "fog/3"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_store(tmp_path / "out", PLAN)
    return tmp_path / "out"


def units(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.glob("units/*/*")}


def edit(folder: Path, **changes: object) -> None:
    content = json.loads((folder / "plan.json").read_text())
    (folder / "plan.json").write_text(json.dumps({**content, **changes}))


@pytest.mark.parametrize("changes", [{"shards": 3}, {"seed": 7}, {"pictures": 9}], ids=str)
def test_an_edited_plan_is_refused_and_nothing_is_moved(folder: Path, capsys, changes: dict[str, object]):
    edit(folder, **changes)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for arguments in (["evaluate", "--out", str(folder)], ["evaluate", "--out", str(folder), "--status"]):
        assert main(arguments) == 2
        said = capsys.readouterr().err
        ((name, value),) = changes.items()
        assert f"{folder / 'plan.json'} was changed: its units belong to the plan {PLAN.hash}" in said
        assert f", not {value}" in said
        assert name in said
        assert "move" in said
    with pytest.raises(GramLoopError, match="was changed"):
        load_runs([folder])
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_the_command_that_began_it_puts_an_edited_plan_right(folder: Path):
    before = units(folder)
    edit(folder, shards=3)
    begin(folder, PLAN)
    assert plan_in(folder) == PLAN
    assert units(folder) == before


def test_a_lost_plan_is_made_again_from_the_units(folder: Path, capsys):
    kept = (folder / "plan.json").read_bytes()
    before = units(folder)
    (folder / "plan.json").unlink()
    assert plan_in(folder) == PLAN
    assert [run.plan for run in load_runs([folder]).runs] == [PLAN]
    assert main(["evaluate", "--out", str(folder), "--status"]) == 0
    assert not (folder / "plan.json").exists()  # asking writes nothing
    assert main(["evaluate", "--out", str(folder)]) == 0  # nothing is missing, so no model is needed
    assert (folder / "plan.json").read_bytes() == kept
    assert units(folder) == before
    assert "mIoU" in capsys.readouterr().out


def test_a_torn_plan_says_how_it_comes_back(folder: Path, capsys):
    (folder / "plan.json").write_text(PLAN.text()[:50])
    assert main(["evaluate", "--out", str(folder)]) == 2
    assert (
        f"move {folder / 'plan.json'} away, and gramloop evaluate --out {folder} makes it again"
        in capsys.readouterr().err
    )
    begin(folder, PLAN)
    assert plan_in(folder) == PLAN


def test_units_that_keep_no_plan_say_what_to_do(folder: Path, monkeypatch):
    (folder / "plan.json").unlink()
    monkeypatch.setattr(storing, "_about", lambda path: {"plan": PLAN.hash})  # as units were before
    storing._owner.cache_clear()
    with pytest.raises(
        GramLoopError, match="was written before units kept it; give the command that began it again"
    ):
        plan_in(folder)
    with pytest.raises(GramLoopError, match=f"belongs to the plan {PLAN.hash}, not to"):
        check_folder(folder, replace(PLAN, shards=3))
    assert check_folder(folder, PLAN) == PLAN
    storing._owner.cache_clear()


def test_another_plan_is_kept_out_of_a_folder_that_lost_its_own(folder: Path):
    (folder / "plan.json").unlink()
    with pytest.raises(
        GramLoopError, match=r"has lost its plan\.json, and its units were made with shards 2, not 3"
    ):
        check_folder(folder, replace(PLAN, shards=3))


def test_units_of_several_plans_are_not_taken_for_one(folder: Path, tmp_path: Path):
    other = make_plan(conditions=("snow/1",))
    write_store(tmp_path / "other", other)
    shutil.copytree(tmp_path / "other" / "units" / "snow-1", folder / "units" / "snow-1")
    begin(folder, PLAN)  # its own plan says which are its own
    assert (folder / "units" / "snow-1").is_dir()
    with pytest.raises(GramLoopError, match="holds results of the plan"):
        check_folder(folder, other)
    (folder / "plan.json").unlink()
    with pytest.raises(GramLoopError, match="belong to several plans"):
        plan_in(folder)
    assert check_folder(folder, PLAN) == PLAN
    assert Store(folder, PLAN).read(PLAN.units[0]) is not None


def test_a_refused_folder_stays_untouched(tmp_path: Path, capsys):
    from gramloop.evaluate.evaluation import evaluate

    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(GramLoopError, match="not empty"):
        evaluate(PLAN, tmp_path / "full", workers=1)
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.txt"]
    with pytest.raises(GramLoopError, match="planned with gramloop 1"):  # its weights do not exist either
        evaluate(PLAN, tmp_path / "new", workers=1)
    assert not (tmp_path / "new").exists()
