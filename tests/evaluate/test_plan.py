"""Plans: every image once, a file that can be read, a hash that changes with what decides numbers and only with that."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gramloop.data.suites import Condition
from gramloop.errors import GramLoopError
from gramloop.evaluate.methods import Method, parse_method
from gramloop.evaluate.plan import (
    DataSource,
    Part,
    Plan,
    PlannedModel,
    condition_of,
    difference,
    merged,
    read_plan,
)
from gramloop.evaluate.planning import make_plan, plan_and_model
from small_runs import small_plan, small_request, write_model

BASELINE, GRAMLOOP = parse_method("baseline"), parse_method("gramloop").with_window(12)
PLAN = Plan(
    suite="scenes-c",
    task="semantic",
    methods=(BASELINE, GRAMLOOP),
    conditions={"fog/3": 40, "fog/5": 40},
    shards=3,
    categories={0: "sky", 1: "tree"},
    data=DataSource("/data/scenes", contents={"clean": "abc"}),
    model=PlannedModel("tiny", {"folder": "/models/tiny"}, {"folder/tiny.json": "123"}, 12),
    versions={"torch": "2"},
)


@given(images=st.lists(st.integers(1, 300), min_size=1, max_size=4), shards=st.integers(1, 400))
def test_every_image_is_in_one_part(images, shards):
    conditions = {f"fog/{number + 1}": count for number, count in enumerate(images)}
    plan = replace(PLAN, conditions=conditions, shards=shards)
    for key, count in conditions.items():
        parts = plan.parts_of(key)
        assert [position for part in parts for position in part.images] == list(range(count))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert len({unit.name for unit in plan.units}) == len(plan.units) == 2 * len(plan.parts)


def test_any_images_can_be_a_part():
    parts = [Part("fog/3", images, (BASELINE,)) for images in ((3, 17), (3, 18), (3,), range(3, 5))]
    assert len({part.units[0].name for part in parts}) == 4
    assert parts[3].units[0].name == "fog-3/baseline/000003-000005"


def test_the_file_gives_the_plan_back(tmp_path: Path):
    path = tmp_path / "plan.json"
    path.write_text(PLAN.text())
    assert read_plan(path) == PLAN
    assert read_plan(path).hash == PLAN.hash
    assert json.loads(path.read_text())["methods"]["gramloop"]["replay"]["window"] == [6, 6]


OPEN = {
    "data": replace(PLAN, data=replace(PLAN.data, root="/elsewhere", classes="/list.txt")),
    "model": replace(PLAN, model=replace(PLAN.model, files={"folder": "/there"})),
    "methods": replace(PLAN, methods=(BASELINE,)),
    "settings": replace(PLAN, methods=(BASELINE, parse_method("gramloop").with_window(14))),
    "diagnostics": replace(PLAN, diagnostics=True),
}


@pytest.mark.parametrize("what", OPEN)
def test_the_hash_is_blind_to_places_and_to_methods(what):
    assert OPEN[what].hash == PLAN.hash
    assert difference(PLAN, OPEN[what]) == ""


CHANGES = {
    "suite": replace(PLAN, suite="other-c"),
    "task": replace(PLAN, task="detection"),
    "conditions": replace(PLAN, conditions={"fog/3": 40}),
    "images": replace(PLAN, conditions={"fog/3": 40, "fog/5": 41}),
    "shards": replace(PLAN, shards=4),
    "pictures": replace(PLAN, pictures=5),
    "data": replace(PLAN, data=replace(PLAN.data, contents={"clean": "abd"})),
    "weights": replace(PLAN, model=replace(PLAN.model, sha256={"folder/tiny.json": "124"})),
    "sizes": replace(PLAN, model=replace(PLAN.model, sizes={"short_side": 64})),
    "device": replace(PLAN, model=replace(PLAN.model, device="cuda")),
    "threads": replace(PLAN, model=replace(PLAN.model, threads=2)),
    "versions": replace(PLAN, versions={"torch": "3"}),
    "categories": replace(PLAN, categories={0: "sky", 1: "car"}),
    "batch": replace(PLAN, batch=2),
    "truth": replace(PLAN, truth="clean"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_the_hash_sees_what_decides_numbers(what):
    assert CHANGES[what].hash != PLAN.hash
    assert difference(PLAN, CHANGES[what]) != ""


def test_a_difference_is_one_phrase():
    assert difference(PLAN, CHANGES["versions"]) == "versions: torch = 2, not 3"
    assert difference(PLAN, CHANGES["shards"]) == "shards 3, not 4"


def test_methods_and_diagnostics_are_added_to_a_plan():
    late = Method("late", parse_method("late:window=4-5").stack)
    found = merged(PLAN, replace(PLAN, methods=(BASELINE, late), diagnostics=True), Path("out"))
    assert [method.name for method in found.methods] == ["baseline", "gramloop", "late"]
    assert found.diagnostics
    with pytest.raises(GramLoopError, match="out holds the method gramloop with other settings"):
        merged(PLAN, OPEN["settings"], Path("out"))


@pytest.mark.parametrize(
    "change",
    [
        {"conditions": {}},
        {"conditions": {"fog/3": 0}},
        {"shards": 0},
        {"pictures": -1},
        {"methods": {}},
        {"truth_score": 1.0},
    ],
    ids=str,
)
def test_impossible_plans_are_refused(tmp_path: Path, change):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**PLAN.as_json(), **change}))
    with pytest.raises(GramLoopError, match=r"plan\.json"):
        read_plan(path)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"layout": 4}', PLAN.text()[:-40], '{"layout": 99}', '{"layout": 2}']
)
def test_other_files_are_no_plans(tmp_path: Path, text):
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(GramLoopError, match=r"plan\.json"):
        read_plan(path)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("gate", "gam", "gate is 'gam'"), ("eps", None, "eps is None"), ("speed", 1, "'speed' is no setting")],
)
def test_an_edited_method_is_checked(tmp_path: Path, name, value, message):
    content = PLAN.as_json()
    content["methods"]["gramloop"]["replay"][name] = value
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(content))
    with pytest.raises(GramLoopError, match=message) as caught:
        read_plan(path)
    assert str(path) in str(caught.value)


def test_keys_name_conditions():
    for condition in (Condition("fog", 3), Condition("sketch"), Condition("clean")):
        assert condition_of(condition.key) == condition


def test_a_plan_resolves_everything(model_folder: Path, scene_folder: Path):
    plan = small_plan(model_folder, scene_folder, shards=None, images=7, methods=["baseline", "matched"])
    assert plan.conditions == {"impulse_noise/3": 7, "fog/3": 7, "pixelate/3": 7}
    assert plan.shards == 1
    assert plan.model.depth == 6
    assert plan.methods[1].replay.window == (3, 3)
    assert plan.categories[0] == "sky"
    assert len(plan.categories) == 15
    assert set(plan.model.sha256) >= {"folder/backbone/model.safetensors", "folder/segment.safetensors"}
    assert plan.versions["torch"]
    assert small_plan(model_folder, scene_folder, "detection") == small_plan(
        model_folder, scene_folder, "detection"
    )


@pytest.mark.parametrize("task", ["semantic", "detection"])
def test_a_plan_is_made_without_reading_weights(model_folder: Path, scene_folder: Path, task: str):
    plan, predictor = plan_and_model(small_request(model_folder, scene_folder, task))
    assert (plan.model.depth, predictor.task) == (len(predictor.blocks), task) == (6, task)
    assert set(plan.categories.values()) == set(predictor.classes.values())
    assert all(value.is_meta for block in predictor.blocks for value in block.parameters())


def test_weights_change_the_plan_and_a_suggested_replay_does_not(model_folder, scene_folder, tmp_path):
    other = write_model(tmp_path / "other", seed=1)
    assert small_plan(model_folder, scene_folder).hash != small_plan(other, scene_folder).hash
    shutil.copytree(model_folder, tmp_path / "model")
    (tmp_path / "model" / "replay.json").write_text("{}")
    assert small_plan(tmp_path / "model", scene_folder).hash == small_plan(model_folder, scene_folder).hash


def test_sets_with_other_classes_are_refused(model_folder: Path, tmp_path: Path, scene_folder: Path):
    few = tmp_path / "few"
    shutil.copytree(scene_folder, few)
    (few / "classes.txt").write_text("".join(f"{value} class{value}\n" for value in range(1, 18)))
    with pytest.raises(GramLoopError, match=r"the model has 15 classes, but .*few lists 17"):
        small_plan(model_folder, few)
    annotations = few / "annotations" / "instances_val.json"
    annotations.write_text(annotations.read_text().replace('"id":8,"name":"cup"', '"id":99,"name":"cup"'))
    annotations.write_text(annotations.read_text().replace('"category_id":8', '"category_id":99'))
    with pytest.raises(GramLoopError, match=r"lists the category 99 \(cup\), which the model does not know"):
        small_plan(model_folder, few, "detection")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"conditions": ["fogg"]}, "no condition 'fogg'"),
        ({"methods": ["gramlop"]}, "no method 'gramlop'"),
        ({"methods": ["m:window=4-9"]}, "reaches past the last block"),
        ({"images": 0}, "images is .*; it is 1 or more"),
        ({"shards": 0}, "shards is .*; it is 1 or more"),
        ({"batch": 0}, "batch is .*; it is 1 or more"),
        ({"files": {"folder": "nowhere"}}, r"cannot read nowhere/tiny\.json"),
        ({"data": DataSource("nowhere")}, "the folder nowhere does not exist"),
        ({"sizes": {"short_side": 60}}, "multiples of 8"),
        ({"alignment": "median"}, "an alignment belongs to depth"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_mistakes_are_named(model_folder: Path, scene_folder: Path, change, message):
    with pytest.raises(GramLoopError, match=message):
        make_plan(small_request(model_folder, scene_folder, **change))
