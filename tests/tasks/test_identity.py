"""A model of the user's code is known by its content and by what it predicts, in every process alike."""

from __future__ import annotations

import functools
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_user_models import MODULE
from torch import nn

from gramloop.tasks import as_predictor, open_model
from gramloop.tasks.identity import (
    Behaviour,
    check_identity,
    content_of,
    hold_model,
    identify,
    observe,
    probe_images,
    user_content,
)

SIZE = (24, 32)
SCALE: Any = 1.0


def digest(value: object) -> dict[str, str]:
    return content_of({"model": value})


class Thresholds:
    level = 3

    def __init__(self, value: float) -> None:
        self.value = value
        self.lock, self.log = threading.Lock(), logging.getLogger("any")
        self.itself = self

    def __call__(self, image: np.ndarray) -> np.ndarray:
        return (image[..., 0] > self.value).astype(int)


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: float) -> None:
        self.value = value


@dataclass
class Options:
    names: set[str] = field(default_factory=set)
    weights: tuple[Any, ...] = ()


def by_default(image: np.ndarray, level: int = 3) -> np.ndarray:
    return image[..., 0] > level


def closing_over(value: object) -> Callable[..., object]:
    @torch.no_grad()
    def inner(image: np.ndarray) -> object:
        return value

    return inner


def wrapped(value: float) -> Callable[..., object]:
    return functools.lru_cache(maxsize=None)(lambda image: image * value)


PAIRS: dict[str, Callable[[float], object]] = {
    "closure": closing_over,
    "array in a list": lambda value: closing_over([np.full(3, value)]),
    "object array": lambda value: np.array([value, "a"], dtype=object),
    "tensor": lambda value: closing_over({"weights": torch.full((2, 2), value)}),
    "attribute": Thresholds,
    "bound method": lambda value: Thresholds(value).__call__,
    "slot": lambda value: closing_over(Slotted(value)),
    "partial": lambda value: functools.partial(by_default, level=value),
    "set in a dataclass": lambda value: Options({"a", "b", f"{value}"}),
    "nested tuple": lambda value: Options(weights=(1, (2, (value,)))),
    "generator of numpy": lambda value: np.random.default_rng(int(value)),
    "lru_cache": wrapped,
    "code": lambda value: eval(f"lambda image: image > {value}"),
    "module setting": lambda value: nn.Sequential(nn.Dropout(value / 10)),
    "parameter": lambda value: nn.ParameterList([torch.full((2,), value)]),
    "deep": lambda value: functools.reduce(lambda inner, _: [inner], range(60), value),
}


@pytest.mark.parametrize("make", PAIRS.values(), ids=PAIRS)
def test_a_number_changes_the_content_wherever_it_is(make: Callable[[float], object]) -> None:
    assert digest(make(3.0)) == digest(make(3.0))
    assert digest(make(3.0)) != digest(make(4.0))


