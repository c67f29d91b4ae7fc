from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers")
    from small_runs import write_model

    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def scene_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from small_runs import write_scene_set

    return write_scene_set(tmp_path_factory.mktemp("scenes") / "set", 11)
