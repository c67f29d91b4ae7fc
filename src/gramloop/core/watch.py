"""Watch blocks run, whoever runs them: the host's own forward, replays and probes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn


class _Watched:
    """Stands in for a block's forward, and shows what that returns to everyone who watches."""

    def __init__(self, block: nn.Module) -> None:
        self.own = vars(block).get("forward")  # accelerate, for one, leaves its own there
        self.forward = block.forward
        self.watchers: tuple[Callable[[Any], None], ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        output = self.forward(*args, **kwargs)
        for watcher in self.watchers:
            watcher(output)
        return output


@contextmanager
def watching(blocks: Sequence[nn.Module], seen: Callable[[int, Any], None]) -> Iterator[None]:
    """Call ``seen`` with a block's index and output after every run of one of these blocks, in any thread."""
    added = [(vars(block), block, partial(seen, index)) for index, block in enumerate(blocks)]
    with _changing:
        for own, block, watcher in added:
            if not isinstance(own.get("forward"), _Watched):
                own["forward"] = _Watched(block)
            own["forward"].watchers += (watcher,)
    try:
        yield
    finally:
        with _changing:
            for own, _, watcher in added:
                watched = own["forward"]
                watched.watchers = tuple(each for each in watched.watchers if each is not watcher)
                if not watched.watchers and watched.own is None:
                    del own["forward"]
                elif not watched.watchers:
                    own["forward"] = watched.own


_changing = threading.Lock()  # watchers may come and go in any order
