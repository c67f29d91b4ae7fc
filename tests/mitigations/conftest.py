"""The embedded model for every task, a transformers folder, a custom module, a function, scenes and statistics."""

import pytest

from user_models import PatchDepth, grey_depth


@pytest.fixture(scope="session")
def images():
    from gramloop.data.scenes import scene

    return [scene(index, split="val").image for index in range(8)]


def embedded(task):
    from gramloop.models.tiny import WEIGHTS
    from gramloop.tasks import load_predictor

    return load_predictor(task, {"folder": str(WEIGHTS)})


@pytest.fixture(scope="session")
def segmenter():
    return embedded("semantic")


@pytest.fixture(scope="session")
def detector():
    return embedded("detection")


@pytest.fixture(scope="session")
def estimator():
    return embedded("depth")


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Depth Anything on DINOv2, as transformers saves it."""
    from dense_folders import save_model
    from gramloop.tasks.loading import open_model

    return open_model(f"hf:{save_model('DepthAnything', tmp_path_factory.mktemp('folder') / 'saved')}")


@pytest.fixture(scope="session")
def module():
    from gramloop.tasks import as_predictor

    return as_predictor(PatchDepth().eval(), "depth", name="PatchDepth")


@pytest.fixture(scope="session")
def function():
    from gramloop.tasks import as_predictor

    return as_predictor(grey_depth, "depth")


@pytest.fixture(scope="session")
def stats(segmenter, images):
    from gramloop.mitigations import calibrate

    return calibrate(segmenter, images)


@pytest.fixture(scope="session")
def all_stats(request, images):
    """Statistics for every predictor, by the name of its fixture."""
    from gramloop.mitigations import calibrate

    names = ("segmenter", "detector", "estimator", "folder", "module", "function")
    return {name: calibrate(request.getfixturevalue(name), images) for name in names}
