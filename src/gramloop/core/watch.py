"""Stand in for blocks: watch them run, whoever runs them, or answer for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn

Run = Callable[..., Any]  # a block's forward
Around = Callable[..., Any]  # given a `Run` and its arguments; runs it, or answers for it


class _StandIn:
    """Stands in for a block's forward, for everyone who watches it or stands around it."""

    def __init__(self, block: nn.Module) -> None:
        self.own = vars(block).get("forward")  # accelerate, for one, leaves its own there
        self.forward = block.forward
        self.watchers: tuple[Callable[[Any], None], ...] = ()
        self.arounds: tuple[Around, ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        run: Run = self._run
        for around in self.arounds:
            run = partial(around, run)
        return run(*args, **kwargs)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        output = self.forward(*args, **kwargs)
        for watcher in self.watchers:
            watcher(output)
        return output


@contextmanager
def watching(blocks: Sequence[nn.Module], seen: Callable[[int, Any], None]) -> Iterator[None]:
    """Call ``seen`` with a block's index and output after every run of one of these blocks, in any thread."""
    with _added(blocks, "watchers", seen):
        yield


@contextmanager
def standing_around(blocks: Sequence[nn.Module], around: Around) -> Iterator[None]:
    """Call ``around`` with a block's index, a function that runs it, and its arguments, in place of the block."""
    with _added(blocks, "arounds", around):
        yield


@contextmanager
def _added(blocks: Sequence[nn.Module], kind: str, function: Callable[..., Any]) -> Iterator[None]:
    added = [(vars(block), block, partial(function, index)) for index, block in enumerate(blocks)]
    with _changing:
        for own, block, each in added:
            if not isinstance(own.get("forward"), _StandIn):
                own["forward"] = _StandIn(block)
            stand_in = own["forward"]
            setattr(stand_in, kind, (*getattr(stand_in, kind), each))
    try:
        yield
    finally:
        with _changing:
            for own, _, each in added:
                stand_in = own["forward"]
                setattr(stand_in, kind, tuple(one for one in getattr(stand_in, kind) if one is not each))
                if stand_in.watchers or stand_in.arounds:
                    continue
                if stand_in.own is None:
                    del own["forward"]
                else:
                    own["forward"] = stand_in.own


_changing = threading.Lock()  # watchers may come and go in any order
