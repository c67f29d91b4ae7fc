"""Any torch module with its pre- and postprocessing as a predictor, replayed where one ViT is inside.

Nothing is known of how its head reads the ViT: a pair runs the model twice, and its blocks remember the first time
(`reusing_blocks`), so that it costs no more than a pair of the predictors that know their taps.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from dataclasses import replace as with_fields
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from gramloop.data.records import TaskName as Task
from gramloop.errors import GramLoopError
from gramloop.models.backbone import refuse_many_tokens
from gramloop.replay.adaptive import image_noise, length_spread, noise_response, patch_length
from gramloop.replay.attach import Loop, attached
from gramloop.replay.blocks import hidden_states, states_of
from gramloop.replay.config import SIGNALS, ReplayConfig
from gramloop.replay.cost import Cost, extra_blocks, pair_blocks
from gramloop.replay.vit import ViT, find_vit
from gramloop.tasks.class_names import Classes
from gramloop.tasks.images import RGB
from gramloop.tasks.prediction import P
from gramloop.tasks.predictor import (
    ImagePredictor,
    Replay,
    Tracing,
    check_replay,
    replay_maps,
    wants_trace,
)
from gramloop.util.forward_patch import ModuleForward, patched

Size = tuple[int, int]  # height and width of the original image
Steps = tuple[Callable[[RGB], Any], Callable[[object, Size], P]]  # preprocess and postprocess


class ModulePredictor(ImagePredictor[P]):
    """A torch module, called with what ``preprocess`` makes of an image; ``postprocess`` reads what it returns.

    Args:
        model: the module, which is put into evaluation mode.
        preprocess: pixels (H, W, 3) uint8 -> what the module is called with: keywords as a mapping, several
            arguments as a tuple, or one.
        postprocess: what the module returned, and the image's height and width -> a prediction of that size.
        task, classes: what is predicted, and the numbers in it.
        name: of the model, in messages.
    """

    taps: tuple[int, ...] = ()  # not known
    things: frozenset[int] = frozenset()  # of a panoptic model: the classes that are counted, unlike stuff

    # preprocess and postprocess for an input so many times as large, and with scores; None for the usual ones
    variants: Callable[[float, bool], Steps[P] | None] | None = None
    _variant: tuple[float, bool] = (1.0, False)
    has_size = False  # whether the size of its input can be set

    def __init__(
        self,
        model: nn.Module,
        preprocess: Callable[[RGB], object],
        postprocess: Callable[[object, Size], P],
        task: Task,
        classes: Classes,
        name: str | None = None,
    ) -> None:
        self.model = model.eval()
        self.task: Task = task
        self.classes, self.name = classes, name or type(model).__name__
        self._preprocess, self._postprocess = preprocess, postprocess
        self._shares = True  # until a pair shows that its passes have nothing in common
        try:
            self.host: ViT | None = find_vit(model)
        except GramLoopError:
            self.host = None

    @property
    def steps(self) -> dict[str, object]:
        """What is done before and after the module."""
        return {"preprocess": self._preprocess, "postprocess": self._postprocess}

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """The transformer blocks, first to last; none where the model is no ViT."""
        return () if self.host is None else self.host.blocks

    def scaled(self, factor: float) -> ModulePredictor[P]:
        """The same model with an input ``factor`` times as large; itself if that is not set, or rounds to the same."""
        scale, scores = self._variant
        return self._changed(scale * factor, scores)

    def with_scores(self) -> ModulePredictor[P]:
        """The same model with scores of all classes in its predictions; itself if it gives none."""
        return self._changed(self._variant[0], True)

    def _changed(self, scale: float, scores: bool) -> ModulePredictor[P]:
        steps = None if self.variants is None else self.variants(scale, scores)
        if steps is None:
            return self
        changed = copy.copy(self)
        changed._variant = (scale, scores)
        changed._preprocess, changed._postprocess = steps
        return changed

    def cost(self, replay: Replay = None, paired: bool = False) -> Cost:
        """Blocks executed per view of an image, at most."""
        depth = len(self.blocks)
        if replay is None or not depth:
            return Cost(depth or 1, depth or 1)
        alone = depth + extra_blocks(replay, depth)
        if not paired:
            return Cost(alone, depth)
        return Cost(pair_blocks(replay, depth) if self._shares else depth + alone, depth)

    def _versions(self, pixels: RGB, replay: Replay, paired: bool, trace: Tracing) -> Sequence[P]:
        given = _moved(self._preprocess(pixels.copy()), self.device)  # theirs to write into
        size = (pixels.shape[0], pixels.shape[1])
        self._refuse_many_tokens(given, size)
        if replay is None:
            return [self._plain(given, size)]
        check_replay(self, replay)
        if paired:
            return self._pair(given, size, replay, trace)
        return [self._replayed(given, size, replay, trace)]

    def _refuse_many_tokens(self, given: object, size: Size) -> None:
        """Refuse pixels that the ViT would cut into more patches than can be worked on, where its patches are known."""
        embedding = None if self.host is None else self.host.patch_embedding
        if embedding is None:
            return
        for each in _tensors(given):
            if each.ndim == 4 and each.shape[1] == embedding.in_channels:
                rows, columns = (
                    side // step for side, step in zip(each.shape[2:], embedding.stride, strict=True)
                )
                what = f"an image of {size[1]} x {size[0]}, as {self.name} is given it,"
                refuse_many_tokens(rows, columns, what)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next((each.device for each in self.model.parameters()), torch.device("cpu"))

    def _plain(self, given: object, size: Size) -> P:
        return with_fields(self._run(given, size), blocks=len(self.blocks) or 1)

    def _replayed(self, given: object, size: Size, replay: ReplayConfig, trace: Tracing) -> P:
        with attached(self.model, replay, trace=wants_trace(replay, trace), this_thread=True) as loop:
            found = self._run(given, size)
            return with_fields(_traced(found, loop), blocks=loop.blocks_executed)

    def _pair(self, given: object, size: Size, replay: ReplayConfig, trace: Tracing) -> list[P]:
        with reusing_blocks(self.blocks) as memory:
            baseline = self._plain(given, size)
            memory.repeat()
            replayed = self._replayed(given, size, replay, trace)
        self._shares = memory.answered > 0
        return [baseline, with_fields(replayed, blocks=round(memory.executed / max(1, memory.views)))]

    def _run(self, given: object, size: Size) -> P:
        if isinstance(given, Mapping):
            outputs = self.model(**given)
        else:
            outputs = self.model(*given) if isinstance(given, tuple) else self.model(given)
        return self._postprocess(outputs, size)


def _moved(given: object, device: torch.device) -> object:
    """The same with its tensors on a device."""
    if isinstance(given, Tensor):
        return given.to(device)
    if isinstance(given, Mapping):
        return {name: _moved(value, device) for name, value in given.items()}
    if isinstance(given, tuple | list):
        return type(given)(_moved(value, device) for value in given)
    return given


def _tensors(given: object) -> Iterator[Tensor]:
    """The tensors in what a model is called with."""
    if isinstance(given, Tensor):
        yield given
    elif isinstance(given, Mapping | tuple | list):
        for value in given.values() if isinstance(given, Mapping) else given:
            yield from _tensors(value)


def _traced(found: P, loop: Loop) -> P:
    """The prediction with the maps of the latest view, where that is one image whose grid of patches is known."""
    trace = loop.trace
    if trace is None or not trace.drift or trace.grid is None or len(trace.drift[0]) != 1:
        return found
    return with_fields(found, trace=replay_maps(loop)[0])


class BlockReuse:
    """What one thread's blocks were given and returned; after ``repeat`` they answer from it where that is the same.

    executed: blocks that ran.
    views: how often the first block ran before ``repeat``: a model may see parts of an image one by one.
    answered: blocks that did not have to run again.
    """

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        self._runs: list[list[tuple[list[Tensor], Any, list[int]]]] = [[] for _ in blocks]
        self._thread = threading.get_ident()
        self.executed = self.views = self.answered = 0

    def repeat(self) -> None:
        """From now on blocks answer where they can."""
        _thread.repeats = True

    def around(self, index: int, run: ModuleForward, *args: Any, **kwargs: Any) -> Any:
        """Run a block, or answer for it."""
        if threading.get_ident() != self._thread:
            return run(*args, **kwargs)
        given = states_of(hidden_states(args, kwargs))
        for before, output, versions in self._runs[index] if _thread.repeats else ():
            if versions == _state_versions(before, output) and _all_same(before, given):
                self.answered += 1
                return output
        output = run(*args, **kwargs)
        self.executed += 1
        if not _thread.repeats:
            self.views += index == 0
            # of inference tensors later changes in place cannot be noticed
            if not any(state.is_inference() for state in (*given, *states_of(output))):
                self._runs[index].append((given, output, _state_versions(given, output)))
        return output


@contextmanager
def reusing_blocks(blocks: Sequence[nn.Module]) -> Iterator[BlockReuse]:
    """Let a second forward of this thread reuse what its blocks have in common with the first, whatever a head reads.

    A block that is given what it was given before returns what it returned then, so a replay attached for the second
    forward costs what it adds. Inputs are compared, not assumed: a model with random layers, or one that changes its
    states in place, is run in full.
    """
    reuse = BlockReuse(blocks)
    try:
        with patched(blocks, reuse.around):
            yield reuse
    finally:
        _thread.repeats = False


class _Thread(threading.local):
    repeats = False


_thread = _Thread()


def _state_versions(given: list[Tensor], output: Any) -> list[int]:
    return [state._version for state in (*given, *states_of(output))]


def _all_same(before: list[Tensor], given: list[Tensor]) -> bool:
    return len(before) == len(given) and all(map(_same, before, given))


def _same(old: Tensor, new: Tensor) -> bool:
    if old is new:
        return True
    if old.shape != new.shape or old.dtype != new.dtype or old.device != new.device:
        return False
    # the last token first: states that differ mostly differ there
    return torch.equal(old[:, -1], new[:, -1]) and torch.equal(old, new)


@dataclass
class Observed:
    """Signals of the baseline pass at every block: lists by block, one entry per image seen."""

    length: list[list[float]] = field(default_factory=list)
    spread: list[list[float]] = field(default_factory=list)
    noise: list[list[float]] = field(default_factory=list)

    def means(self) -> dict[str, list[float]]:
        """The mean over images at every block, by signal."""
        return {
            name: [sum(each) / len(each) if each else float("nan") for each in getattr(self, name)]
            for name in SIGNALS
            if name != "noise" or any(self.noise)  # not every host shows what its patches are cut from
        }


@contextmanager
def observing(vit: ViT) -> Iterator[Observed]:
    """Measure the baseline pass of every forward at every block, whatever replay is attached meanwhile.

    A replay calls ``block.forward`` too. The baseline pass is the first run since the host began a forward in the
    same thread; the host alone calls blocks as modules, which is what the hook before its first block sees.
    """
    seen = Observed(*[[list[float]() for _ in vit.blocks] for _ in SIGNALS])
    waiting: set[tuple[int, int]] = set()  # thread and block

    def begin(*_: object) -> None:
        if not _thread.repeats:  # of a forward that runs again the baseline pass was seen
            waiting.update((get_ident(), index) for index in range(vit.depth))

    def observe(index: int, run: ModuleForward, *args: Any, **kwargs: Any) -> Any:
        output = run(*args, **kwargs)
        if (get_ident(), index) in waiting:
            waiting.discard((get_ident(), index))
            patches = vit.layout.patches(vit.layout.tokens(states_of(output)[0].detach()))
            seen.length[index] += patch_length(patches).tolist()
            seen.spread[index] += length_spread(patches).tolist()
        return output

    def embed(_: nn.Module, args: tuple[Tensor, ...], output: object) -> None:
        if not _thread.repeats:
            levels = image_noise(noise_response(args[0])).tolist()
            for each in seen.noise:  # the same at every block
                each += levels

    with ExitStack() as stack:
        if vit.embedding is not None:
            stack.enter_context(vit.embedding.register_forward_hook(embed))
        stack.enter_context(vit.blocks[0].register_forward_pre_hook(begin))
        stack.enter_context(patched(vit.blocks, observe))
        yield seen
