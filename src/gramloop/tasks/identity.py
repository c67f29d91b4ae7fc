"""What identifies a model of the user's own code, in a file, a package or in memory: its content and its behaviour.

A version that the user gives takes the place of the content, which then may change. The behaviour is compared at every
start, unless a model predicts the same image differently each time.
"""

from __future__ import annotations

import hashlib
import inspect
import platform
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gramloop.errors import GramLoopError, user_code
from gramloop.tasks.images import RGB
from gramloop.tasks.model_content import content_of
from gramloop.tasks.module_predictor import ModulePredictor
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor, before_renumbering
from gramloop.tasks.user_models import FunctionPredictor, find_make

Size = tuple[int, int]  # height and width
# of a summary: kernels of other processors change near ties, of boundary pixels and weak boxes, less than one in a hundred
TOLERANCE = 0.01
_CELLS = 2  # of a summary, along each side of an image
_WAVES = (1.0, 2.399963, 0.618034)  # that tell class numbers from each other; no two are multiples


@dataclass(frozen=True)
class Behaviour:
    """What a model predicts on the probe images.

    Attributes:
        size: height and width of the probe images.
        digest: of the predictions; empty where the same image was predicted twice, differently.
        summary: numbers that are nearly the same on another processor.
        machine: where the predictions were made.
        varying: parts of the model's content that predictions change, such as caches and counters.
    """

    size: Size
    digest: str
    summary: tuple[float, ...]
    machine: str
    varying: tuple[str, ...] = ()

    @property
    def repeatable(self) -> bool:
        """Whether the same image is always predicted alike."""
        return bool(self.digest)

    def same_as(self, other: Behaviour) -> bool:
        """Whether one model can have predicted both: to the last bit, where both were made on one machine."""
        if not (self.repeatable and other.repeatable):
            return self.repeatable == other.repeatable
        if self.machine == other.machine:
            return self.digest == other.digest
        one, two = np.array(self.summary), np.array(other.summary)
        scale = max(1.0, *np.abs(one), *np.abs(two)) if len(one) else 1.0
        return one.shape == two.shape and bool((np.abs(one - two) <= TOLERANCE * scale).all())


def observe(predictor: Predictor[Prediction], size: Size, device: str = "cpu") -> Behaviour:
    """Predict the two probe images; an error of the model is raised as `UserCodeError`."""
    found = [_probe(predictor, pixels) for pixels in probe_images(*size)]
    summary = tuple(round(number, 6) for one in found for number in summarise(one))
    return Behaviour(size, _digest(found), summary, _machine(device))


def observe_twice(
    predictor: Predictor[Prediction], size: Size, device: str, content: Any
) -> tuple[Behaviour, dict[str, str]]:
    """What a model predicts, whether it does so again, and its content without what predictions change.

    ``content()`` reads the content. It is read after the first predictions, which may load weights, and again after an
    image that the model never saw, which fills caches.
    """
    first = observe(predictor, size, device)
    before: dict[str, str] = content()
    _probe(predictor, np.random.default_rng().integers(0, 256, (*size, 3), np.uint8))
    again = observe(predictor, size, device)
    after: dict[str, str] = content()
    varying = tuple(sorted(name for name in {**before, **after} if before.get(name) != after.get(name)))
    digest = first.digest if first.digest == again.digest else ""
    stable = {name: value for name, value in before.items() if name not in varying}
    return Behaviour(size, digest, first.summary if digest else (), first.machine, varying), stable


