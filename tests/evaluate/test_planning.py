"""From a request to a plan: models and sets that do not fit each other are told before any work."""

from pathlib import Path

import pytest

from gramloop.errors import GramLoopError
from gramloop.evaluate.plan import DataSource
from gramloop.evaluate.planning import make_plan, plan_and_model
from small_runs import small_plan, small_request, write_model


def test_a_plan_spells_everything_out(model_folder: Path, scene_folder: Path):
    plan = small_plan(model_folder, scene_folder, shards=None, images=7, methods=["baseline", "matched"])
    assert plan.conditions == {"impulse_noise/3": 7, "fog/3": 7, "pixelate/3": 7}
    assert plan.shards == 1
    assert plan.model.depth == 6
    assert plan.methods[1].replay.window == (3, 3)
    assert plan.categories[0] == "sky"
    assert len(plan.categories) == 15
    assert set(plan.model.sha256) >= {"folder/backbone/model.safetensors", "folder/segment.safetensors"}
    assert plan.versions["torch"]


def test_planning_twice_gives_one_plan(model_folder: Path, scene_folder: Path):
    first, second = (small_plan(model_folder, scene_folder, "detection") for _ in range(2))
    assert first == second
    assert first.hash == second.hash
    assert first.categories[1] == "ball"


@pytest.mark.parametrize("task", ["semantic", "detection"])
def test_a_plan_is_made_without_reading_weights(model_folder: Path, scene_folder: Path, task: str):
    plan, predictor = plan_and_model(small_request(model_folder, scene_folder, task))
    assert (plan.model.depth, predictor.task) == (len(predictor.blocks), task) == (6, task)
    assert set(plan.categories.values()) == set(predictor.classes.values())
    assert all(value.is_meta for block in predictor.blocks for value in block.parameters())


def test_other_weights_give_another_plan(model_folder: Path, scene_folder: Path, tmp_path: Path):
    other = write_model(tmp_path / "other", seed=1)
    assert small_plan(model_folder, scene_folder).hash != small_plan(other, scene_folder).hash


def test_a_suggested_replay_beside_the_weights_changes_no_plan(model_folder, scene_folder, tmp_path):
    import shutil

    shutil.copytree(model_folder, tmp_path / "model")
    (tmp_path / "model" / "replay.json").write_text("{}")
    assert small_plan(tmp_path / "model", scene_folder).hash == small_plan(model_folder, scene_folder).hash


def test_sets_with_other_classes_are_refused(model_folder: Path, tmp_path: Path, scene_folder: Path):
    import shutil

    few = tmp_path / "few"
    shutil.copytree(scene_folder, few)
    (few / "classes.txt").write_text("".join(f"{value} class{value}\n" for value in range(1, 18)))
    with pytest.raises(GramLoopError, match=r"the model tells 15 classes apart, but .*few lists 17"):
        small_plan(model_folder, few)
    annotations = few / "annotations" / "instances_val.json"
    annotations.write_text(annotations.read_text().replace('"id":8,"name":"cup"', '"id":99,"name":"cup"'))
    annotations.write_text(annotations.read_text().replace('"category_id":8', '"category_id":99'))
    with pytest.raises(GramLoopError, match=r"lists the category 99 \(cup\), which the model does not know"):
        small_plan(model_folder, few, "detection")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"conditions": ["fogg"]}, "no condition 'fogg'"),
        ({"methods": ["gramlop"]}, "no method 'gramlop'"),
        ({"methods": ["m:window=4-9"]}, "reaches past the last block"),
        ({"images": 0}, "number of images must be at least 1"),
        ({"shards": 0}, "number of shards must be at least 1"),
        ({"files": {"folder": "nowhere"}}, "the folder nowhere does not exist"),
        ({"data": DataSource("nowhere")}, "the folder nowhere does not exist"),
        ({"sizes": {"short_side": 60}}, "multiples of 8"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_mistakes_are_named(model_folder: Path, scene_folder: Path, change, sentence):
    with pytest.raises(GramLoopError, match=sentence):
        make_plan(small_request(model_folder, scene_folder, **change))
