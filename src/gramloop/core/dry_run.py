"""Running a model without arithmetic and without weights, to know what it would need.

The modules' own code runs on PyTorch's fake tensors, which have shapes and precisions and no memory. They say that they
are on the CPU, because a build without CUDA refuses to index tensors that say they are not, and because autocast and
fused attention work there as on a GPU: what lives is the same, operation by operation. Attention is counted as fused
(flash or memory-efficient): no N x N scores are made, unless the model's own code makes them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import _lru_cache_wrapper
from typing import Any

import torch
from torch import Tensor, nn

from gramloop.core.live_tensors import LiveTensors, bytes_of
from gramloop.errors import GramLoopError
from gramloop.util.forward_patch import ModuleForward as Run
from gramloop.util.forward_patch import patched

_ANSWER = "gramloop_answer"  # of a tensor that somebody may want to be true or false
_MODELS = (
    "transformers.models.",
    "gramloop.",
)  # where functions remember tensors; elsewhere they remember facts


@dataclass(frozen=True)
class Needs:
    """What a run needs, in bytes.

    weights: parameters and buffers.
    activations: everything else that lives at once, at the most, inputs included.
    moved: read and written by all operations together, if nothing stays in a cache between two of them.
    weights_read: the part of ``moved`` that is reading weights.
    """

    weights: int
    activations: int
    moved: int
    weights_read: int

    @property
    def peak(self) -> int:
        """Bytes of tensors at once."""
        return self.weights + self.activations


def needs_of(
    modules: Sequence[nn.Module], run: Callable[[], object], blocks: Sequence[nn.Module] = ()
) -> Needs:
    """What ``run`` needs, which calls these modules and makes its inputs itself, on the CPU.

    Of ``blocks`` that are alike one is run for each kind of input; the others need the same. Where the code asks for a
    value, every ``all`` is true and every ``any`` is false: an image without padding. Not to be used while other
    threads run the same modules.
    """
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
        FakeTensorMode,
    )

    with FakeTensorMode(allow_non_fake_inputs=True), _without_values(modules) as weights, torch.no_grad():
        with _Valueless(weights) as live, patched(blocks, _Alike(blocks, live).around):
            try:
                run()
            except (DataDependentOutputException, DynamicOutputShapeException) as error:
                names = ", ".join(dict.fromkeys(type(module).__name__ for module in modules))
                raise GramLoopError(
                    f"{names} decides by values ({error}), so what it needs cannot be told without running it"
                ) from error
        return Needs(bytes_of(weights), live.peak, live.moved, live.given_read)


class _Valueless(LiveTensors):  # type: ignore[no-untyped-call]
    """Counts, and answers for tensors that have no values."""

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run one operation, or answer where it wants a value."""
        aten = torch.ops.aten
        if func is aten._local_scalar_dense.default and hasattr(args[0], _ANSWER):
            return getattr(args[0], _ANSWER)
        result = func(*args, **kwargs)
        if func in (aten.all.default, aten.any.default):
            setattr(result, _ANSWER, func is aten.all.default)
        return result


@dataclass(frozen=True)
class _BlockRun:
    """What one run of a block needed, beside what was there already."""

    peak: int
    moved: int
    weights_read: int
    output: tuple[torch.Size, torch.dtype]


class _Alike:
    """Answers for blocks that are built and called as one before."""

    def __init__(self, blocks: Sequence[nn.Module], live: LiveTensors) -> None:
        self._kinds, self._live = [_kind(block) for block in blocks], live
        self._known: dict[Any, _BlockRun] = {}

    def around(self, index: int, run: Run, *args: Any, **kwargs: Any) -> Any:
        """Run a block, or do as if."""
        # autocast keeps copies of weights that are being trained, so that a second run is not like the first
        kind, live = self._kinds[index], self._live
        key = (
            kind,
            _described((args, kwargs)),
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
        )
        if kind is not None and key in self._known:
            known = self._known[key]
            live.peak = max(live.peak, live.now + known.peak)
            live.moved += known.moved
            live.given_read += known.weights_read
            with live.unmoved():
                return torch.empty(known.output[0], dtype=known.output[1])
        before, moved, read, peak = live.now, live.moved, live.given_read, live.peak
        live.peak = live.now
        output = run(*args, **kwargs)
        if isinstance(output, Tensor) and live.now == before + output.untyped_storage().nbytes():
            self._known[key] = _BlockRun(
                live.peak - before, live.moved - moved, live.given_read - read, (output.shape, output.dtype)
            )
        live.peak = max(live.peak, peak)
        return output


def _kind(block: nn.Module) -> Any:
    """What a block is built of; None if it is not frozen."""
    if any(each.requires_grad for each in block.parameters()):
        return None
    return type(block), tuple((name, each.shape, each.dtype) for name, each in block.state_dict().items())


def _described(value: Any) -> Any:
    """Arguments without values, to be compared."""
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype
    if isinstance(value, tuple | list):
        return tuple(_described(each) for each in value)
    if isinstance(value, dict):
        return tuple((name, _described(each)) for name, each in value.items())
    return value


@contextmanager
def _without_values(modules: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """Tensors of the modules without values for a while; their fake tensors."""
    places = [place for module in modules for place in _places(module)]
    held = [
        (place, name, value) for place in places for name, value in place.items() if isinstance(value, Tensor)
    ]
    made: dict[int, Tensor] = {}
    _forget_cached()
    try:
        for place, name, value in held:
            if id(value) not in made:  # one tensor may have two names
                empty = torch.empty(value.shape, dtype=value.dtype)
                made[id(value)] = (
                    nn.Parameter(empty, value.requires_grad) if isinstance(value, nn.Parameter) else empty
                )
            place[name] = made[id(value)]
        yield list(made.values())
    finally:
        for place, name, value in held:
            place[name] = value
        _forget_cached()


def _places(module: nn.Module) -> Iterator[dict[str, Any]]:
    for each in module.modules():
        yield from (each._parameters, each._buffers, each.__dict__)


def _forget_cached() -> None:
    """Functions that remember tensors by their arguments would take real ones for fake ones, and the reverse."""
    for each in gc.get_objects():
        if type(each) is _lru_cache_wrapper and str(each.__module__).startswith(_MODELS):
            each.cache_clear()
