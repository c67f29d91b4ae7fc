"""Hidden weights: whatever holds the numbers of a model, a folder never mixes two models.

hypothesis makes a model whose level hides in a closure, a global, an array, a file or an object that nothing can read.
The folder of one is offered another: equal models resume, and any other is refused before anything is written.
"""

from __future__ import annotations

import functools
import json
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FunctionType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gramloop
from gramloop import GramLoopError
from small_sets import write_semantic

FEW: dict[str, Any] = {"suite": "my-set-c", "conditions": ["fog"], "severities": [3], "workers": 1}
Function = Callable[[np.ndarray], np.ndarray]


def above(image: np.ndarray, level: Any) -> np.ndarray:
    return (image.mean(2) > float(level)).astype(int)


def in_closure(level: int, place: Path) -> Function:
    return lambda image: above(image, level)


def in_global(level: int, place: Path) -> Function:
    code = compile("def predict(image): return (image.mean(2) > LEVEL).astype(int)", "typed", "exec")
    space: dict[str, Any] = {"LEVEL": level, "__name__": "typed"}
    exec(code, space)
    found: FunctionType = space["predict"]
    return found


def in_array(level: int, place: Path) -> Function:
    weights = {"first": [np.array([0.0, level])]}
    return lambda image: above(image, weights["first"][0][1])


def in_tensor(level: int, place: Path) -> Function:
    return functools.partial(above, level=torch.tensor(level))


def in_attribute(level: int, place: Path) -> Function:
    class Model:
        def __init__(self) -> None:
            self.inner = type("Inner", (), {})()
            self.inner.level = level

        def __call__(self, image: np.ndarray) -> np.ndarray:
            return above(image, self.inner.level)

    return Model()


def in_default(level: int, place: Path) -> Function:
    return lambda image, level=level: above(image, level)  # type: ignore[misc]


def in_json(level: int, place: Path) -> Function:
    """Read at every call, so that the file is all there is."""
    path = str(place / "weights.json")
    Path(path).write_text(json.dumps({"level": level}))
    return lambda image: above(image, json.loads(Path(path).read_text())["level"])


def in_library(level: int, place: Path) -> Function:
    """As a session of a C library, whose weights Python cannot read."""
    session = sqlite3.connect(":memory:", check_same_thread=False)
    session.execute("create table weights (level)")
    session.execute("insert into weights values (?)", (level,))
    return lambda image: above(image, session.execute("select level from weights").fetchone()[0])


HIDING: list[Callable[[int, Path], Function]] = [
    in_closure, in_global, in_array, in_tensor, in_attribute, in_default, in_json, in_library,
]  # fmt: skip
FILE = """
import json
from pathlib import Path
import numpy as np
{top}
def make():
    {inside}
    return lambda image: (image.mean(2) > {read}).astype(int)
"""
FILES = {
    "closure": ("", "level = json.loads(Path({path!r}).read_text())", "level"),
    "global": ("LEVEL = json.loads(Path({path!r}).read_text())", "pass", "LEVEL"),
    "array": ("", "weights = np.full(2, json.loads(Path({path!r}).read_text()))", "weights[1]"),
    "json": ("", "pass", "json.loads(Path({path!r}).read_text())"),
    "next to it": ("", "pass", "json.loads((Path(__file__).parent / 'weights.json').read_text())"),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_semantic(tmp_path_factory.mktemp("data"), 2)


def mixed(data: Path, out: Path, models: tuple[Any, Any], alone: Any, same: bool) -> bool:
    """Whether the folder of the first model takes the second one's results for its own, or refuses an equal one."""
    gramloop.evaluate(models[0](), data, out=out, **FEW)
    if same:
        return gramloop.evaluate(models[1](), data, out=out, **FEW).csv() != alone().csv()
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    try:
        gramloop.evaluate(models[1](), data, out=out, **FEW)
    except GramLoopError as error:
        after = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
        return "another model" not in str(error) or before != after
    return True


@given(st.sampled_from(HIDING), st.integers(20, 235), st.integers(20, 235) | st.none())
@settings(max_examples=24, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_no_model_in_memory_gets_the_scores_of_another(
    data: Path, make: Callable[[int, Path], Function], first: int, other: int | None
) -> None:
    second = first if other is None else other
    with TemporaryDirectory() as place:
        folder = Path(place)
        models = tuple(functools.partial(make, level, folder) for level in (first, second))
        assert not mixed(
            data,
            folder / "out",
            (models[0], models[1]),
            lambda: gramloop.evaluate(models[1](), data, out=folder / "alone", **FEW),
            first == second,
        )


@given(st.sampled_from(sorted(FILES)), st.integers(20, 235), st.integers(20, 235) | st.none())
@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_no_model_of_a_file_gets_the_scores_of_another(
    data: Path, hiding: str, first: int, other: int | None
) -> None:
    second = first if other is None else other
    with TemporaryDirectory() as place:
        folder = Path(place)
        weights, file = folder / "weights.json", folder / "my_models.py"
        top, inside, read = (each.format(path=str(weights)) for each in FILES[hiding])
        file.write_text(FILE.format(top=top, inside=inside, read=read))

        def model(level: int) -> str:
            weights.write_text(str(level))
            for name in [name for name in sys.modules if name.startswith("_gramloop_my_models")]:
                del sys.modules[name]  # as a new process would find it
            return f"{file}:make"

        models = functools.partial(model, first), functools.partial(model, second)
        alone = lambda: gramloop.evaluate(model(second), data, out=folder / "alone", **FEW)  # noqa: E731
        assert not mixed(data, folder / "out", models, alone, first == second)
