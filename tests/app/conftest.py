from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers")
    from small_runs import write_model

    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def stored_results(tmp_path_factory: pytest.TempPathFactory, small_model: Path) -> Path:
    """A folder with two evaluations, which keep the pictures of their first two images."""
    from gramloop.evaluate.evaluation import evaluate
    from small_runs import small_plan, write_scene_set

    folder = tmp_path_factory.mktemp("stored")
    scenes = write_scene_set(folder / "set", 5)
    methods = ["baseline", "gramloop", "median"]
    for task in ("semantic", "detection"):
        few = {"conditions": ["fog", "impulse_noise"], "shards": 1, "pictures": 2}
        plan = small_plan(small_model, scenes, task, methods=methods, **few)
        evaluate(plan, folder / "out" / task, workers=1)
    return folder / "out"
