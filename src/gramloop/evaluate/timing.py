"""What methods that share a call take by themselves.

The baseline comes with the first replay, so the time of that call belongs to neither of them. One image of every
condition is therefore predicted once more by each alone, right after the call that served both: its share of that
call's time, on the same image and a warm machine, tells what it takes alone. No result depends on it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from gramloop.data.records import Image8
from gramloop.evaluate.methods import Method
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor


def call_name(together: Sequence[Method]) -> str:
    """The name under which the seconds of a call are kept, such as ``baseline+gramloop``."""
    return "+".join(method.name for method in together)


def shares_alone(
    predictor: Predictor[Prediction], image: Image8, together: Sequence[Method], seconds: float
) -> dict[str, float]:
    """Each method's time alone, as a share of the ``seconds`` that the call for all of them took on this image."""
    shares = {}
    for method in together if len(together) > 1 and seconds > 0 else ():
        began = time.perf_counter()
        predictor.predict(image, method.replay, trace=False)
        shares[method.name] = (time.perf_counter() - began) / seconds
    return shares
