"""Models that a program holds in memory, under names by which plans can refer to them."""

from __future__ import annotations

import hashlib

from gramloop.errors import GramLoopError
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor
from gramloop.tasks.user_fingerprints import object_fingerprints

_held: dict[str, Predictor[Prediction]] = {}


def hold_model(predictor: Predictor[Prediction]) -> dict[str, str]:
    """The files of a model, as `gramloop.tasks.load_predictor` takes them, for one that lies in no file."""
    found = sorted(object_fingerprints(predictor).items())
    name = hashlib.sha256(repr(found).encode()).hexdigest()[:16]
    _held[name] = predictor
    return {"object": name}


def held_model(name: str) -> Predictor[Prediction]:
    """The model that was held under a name."""
    if name not in _held:
        raise GramLoopError(
            "the model of this evaluation is an object of the program that began it; call gramloop.evaluate there again"
        )
    return _held[name]