def test_a_global_that_code_names_is_content(monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(image: np.ndarray) -> np.ndarray:
        return [SCALE * each for each in image]

    first = digest(scaled)
    monkeypatch.setattr(sys.modules[__name__], "SCALE", np.ones(3))
    second = digest(scaled)
    assert {name for name in first if first[name] != second[name]} == {"model.global SCALE"}


def test_a_file_counts_by_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text("[1]")
    (tmp_path / "two.json").write_text("[1]")
    assert digest(str(tmp_path / "one.json")) == digest(tmp_path / "two.json")
    (tmp_path / "two.json").write_text("[2]")
    assert digest(str(tmp_path / "one.json")) != digest(str(tmp_path / "two.json"))


def test_devices_and_the_place_of_a_tensor_are_no_content() -> None:
    assert (
        digest({"device": torch.device("cuda:1")}) == digest({"device": "cuda:0"}) != digest({"device": "x"})
    )


def test_every_process_reads_the_same(tmp_path: Path) -> None:
    file = tmp_path / "my_models.py"
    file.write_text(
        MODULE.replace(
            "return Mine()",
            "model = Mine(); model.names = {'a', 'b', 'c', 'd'}; model.x = object(); return model",
        )
    )
    program = (
        "import sys, json; from gramloop.tasks import open_model; from gramloop.tasks.identity import user_content\n"
        "print(json.dumps(user_content({'make': sys.argv[1]}, open_model(sys.argv[1]))))"
    )
    spec = f"{file}:make"
    found = subprocess.run([sys.executable, "-c", program, spec], capture_output=True, text=True, check=True)
    content = user_content({"make": spec}, open_model(spec))
    assert json.loads(found.stdout) == content
    assert "model.weights" in content


def test_a_comment_and_other_weights_are_told_apart(tmp_path: Path) -> None:
    def content(text: str) -> dict[str, str]:
        file = tmp_path / "my_models.py"
        file.write_text(text)
        spec = f"{file}:make"
        return user_content({"make": spec}, open_model(spec))

    first = content(MODULE)
    assert content(MODULE) == first
    commented = content(MODULE + "# a comment\n")
    assert {name for name in first if first[name] != commented[name]} == {"make"}
    assert content(MODULE.replace("seed(0)", "seed(1)"))["model.weights"] != first["model.weights"]


@pytest.mark.parametrize(
    "wrap", [torch.compile, lambda model: model.compile() or model], ids=["wrapped", "in place"]
)
def test_compiling_does_not_change_what_a_model_is(wrap: Callable[[nn.Module], nn.Module]) -> None:
    class Outer(nn.Module):
        def __init__(self, level: float) -> None:
            super().__init__()
            self.inner = wrap(nn.Linear(2, 2))
            nn.init.constant_(self.inner.weight, level)
            nn.init.zeros_(self.inner.bias)

    one, same, other = (content_of({"model": Outer(level)}) for level in (1.0, 1.0, 2.0))
    assert one == same
    assert one != other


def test_caches_and_counters_do_not_identify_a_model() -> None:
    class Counting:
        def __init__(self) -> None:
            self.calls, self.cache, self.weights = 0, {}, None  # type: ignore[var-annotated]

        def __call__(self, image: np.ndarray) -> np.ndarray:
            self.calls += 1
            self.cache[image.tobytes()] = self.calls
            self.weights = np.full(3, 7.0)  # read when it is first called
            return (image[..., 0] > 99).astype(int)

    model = Counting()
    files, predictor = hold_model(as_predictor(model)), as_predictor(model)
    content, seen = identify(files, predictor, SIZE, "cpu")
    assert seen is not None
    assert set(seen.varying) == {"model.cache", "model.calls"}
    predictor.predict(np.zeros((9, 9, 3), np.uint8))
    assert identify(files, predictor, SIZE, "cpu") == (content, seen)
    fresh = as_predictor(Counting())
    assert check_identity(files, fresh, "cpu", content, seen) == ""
    assert check_identity(files, as_predictor(Thresholds(99)), "cpu", content, seen) == "model"


def test_predictions_that_vary_have_no_digest() -> None:
    rng = np.random.default_rng(0)
    model = as_predictor(lambda image: rng.integers(0, 9, image.shape[:2]))
    _, seen = identify(hold_model(model), model, SIZE, "cpu")
    assert seen is not None
    assert not seen.repeatable
    assert seen.same_as(seen)


@pytest.mark.parametrize("kind", ["labels", "depth", "boxes"])
def test_another_processor_may_round_but_not_predict_otherwise(kind: str) -> None:
    """What one class more on a strip of pixels, or a weak box, changes is beyond rounding; a few pixels are not."""

    def seen(level: float, stray: float = 0.0) -> Behaviour:
        def predict(image: np.ndarray) -> object:
            values = image.astype(np.float64).mean(2)
            if kind == "depth":
                return (values + level) * (1 + stray)
            if kind == "labels":
                found = (values > level).astype(int)
                found.flat[: int(stray * found.size)] ^= 1
                return found
            return {"boxes": [[0, 0, level, 9], [0, 0, 5, 5]], "scores": [0.9, stray], "labels": [1, 2]}

        return replace(observe(as_predictor(predict), (96, 128)), machine=f"{level} {stray}")

    assert seen(60).same_as(seen(60, 1e-3))
    assert not seen(60).same_as(seen(75))


def test_probe_images_have_every_brightness_and_texture() -> None:
    smooth, textured = probe_images(300, 300)
    assert set(np.unique(smooth[..., 0])) == set(range(256))
    assert len(np.unique(textured.reshape(-1, 3), axis=0)) > 1000
    assert all(each.shape == (2, 3, 3) for each in probe_images(2, 3))
