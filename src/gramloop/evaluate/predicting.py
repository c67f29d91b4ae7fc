"""One image, or several of one size, shown to all methods; and the conditions under which results are the same again."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from gramloop.data.records import Image8
from gramloop.evaluate.batches import BatchPredictor
from gramloop.evaluate.methods import BASELINE, Method
from gramloop.evaluate.plan import Plan
from gramloop.evaluate.timing import call_name
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor
from gramloop.util.device import deterministic_algorithms


def wanted_trace(plan: Plan, position: int) -> bool | None:
    """Whether replays return what they measure: always, never, or (None) where they measure it anyway."""
    if plan.diagnostics:
        return True
    return None if position < plan.pictures else False


def predict_all(
    predictor: Predictor[Prediction],
    image: Image8,
    methods: Sequence[Method],
    trace: bool | None = False,
    spent: dict[str, float] | None = None,
    mitigated: Mapping[str, Predictor[Prediction]] | None = None,
) -> dict[str, Prediction]:
    """The predictions of all methods for one image, by name; the baseline comes with the first replay.

    Args:
        predictor: the plain one.
        image: RGB, (H, W, 3).
        methods: what is compared.
        trace: whether replays return what they measure; None where they measure it anyway.
        spent: seconds by call, to be added to.
        mitigated: the predictors of methods with mitigations, by name.
    """
    found: dict[str, Prediction] = {}
    for together in calls(methods):
        began = time.perf_counter()
        last = together[-1]
        if len(together) == 2:
            pair = predictor.predict(image, last.replay, paired=True, trace=trace)
            found[together[0].name], found[last.name] = pair.ordinary, pair.replayed
        else:
            chosen = mitigated[last.name] if last.mitigations and mitigated else predictor
            found[last.name] = chosen.predict(image, last.replay, trace=trace)
        if spent is not None:
            name = call_name(together)
            spent[name] = spent.get(name, 0.0) + time.perf_counter() - began
    return found


def predict_together(
    predictor: Predictor[Prediction],
    images: Sequence[Image8],
    methods: Sequence[Method],
    trace: bool | None,
    spent: dict[str, float],
) -> list[dict[str, Prediction]]:
    """The same for images of one size at once, by a predictor that `gramloop.evaluate.batches.check_batch` let pass."""
    assert isinstance(predictor, BatchPredictor)
    found: list[dict[str, Prediction]] = [{} for _ in images]
    for together in calls(methods):
        began, last = time.perf_counter(), together[-1]
        paired = len(together) == 2
        results = predictor.predict_batch(images, last.replay, paired, trace=trace)
        for one, result in zip(found, results, strict=True):
            if paired:
                one[together[0].name], one[last.name] = result.ordinary, result.replayed
            else:
                one[last.name] = result
        spent[call_name(together)] = spent.get(call_name(together), 0.0) + time.perf_counter() - began
    return found


def calls(methods: Sequence[Method]) -> list[tuple[Method, ...]]:
    """Which methods are predicted in one call: the baseline with the first replay, all others alone."""
    ordinary = [method for method in methods if method.name == BASELINE]
    replays = [method for method in methods if method.replay is not None]
    if not ordinary or not replays:
        return [(method,) for method in methods]
    paired = (ordinary[0], replays[0])
    return [paired, *((method,) for method in methods if method not in paired)]


@contextmanager
def deterministic(threads: int) -> Iterator[None]:
    """Deterministic algorithms or an error, and a fixed number of threads, since sums depend on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with deterministic_algorithms():
            yield
    finally:
        torch.set_num_threads(before)
