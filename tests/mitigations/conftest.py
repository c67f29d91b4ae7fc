"""The embedded model as both predictors, a few drawn scenes, and their statistics."""

import pytest


@pytest.fixture(scope="session")
def images():
    from gramloop.data.scenes.drawing import scene

    return [scene(index, split="val").image for index in range(8)]


@pytest.fixture(scope="session")
def segmenter():
    from gramloop.models.tiny import WEIGHTS
    from gramloop.tasks import load_predictor

    return load_predictor("semantic", {"folder": str(WEIGHTS)})


@pytest.fixture(scope="session")
def detector():
    from gramloop.models.tiny import WEIGHTS
    from gramloop.tasks import load_predictor

    return load_predictor("detection", {"folder": str(WEIGHTS)})


@pytest.fixture(scope="session")
def source(segmenter, images):
    from gramloop.mitigations import calibrate

    return calibrate(segmenter, images)
