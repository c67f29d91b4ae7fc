"""Custom models: a torch module or a function as a predictor, and what ``FILE.py:make`` returns.

``make`` returns a `Predictor`, a torch module with ``preprocess`` and ``postprocess``, which is replayed where one ViT is
inside, or any other callable from pixels to a prediction, which cannot be replayed. ``task`` and ``classes`` are
attributes of what is returned, or of ``make``.

How a module's head reads its ViT is not known, so a pair runs the model twice; its blocks remember the first run
(`reusing_blocks`), and the pair costs no more than one of the predictors that know their taps.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import get_ident
from types import ModuleType
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gramloop.data.records import TaskName as Task
from gramloop.errors import GramLoopError, UserCodeError, user_code
from gramloop.models.backbone import refuse_many_tokens
from gramloop.replay.attach import attached
from gramloop.replay.config import Cost, ReplayConfig, extra_blocks, pair_blocks
from gramloop.replay.vit import ViT, find_vit, hidden_states, state_of
from gramloop.tasks.base import task_names, task_of
from gramloop.tasks.class_names import Classes
from gramloop.tasks.depth import Depth
from gramloop.tasks.detection import Detection
from gramloop.tasks.images import RGB
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import (
    AnyPredictor,
    BasePredictor,
    MaybeReplay,
    Predictor,
    Tracing,
    check_replay,
    replay_maps,
    wants_trace,
)
from gramloop.tasks.semantic import Segmentation
from gramloop.util.forward_patch import ModuleForward, patched

Preprocess = Callable[[RGB], Any]
Postprocess = Callable[[Any, tuple[int, int]], object]  # outputs, and height and width of the image
_Array = NDArray[np.generic]
_BOXES = ("boxes", "scores", "labels")
GREY = np.full((64, 64, 3), 128, np.uint8)  # what a model predicts on it shows its task


class FunctionPredictor(BasePredictor[Prediction]):
    """A function from pixels to a prediction; nothing inside it can be replayed.

    Args:
        function: pixels (H, W, 3) uint8 -> one of the forms of `read_prediction`.
        task: what is predicted; without it a grey image is predicted to find out.
        classes: names in order or by number.
        name: of the model, in messages.
    """

    batches = False
    taps: tuple[int, ...] = ()  # not known
    host: ViT | None = None
    things: frozenset[int] = frozenset()  # of a panoptic model: the classes that are counted, unlike stuff

    def __init__(
        self,
        function: Callable[[RGB], object],
        task: Task | None = None,
        classes: object = None,
        name: str = "the function",
    ) -> None:
        self.function, self.name, self.classes = function, name, read_classes(classes, name)
        self.task: Any = task
        if task is None:
            with user_code(f"{name} failed on a grey trial image of {len(GREY)} x {len(GREY)} pixels"):
                self.task = task_of(self.predict(GREY)).name

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """The transformer blocks, first to last; none where the model is no ViT."""
        return () if self.host is None else self.host.blocks

    def cost(self, replay: MaybeReplay = None, paired: bool = False) -> Cost:
        """Blocks executed per view of an image, at most."""
        return Cost(1, 1)

    def _batch_versions(
        self, pixels: Sequence[RGB], replay: MaybeReplay, paired: bool, trace: Tracing
    ) -> list[list[Prediction]]:
        if replay is not None:
            check_replay(self, replay)
        return [self._versions(each, replay, paired, trace) for each in pixels]

    def _versions(self, pixels: RGB, replay: MaybeReplay, paired: bool, trace: Tracing) -> list[Prediction]:
        return [self._read(self.function(pixels.copy()), (pixels.shape[0], pixels.shape[1]))]

    def _read(self, found: object, size: tuple[int, int]) -> Prediction:
        prediction = read_prediction(found, size, self.name)
        if self.task is not None and task_of(prediction).name != self.task:
            raise GramLoopError(
                f"{self.name} returned a {type(prediction).__name__}, although its task is {self.task}"
            )
        return prediction


class ModulePredictor(FunctionPredictor):
    """A torch module, called with what ``preprocess`` makes of an image; ``postprocess`` reads what it returns.

    Args:
        model: the module, which is put into evaluation mode; replayed where one ViT is inside.
        preprocess: pixels (H, W, 3) uint8 -> what the module is called with: keywords as a mapping, several
            arguments as a tuple, or one.
        postprocess: what the module returned, and the image's height and width -> a prediction of that size.
        task, classes, name: as for a function.
    """

    def __init__(
        self,
        model: nn.Module,
        preprocess: Preprocess,
        postprocess: Postprocess,
        task: Task | None,
        classes: object,
        name: str | None = None,
    ) -> None:
        self.model, self.preprocess, self.postprocess = model.eval(), preprocess, postprocess
        self._shares = True  # until a pair shows that its passes have nothing in common
        with suppress(GramLoopError):
            self.host = find_vit(model)
        super().__init__(model, task, classes, name or type(model).__name__)

    def cost(self, replay: MaybeReplay = None, paired: bool = False) -> Cost:
        """Blocks executed per view of an image, at most."""
        depth = len(self.blocks)
        if replay is None or not depth:
            return Cost(depth or 1, depth or 1)
        alone = depth + extra_blocks(replay, depth)
        if not paired:
            return Cost(alone, depth)
        return Cost(pair_blocks(replay, depth) if self._shares else depth + alone, depth)

    def _versions(self, pixels: RGB, replay: MaybeReplay, paired: bool, trace: Tracing) -> list[Prediction]:
        device = next((each.device for each in self.model.parameters()), torch.device("cpu"))
        given = moved(self.preprocess(pixels.copy()), device)  # theirs to write into
        size = (pixels.shape[0], pixels.shape[1])
        self._refuse_many_tokens(given, size)
        if replay is None:
            return [self._run(given, size)]
        if not paired:
            return [self._replayed(given, size, replay, trace)]
        with reusing_blocks(self.blocks) as memory:
            baseline = self._run(given, size)
            memory.repeats = True
            replayed = self._replayed(given, size, replay, trace)
        self._shares = memory.answered > 0
        return [baseline, replace(replayed, blocks=round(memory.executed / max(1, memory.views)))]

    def _refuse_many_tokens(self, given: object, size: tuple[int, int]) -> None:
        """Refuse pixels that the ViT would cut into more patches than can be worked on, where its patches are known."""
        embedding = None if self.host is None else self.host.patch_embedding
        what = f"an image of {size[1]} x {size[0]}, as {self.name} is given it,"
        for each in tensors_of(given):
            if embedding is not None and each.ndim == 4 and each.shape[1] == embedding.in_channels:
                high, wide = embedding.stride
                refuse_many_tokens(each.shape[2] // high, each.shape[3] // wide, what)

    def _replayed(
        self, given: object, size: tuple[int, int], replay: ReplayConfig, trace: Tracing
    ) -> Prediction:
        """With the maps of the latest view, where that is one image whose grid of patches is known."""
        with attached(self.model, replay, trace=wants_trace(replay, trace), this_thread=True) as loop:
            found, measured = self._run(given, size), loop.trace
            known = measured is not None and measured.grid is not None and measured.drift
            maps = replay_maps(loop)[0] if known and len(known[0]) == 1 else None
            return replace(found, blocks=loop.blocks_executed, trace=maps)

    def _run(self, given: object, size: tuple[int, int]) -> Prediction:
        if isinstance(given, Mapping):
            outputs = self.model(**given)
        else:
            outputs = self.model(*given) if isinstance(given, tuple) else self.model(given)
        return replace(self._read(self.postprocess(outputs, size), size), blocks=len(self.blocks) or 1)


def moved(given: Any, device: torch.device) -> Any:
    """The same with its tensors on a device."""
    if isinstance(given, Tensor):
        return given.to(device)
    if isinstance(given, Mapping):
        return {name: moved(value, device) for name, value in given.items()}
    if isinstance(given, tuple | list):
        return type(given)(moved(value, device) for value in given)
    return given


def tensors_of(given: object) -> Iterator[Tensor]:
    """The tensors in what a model is called with, or returns."""
    if isinstance(given, Tensor):
        yield given
    elif isinstance(given, Mapping | tuple | list):
        for value in given.values() if isinstance(given, Mapping) else given:
            yield from tensors_of(value)


# what blocks returned, remembered for a second forward


class BlockReuse:
    """Lets a second forward of this thread reuse what its blocks have in common with the first, whatever a head reads.

    A replay attached for the second forward then costs only what it adds. Inputs are compared, not assumed: a model
    with random layers, or one that changes its states in place, is run in full.

    repeats: set for the second forward, where known inputs are answered with known outputs.
    executed, answered: blocks that ran, and that did not have to run again.
    views: how often the first block ran in the first forward: a model may see parts of an image one by one.
    """

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        self._runs: list[list[tuple[Tensor, Any, list[int]]]] = [[] for _ in blocks]
        self._thread, self.repeats = get_ident(), False
        self.executed = self.views = self.answered = 0

    def around(self, index: int, run: ModuleForward, *args: Any, **kwargs: Any) -> Any:
        """Run a block, or answer for it."""
        if get_ident() != self._thread:
            return run(*args, **kwargs)
        given = state_of(hidden_states(args, kwargs))
        for before, output, versions in self._runs[index] if self.repeats else ():
            if _same(before, given) and versions == _state_versions(before, output):
                self.answered += 1
                return output
        output = run(*args, **kwargs)
        self.executed += 1
        if not self.repeats:
            self.views += index == 0
            # of inference tensors later changes in place cannot be noticed
            if not (given.is_inference() or state_of(output).is_inference()):
                self._runs[index].append((given, output, _state_versions(given, output)))
        return output


@contextmanager
def reusing_blocks(blocks: Sequence[nn.Module]) -> Iterator[BlockReuse]:
    """Keep what these blocks return until the end of the ``with`` statement."""
    reuse = BlockReuse(blocks)
    with patched(blocks, reuse.around):
        yield reuse


def _state_versions(given: Tensor, output: Any) -> list[int]:
    return [given._version, state_of(output)._version]


def _same(old: Tensor, new: Tensor) -> bool:
    alike = (old.shape, old.dtype, old.device) == (new.shape, new.dtype, new.device)
    # the last token first: states that differ mostly differ there
    return old is new or (alike and torch.equal(old[:, -1], new[:, -1]) and torch.equal(old, new))


# what a model returns


def read_prediction(found: object, size: tuple[int, int], name: str) -> Prediction:
    """A prediction of an image of ``size`` (height, width), from a `Prediction` or one of the forms below.

    A class for every pixel is an integer array (H, W). Boxes in pixels (left, top, right, bottom) come with scores and
    labels, as a mapping with these names or a tuple in this order. Distances in metres are a floating-point array (H, W);
    inverse ones need ``Depth(values, disparity=True)``.
    """
    if isinstance(found, Prediction):
        return found
    if isinstance(found, Mapping) and set(_BOXES) <= set(found):
        found = tuple(found[part] for part in _BOXES)
    if isinstance(found, tuple) and len(found) == 3:
        return _detection(*(_array(part) for part in found), name=name)
    values = _array(found)
    if values.ndim != 2 or values.dtype.kind not in "biuf":
        kind = f"{values.dtype} {values.shape}" if values.ndim else type(found).__name__
        raise GramLoopError(
            f"{name} returned {kind}; it is an integer array (H, W) with a class for every pixel, boxes, scores and "
            "labels, or a floating-point array (H, W) with a distance in metres for every pixel"
        )
    if values.shape != size:
        raise GramLoopError(
            f"{name} returned {values.shape[1]} x {values.shape[0]} pixels for an image of {size[1]} x {size[0]}; a "
            "prediction has the size of its image"
        )
    if values.dtype.kind == "f":
        return Depth(values.astype(np.float32))
    return Segmentation(values.astype(np.int32))


def read_classes(given: object, name: str) -> Classes:
    """Numbers and names of classes: names in order, or names by number; none where nothing is given."""
    if given is None:
        return {}
    found = dict(enumerate(given)) if isinstance(given, list | tuple) else given
    if not (isinstance(found, Mapping) and all(isinstance(each, int) and each >= 0 for each in found)):
        raise GramLoopError(
            f"the classes of {name} are {given!r}; they are a list of names, or names by number"
        )
    return {number: None if label is None else str(label) for number, label in found.items()}


def _detection(boxes: _Array, scores: _Array, labels: _Array, *, name: str) -> Detection:
    many = len(scores) if scores.ndim == 1 else -1
    if (many and boxes.shape != (many, 4)) or labels.shape != (many,):
        raise GramLoopError(
            f"{name} returned boxes {boxes.shape}, scores {scores.shape} and labels {labels.shape}; they are (n, 4), "
            "(n,) and (n,)"
        )
    best = np.argsort(-scores.astype(np.float64), kind="stable")
    corners = boxes.reshape(many, 4)[best].astype(np.float32)
    return Detection(corners, scores[best].astype(np.float32), labels[best].astype(np.int64))


def _array(value: object) -> _Array:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)


# what ``make`` returns


def as_predictor(
    made: object,
    task: Task | None = None,
    classes: object = None,
    name: str | None = None,
    device: torch.device | None = None,
) -> AnyPredictor:
    """A predictor, a torch module with ``preprocess`` and ``postprocess``, or a function, as a predictor."""
    if isinstance(made, Predictor):
        return made
    name = name or str(getattr(made, "__name__", type(made).__name__))
    task, classes = getattr(made, "task", task), getattr(made, "classes", classes)
    if task not in (None, *(known := task_names())):
        raise GramLoopError(f"the task of {name} is {task!r}; it is one of {', '.join(known)}")
    if not callable(made):
        raise GramLoopError(
            f"{name} returned {type(made).__name__}; it is a Predictor, a torch module with preprocess and postprocess, "
            "or a function from an image to a prediction"
        )
    if isinstance(made, nn.Module):
        steps: dict[str, Any] = {part: getattr(made, part, None) for part in ("preprocess", "postprocess")}
        if missing := [part for part, step in steps.items() if not callable(step)]:
            raise GramLoopError(
                f"{name} returned the torch module {type(made).__name__} without {' and '.join(missing)}: preprocess takes "
                "pixels (H, W, 3) uint8, postprocess what the module returned and the image's (height, width)"
            )
        placed = made if device is None else made.to(device)
        found: FunctionPredictor = ModulePredictor(placed, **steps, task=task, classes=classes, name=name)
    else:
        found = FunctionPredictor(made, task, classes, name)
    found.things = frozenset(getattr(made, "things", ()))
    return found


def load_user_model(spec: str, task: Task | None = None, device: torch.device | str = "cpu") -> AnyPredictor:
    """What ``FILE.py:make`` or ``package.module:make`` returns, as a predictor.

    ``make`` is called with ``device=…`` if it takes that, and without arguments otherwise.
    """
    make = find_make(spec)
    # user code cannot be asked to leave weights out
    place = torch.device("cpu" if str(device) == "meta" else device)
    with user_code(f"{spec} failed"):
        takes = "device" in inspect.signature(make).parameters
        made = make(device=place) if takes else make()
    asked = task or getattr(make, "task", None)
    found = as_predictor(made, asked, getattr(make, "classes", None), spec, place)
    if task is not None and found.task != task:
        raise GramLoopError(f"{spec} is a model for {found.task}, not for {task}")
    return found


def find_make(spec: str) -> Callable[..., object]:
    """The function behind ``FILE.py:NAME`` or ``package.module:NAME``."""
    place, _, attribute = spec.rpartition(":")
    if not place or not attribute:
        raise GramLoopError(f"{spec!r} names no function; it is my_models.py:make or package.module:make")
    found = getattr(import_code(place), attribute, None)
    if not callable(found):
        raise GramLoopError(f"{place} has no function {attribute}")
    return cast(Callable[..., object], found)


def import_code(place: str) -> ModuleType:
    """The module of ``FILE.py`` or ``package.module``."""
    try:
        return _of_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except GramLoopError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and place.startswith(error.name):
            raise GramLoopError(f"there is no module {error.name}, which {place} names") from error
        raise GramLoopError(f"{place} needs the package {error.name!r}, which is not installed") from error
    except Exception as error:  # of user-provided code
        raise UserCodeError.of(f"{place} cannot be imported: it failed", error) from error


def _of_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise GramLoopError(f"{path} does not exist; a model of your own is FILE.py:make")
    identity = hashlib.sha256(str(path.resolve()).encode() + path.read_bytes()).hexdigest()[:16]
    name = f"_gramloop_{path.stem}_{identity}"
    if name in sys.modules:  # executed once, so that the classes it defines stay the same ones
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if str(path.parent.resolve()) not in sys.path:
        sys.path.append(str(path.parent.resolve()))  # modules in its folder can be imported, as for a script
    sys.modules[name] = module  # classes of it can be pickled, and dataclasses look themselves up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