def probe_images(height: int, width: int) -> tuple[RGB, RGB]:
    """Two images with all brightnesses, many colours, edges and texture; the same wherever they are made."""
    rows, columns = np.mgrid[0:height, 0:width].astype(np.int64)
    across, down = columns * 255 // max(1, width - 1), rows * 255 // max(1, height - 1)
    smooth = np.stack([across, down, (across + down) // 2], axis=2)
    coarse = (rows * 8 // height) * 8 + columns * 8 // width
    noise = (rows * 73_856_093 ^ columns * 19_349_663 ^ (rows * columns + 1) * 83_492_791) >> 7
    colours = np.stack([coarse * 37 % 256, coarse * 101 % 256, coarse * 211 % 256], axis=2)
    textured = np.clip(colours + (noise % 64)[..., None] - 32, 0, 255)
    return smooth.astype(np.uint8), textured.astype(np.uint8)


def summarise(prediction: Prediction) -> list[float]:
    """A few numbers of a prediction, of which every change of many pixels or of a strong box changes one."""
    held: Mapping[str, Any] = {each.name: getattr(prediction, each.name) for each in fields(prediction)}
    if {"boxes", "scores", "labels"} <= set(held):
        return _boxes_summary(held["boxes"], held["scores"], held["labels"])
    if {"segments", "infos"} <= set(held):
        kinds = np.zeros(int(np.max(held["segments"], initial=0)) + 1)
        for info in held["infos"]:
            kinds[info.id] = info.category + 1
        return _waves(kinds[held["segments"]])
    found: list[float] = []
    for value in held.values():
        if isinstance(value, np.ndarray) and value.ndim == 2:
            found += _waves(value) if value.dtype.kind in "biu" else _means(value)
    return found


def _boxes_summary(boxes: NDArray[Any], scores: NDArray[Any], labels: NDArray[Any]) -> list[float]:
    """Sums over boxes, each counted by its squared score, so that weak ones hardly count."""
    weights = np.nan_to_num(scores.astype(np.float64)) ** 2
    features = [np.ones(len(weights)), *(np.cos(labels * wave) for wave in _WAVES)]
    features += list(boxes.reshape(-1, 4).astype(np.float64).T / max(1.0, np.abs(boxes).max(initial=0)))
    return [float((weights * np.nan_to_num(feature)).sum()) for feature in features]


def _waves(labels: NDArray[Any]) -> list[float]:
    return [number for wave in _WAVES for number in _means(np.cos(labels * wave))]


def _means(values: NDArray[Any]) -> list[float]:
    """The means over parts of an image."""
    finite = np.nan_to_num(values.astype(np.float64), posinf=0.0, neginf=0.0)
    strips = (
        part for rows in np.array_split(finite, _CELLS) for part in np.array_split(rows, _CELLS, axis=1)
    )
    return [float(part.mean()) if part.size else 0.0 for part in strips]


def _probe(predictor: Predictor[Prediction], pixels: RGB) -> Prediction:
    name = getattr(predictor, "name", type(predictor).__name__)
    with user_code(f"{name} failed on a trial image of {pixels.shape[1]} x {pixels.shape[0]} pixels"):
        return predictor.predict(pixels)


def _digest(predictions: list[Prediction]) -> str:
    values = [
        {each.name: getattr(one, each.name) for each in fields(one) if each.name not in ("blocks", "trace")}
        for one in predictions
    ]
    return content_of({"": values})[""]


def _machine(device: str) -> str:
    """The machine and its processor, or its GPU."""
    kind = torch.device(device).type
    return f"{platform.node()}, {torch.cuda.get_device_name(device) if kind == 'cuda' else _processor()}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


Content = dict[str, str]  # digests, by what they are of
_held: dict[str, Predictor[Prediction]] = {}
_numbers = count(1)


def hold_model(predictor: Predictor[Prediction]) -> dict[str, str]:
    """The files of a model, as `gramloop.tasks.load_predictor` takes them, for one that lies in no file."""
    name = f"{getattr(predictor, 'name', type(predictor).__name__)} #{next(_numbers)}"
    _held[name] = predictor
    return {"object": name}


def held_model(name: str) -> Predictor[Prediction]:
    """The model that was held under a name."""
    if name not in _held:
        raise GramLoopError(
            "the model of this evaluation is an object of the program that began it; call gramloop.evaluate there again"
        )
    return _held[name]


def is_user_code(files: Mapping[str, str]) -> bool:
    """Whether a model is known by its content and behaviour, and not by its files."""
    return "make" in files or "object" in files


def identify(
    files: Mapping[str, str], predictor: Predictor[Prediction], size: Size, device: str, version: str = ""
) -> tuple[Content, Behaviour | None]:
    """The content and the behaviour of a model of the user's code; nothing of other models.

    Args:
        files: the model, as `gramloop.tasks.load_predictor` takes it.
        predictor: the same, loaded.
        size: of the images that it is tried with.
        device: where it runs.
        version: what the user calls it, instead of its content.
    """
    if not is_user_code(files):
        if version:
            raise GramLoopError(
                f"the version {version!r} belongs to a model of your own code; other weights are known"
            )
        return {}, None
    plain = before_renumbering(predictor)
    seen, content = observe_twice(plain, size, device, lambda: user_content(files, plain))
    if version:
        return {"version": version}, replace(seen, varying=())
    return _grouped(content), seen


def check_identity(
    files: Mapping[str, str],
    predictor: Predictor[Prediction],
    device: str,
    content: Mapping[str, str],
    seen: Behaviour,
) -> str:
    """How a loaded model differs from the ``content`` and behaviour that it had when an evaluation was planned.

    Returns:
        An empty string where it is the same, or what differs.
    """
    plain = before_renumbering(predictor)
    now = observe(plain, seen.size, device)
    if "version" not in content:
        leaves = user_content(files, plain)
        found = _grouped({name: digest for name, digest in leaves.items() if name not in seen.varying})
        if changed := first_change(content, found):
            return changed
    return "" if not seen.repeatable or now.same_as(seen) else "what it predicts on the trial images"


def first_change(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """The first part of a content that differs; empty where none does."""
    return next((name for name in sorted({*before, *now}) if before.get(name) != now.get(name)), "")


def user_content(files: Mapping[str, str], predictor: Predictor[Prediction]) -> Content:
    """Digests of everything that a model of the user's code is made of."""
    parts: dict[str, object]
    if isinstance(predictor, FunctionPredictor):
        parts = {"model": predictor.function}
    elif isinstance(predictor, ModulePredictor):
        parts = {"model": predictor.model, **predictor.steps}
    else:
        parts = {"model": predictor}
    if "make" not in files:
        return content_of(parts)
    make, place = find_make(files["make"]), files["make"].rpartition(":")[0]
    source = inspect.getsourcefile(inspect.unwrap(make))
    found = {} if source is None else {"make": hashlib.sha256(Path(source).read_bytes()).hexdigest()}
    if place.endswith(".py"):
        return {**content_of(parts, folder=Path(place).parent), **found}
    root = place.split(".")[0]
    for distribution in sorted(set(packages_distributions().get(root, ()))):
        try:
            found[f"version of {distribution}"] = version(distribution)
        except PackageNotFoundError:
            continue
    return {**content_of(parts, own=root), **found}


def _grouped(leaves: Mapping[str, str]) -> Content:
    """One digest for each attribute of the model, from those of everything in it."""
    groups: dict[str, list[str]] = {}
    for name, digest in sorted(leaves.items()):
        groups.setdefault(".".join(name.split(".")[:2]), []).append(f"{name} {digest}")
    return {
        name: leaves[name] if members == [f"{name} {leaves.get(name)}"] else _hash(members)
        for name, members in groups.items()
    }


def _hash(members: list[str]) -> str:
    return hashlib.sha256("\n".join(members).encode()).hexdigest()
