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


@pytest.fixture(scope="session")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images and a model for ``gramloop evaluate`` on a cluster."""
    from evaluate_command import write_given

    return write_given(tmp_path_factory.mktemp("given"))


@pytest.fixture(scope="session")
def local_results(given: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What it makes of them on this machine alone."""
    from evaluate_command import Command

    run = Command(given, tmp_path_factory.mktemp("local") / "out")
    assert run.end()[0] == 0
    return run.results
