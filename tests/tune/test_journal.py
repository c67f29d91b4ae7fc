import json

import pytest

from gramloop.errors import GramLoopError
from gramloop.tune.search.journal import PLAN, TRIALS, Journal, plan_hash

PLANNED = {"kind": "gramloop tune", "options": {"seed": 0}, "begun": "2026-11-16"}


def filled(folder, many=3):
    journal = Journal(PLANNED, folder)
    for number in range(many):
        journal.add({"job": f"job {number}", "ordinary": {"counts": [[number]]}})
    journal.close()
    return folder / TRIALS


def test_what_was_added_is_there_again(tmp_path):
    filled(tmp_path)
    again = Journal(PLANNED, tmp_path)
    assert list(again.done) == ["job 0", "job 1", "job 2"]
    assert again.done["job 2"] == {"job": "job 2", "ordinary": {"counts": [[2]]}}


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_a_torn_line_is_dropped_and_the_next_one_is_whole(tmp_path, cut):
    path = filled(tmp_path)
    path.write_bytes(path.read_bytes()[:-cut])
    journal = Journal(PLANNED, tmp_path)
    assert list(journal.done) == ["job 0", "job 1"]
    journal.add({"job": "job 2 again"})
    journal.close()
    assert list(Journal(PLANNED, tmp_path).done) == ["job 0", "job 1", "job 2 again"]


def test_a_damaged_line_is_dropped(tmp_path):
    path = filled(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"[[1]]", b"[[7]]"))
    assert list(Journal(PLANNED, tmp_path).done) == ["job 0", "job 2"]


def test_another_plan_is_refused_by_what_differs(tmp_path):
    path = filled(tmp_path)
    before = path.read_bytes()
    with pytest.raises(GramLoopError, match="options: seed = 0, not 1"):
        Journal({**PLANNED, "options": {"seed": 1}}, tmp_path)
    assert path.read_bytes() == before


def test_the_day_and_the_place_are_no_part_of_a_plan(tmp_path):
    filled(tmp_path)
    assert plan_hash(PLANNED) == plan_hash({**PLANNED, "begun": "2027-01-01", "where": "elsewhere"})
    assert Journal({**PLANNED, "begun": "2027-01-01"}, tmp_path).done
    assert json.loads((tmp_path / PLAN).read_text())["begun"] == "2026-11-16"


def test_trials_without_their_plan_are_left_alone(tmp_path):
    path = filled(tmp_path)
    (tmp_path / PLAN).unlink()
    before = path.read_bytes()
    with pytest.raises(GramLoopError, match=r"no plan\.json"):
        Journal(PLANNED, tmp_path)
    assert path.read_bytes() == before


def test_a_plan_of_something_else_is_refused(tmp_path):
    (tmp_path / PLAN).write_text('{"layout": 1}')
    with pytest.raises(GramLoopError, match="not a plan written by gramloop tune"):
        Journal(PLANNED, tmp_path)
