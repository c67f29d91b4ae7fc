"""Stand in for blocks: watch them run, whoever runs them, answer for them, or let a compiler see that they have hooks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

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


def show_to_compiler(modules: Sequence[nn.Module]) -> list[nn.Module]:
    """Let models that were compiled before be compiled again, now that these modules have hooks.

    A compiled graph checks whether a module has a ``forward`` of its own, but by default not whether it has hooks.
    """
    with _changing:
        shown = [module for module in modules if module in _shown or "forward" not in vars(module)]
        for module in shown:
            _shown[module] = _shown.get(module, 0) + 1
            vars(module).setdefault("forward", module.forward)
        return shown


def hide_from_compiler(shown: Sequence[nn.Module]) -> None:
    """Undo `show_to_compiler`, once nobody else has shown a module."""
    with _changing:
        for module in shown:
            left = _shown.pop(module, 1) - 1
            own = vars(module).get("forward")
            if left:
                _shown[module] = left
            elif isinstance(own, _StandIn):
                own.own = None
            elif (
                getattr(own, "__func__", None) is type(module).forward
            ):  # and not what somebody put there since
                del vars(module)["forward"]


_shown: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()  # how often each was shown
_changing = threading.RLock()  # watchers may come and go in any order
