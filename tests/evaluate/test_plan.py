"""Plans: every image once, a file that can be read, a hash that changes with the results and only with them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gramloop.data.suites import Condition
from gramloop.errors import GramLoopError
from gramloop.evaluate.methods import parse_method
from gramloop.evaluate.plan import DataSource, ModelSource, Plan, condition_of, difference, read_plan

PLAN = Plan(
    suite="scenes-c",
    task="semantic",
    methods=(parse_method("baseline"), parse_method("gramloop").with_window(12)),
    conditions={"fog/3": 40, "fog/5": 40},
    shards=3,
    categories={0: "sky", 1: "tree"},
    data=DataSource("/data/scenes", {"clean": "abc"}),
    model=ModelSource("tiny", {"folder": "/models/tiny"}, {"folder/tiny.json": "123"}, 12),
    versions={"torch": "2"},
)


@given(
    images=st.lists(st.integers(1, 300), min_size=1, max_size=4),
    shards=st.integers(1, 400),
)
def test_every_image_is_in_one_unit(images, shards):
    conditions = {f"fog/{number + 1}": count for number, count in enumerate(images)}
    plan = replace(PLAN, conditions=conditions, shards=shards)
    for key, count in conditions.items():
        units = list(plan.units_of(key))
        assert [p for unit in units for p in range(unit.start, unit.stop)] == list(range(count))
        assert max(map(len, units)) - min(map(len, units)) <= 1
    assert len({unit.name for unit in plan.units}) == len(plan.units)


def test_the_file_gives_the_plan_back(tmp_path: Path):
    path = tmp_path / "plan.json"
    path.write_text(PLAN.text())
    assert read_plan(path) == PLAN
    assert read_plan(path).hash == PLAN.hash
    assert json.loads(path.read_text())["methods"]["gramloop"]["window"] == [6, 6]


WRITTEN_BEFORE = """{
 "layout": 2, "suite": "mine-c", "task": "semantic",
 "methods": {
  "baseline": null,
  "late": {"window": [9, 10], "replays": 1, "gate": "gram", "strength": 0.3, "gate_at": "final",
   "update_at": "end", "eps": 1e-06, "adaptive": null, "until": 10},
  "rule": {"window": [3, 3], "replays": 1, "gate": "uniform", "strength": 1, "gate_at": 7,
   "update_at": "end", "eps": 1e-05, "adaptive": {"signal": "spread", "off": 0.3, "full": 1}},
  "even": {"window": [6, 6], "replays": 2, "gate": "uniform", "strength": "matched", "gate_at": "final",
   "update_at": "end", "eps": 1e-06, "adaptive": null}},
 "conditions": {"fog/3": 5}, "shards": 2, "diagnostics": false, "pictures": 4, "seed": 100,
 "data": {"fingerprints": {}, "split": "validation", "origin": "auto", "encoding": "png", "partial": false},
 "model": {"kind": "tiny", "sha256": {"folder": "00ff"}, "depth": 12, "sizes": {}, "device": "cpu", "threads": 1},
 "where": {"data": "data", "classes": null, "model": {"folder": "model"}},
 "versions": {}, "categories": {"0": "sky", "1": "sea"}
}"""


def test_a_plan_that_was_written_before_keeps_its_hash(tmp_path: Path):
    path = tmp_path / "plan.json"
    path.write_text(WRITTEN_BEFORE)
    plan = read_plan(path)
    assert plan.hash == "659355078acfce84"
    assert plan.text() == json.dumps(json.loads(WRITTEN_BEFORE), indent=1) + "\n"


@pytest.mark.parametrize(
    ("wrong", "sentence"), [('"eps": null', "eps is None"), ('"eps": 1, "speed": 1', "'speed' is no setting")]
)
def test_a_plan_with_wrong_settings_is_named(tmp_path: Path, wrong, sentence):
    path = tmp_path / "plan.json"
    path.write_text(WRITTEN_BEFORE.replace('"eps": 1e-05', wrong))
    with pytest.raises(GramLoopError, match=sentence) as caught:
        read_plan(path)
    assert str(path) in str(caught.value)


def test_the_hash_is_blind_to_places():
    moved = replace(PLAN, data=replace(PLAN.data, root="/elsewhere"))
    moved = replace(moved, model=replace(PLAN.model, files={"folder": "/there"}))
    assert moved.hash == PLAN.hash
    assert difference(PLAN, moved) == ""


CHANGES = {
    "suite": replace(PLAN, suite="other-c"),
    "task": replace(PLAN, task="detection"),
    "methods": replace(PLAN, methods=(PLAN.methods[0],)),
    "window": replace(PLAN, methods=(PLAN.methods[0], parse_method("gramloop").with_window(14))),
    "conditions": replace(PLAN, conditions={"fog/3": 40}),
    "images": replace(PLAN, conditions={"fog/3": 40, "fog/5": 41}),
    "shards": replace(PLAN, shards=4),
    "pictures": replace(PLAN, pictures=5),
    "diagnostics": replace(PLAN, diagnostics=True),
    "data": replace(PLAN, data=replace(PLAN.data, fingerprints={"clean": "abd"})),
    "weights": replace(PLAN, model=replace(PLAN.model, sha256={"folder/tiny.json": "124"})),
    "sizes": replace(PLAN, model=replace(PLAN.model, sizes={"short_side": 64})),
    "device": replace(PLAN, model=replace(PLAN.model, device="cuda")),
    "threads": replace(PLAN, model=replace(PLAN.model, threads=2)),
    "versions": replace(PLAN, versions={"torch": "3"}),
    "categories": replace(PLAN, categories={0: "sky", 1: "car"}),
}


@pytest.mark.parametrize("what", CHANGES)
def test_the_hash_sees_what_decides_results(what):
    changed = CHANGES[what]
    assert changed.hash != PLAN.hash
    assert difference(PLAN, changed) != ""


def test_a_difference_is_told_in_words():
    assert difference(PLAN, CHANGES["versions"]) == "versions: torch = 2, not 3"
    assert difference(PLAN, CHANGES["shards"]) == "shards 3, not 4"


@pytest.mark.parametrize(
    "change",
    [
        {"conditions": {}},
        {"conditions": {"fog/3": 0}},
        {"shards": 0},
        {"pictures": -1},
        {"task": "poses"},
        {"methods": ()},
    ],
    ids=str,
)
def test_impossible_plans_are_refused(change):
    with pytest.raises(GramLoopError):
        replace(PLAN, **change)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"layout": 1}', PLAN.text()[:-40], '{"layout": 99}'])
def test_other_files_are_no_plans(tmp_path: Path, text):
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(GramLoopError, match=r"plan\.json"):
        read_plan(path)


def test_an_edited_method_is_checked(tmp_path: Path):
    content = PLAN.as_json()
    content["methods"]["gramloop"]["gate"] = "gam"
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(content))
    with pytest.raises(GramLoopError, match="gate is 'gam'"):
        read_plan(path)


def test_keys_name_conditions():
    for condition in (Condition("fog", 3), Condition("sketch"), Condition("clean")):
        assert condition_of(condition.key) == condition
