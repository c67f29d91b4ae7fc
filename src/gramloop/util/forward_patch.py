"""Patch the forward of modules: watch them run, or answer for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn

ModuleForward = Callable[..., Any]
patching = threading.RLock()  # patches come and go in any order


class ForwardPatch:
    """Takes the place of a block's forward, for everyone who watches it or answers for it."""

    def __init__(self, module: nn.Module) -> None:
        self.own = vars(module).get("forward")  # accelerate, for one, leaves its own there
        self.forward = module.forward
        self.arounds: tuple[ModuleForward, ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        run: ModuleForward = self.forward
        for around in self.arounds:
            run = partial(around, run)
        return run(*args, **kwargs)


@contextmanager
def patched(blocks: Sequence[nn.Module], around: ModuleForward) -> Iterator[None]:
    """Call ``around`` with a block's index, what runs it, and its arguments, in place of the block, in any thread."""
    added = [(vars(block), block, partial(around, index)) for index, block in enumerate(blocks)]
    with patching:
        for own, block, each in added:
            if not isinstance(own.get("forward"), ForwardPatch):
                own["forward"] = ForwardPatch(block)
            own["forward"].arounds += (each,)
    try:
        yield
    finally:
        with patching:
            for own, _, each in added:
                patch = own["forward"]
                patch.arounds = tuple(one for one in patch.arounds if one is not each)
                if not patch.arounds:
                    del own["forward"]
                    if patch.own is not None:
                        own["forward"] = patch.own


class BlockCounter:
    """How many times blocks have run since counting began."""

    blocks = 0


@contextmanager
def counting(blocks: Sequence[nn.Module]) -> Iterator[BlockCounter]:
    """Count every execution of these blocks, by their model and by replays alike, in any thread."""
    counter, lock = BlockCounter(), threading.Lock()

    def count(index: int, run: ModuleForward, *args: Any, **kwargs: Any) -> Any:
        with lock:
            counter.blocks += 1
        return run(*args, **kwargs)

    with patched(blocks, count):
        yield counter
