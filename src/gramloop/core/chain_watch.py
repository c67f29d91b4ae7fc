"""Hooks that look whether blocks are a plain chain, and that stay first or last among those of others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from gramloop.core.call import hidden_states, states_of
from gramloop.core.chain import is_ours
from gramloop.core.forward import PerThread
from gramloop.core.hosts import Host
from gramloop.core.replay import AtLastBlock, AtWindowEnd


class Places:
    """Our hooks among those of others: first, so that no change comes before them, or last; whoever comes later."""

    def __init__(self) -> None:
        self._held: list[tuple[nn.Module, str, RemovableHandle, bool]] = []

    def first_after(self, block: nn.Module, hook: Callable[..., Any]) -> RemovableHandle:
        """Call a hook before all others after a block."""
        handle = block.register_forward_hook(hook, with_kwargs=True, prepend=True)
        self._held.append((block, "_forward_hooks", handle, False))
        return handle

    def first_before(self, block: nn.Module, hook: Callable[..., Any]) -> RemovableHandle:
        """Call a hook before all others before a block."""
        handle = block.register_forward_pre_hook(hook, with_kwargs=True, prepend=True)
        self._held.append((block, "_forward_pre_hooks", handle, False))
        return handle

    def last_after(self, block: nn.Module, hook: Callable[..., Any]) -> RemovableHandle:
        """Call a hook after all others after a block."""
        handle = block.register_forward_hook(hook, with_kwargs=True)
        self._held.append((block, "_forward_hooks", handle, True))
        return handle

    def take(self) -> None:
        """Move hooks that somebody else's got in front of, or behind."""
        for module, name, handle, last in self._held:
            hooks = getattr(module, name)
            now = tuple(hooks.items())  # at once: other threads may attach meanwhile
            for key, hook in reversed(now) if last else now:
                if key == handle.id:
                    break
                if not is_ours(hook):
                    if handle.id in hooks:
                        hooks.move_to_end(handle.id, last=last)
                    break


def watch_chain(
    host: Host, placed: AtWindowEnd | AtLastBlock, here: PerThread, places: Places
) -> Iterator[RemovableHandle]:
    """Watch the blocks that are also run beside the host, and the one before them; gives the handles."""
    route = placed.route
    replays = placed.config.replays > 0
    first = route.start if replays else route.end
    if not replays and placed.reach == route.end:
        return
    watch = _Watch(host, here, first)
    for index in range(max(first - 1, 0), placed.reach + 1):
        yield places.first_after(host.blocks[index], partial(watch.after, index))
    if first == 0:
        yield places.first_before(host.blocks[0], watch.before_first)
    if placed.reach == host.depth - 1:
        yield places.last_after(host.blocks[-1], watch.after_all)


class _Watch:
    """Looks at the host's own pass from block ``first`` on."""

    def __init__(self, host: Host, here: PerThread, first: int) -> None:
        self._host, self._here, self._first = host, here, first

    def after(self, index: int, block: nn.Module, args: Any, *rest: Any) -> None:
        """What a block was given and returned, before anybody else's hooks."""
        if self._listens() and len(rest) == 2:
            chain = self._here.forwards.chain
            if index >= self._first:
                chain.check(self._host, index, args, rest[0])
            else:
                chain.end()  # of another forward
            chain.hand_on(index, states_of(rest[1]))

    def before_first(self, block: nn.Module, args: Any, kwargs: Any = None) -> None:
        """What the first block is given, before anybody else's hooks."""
        if self._listens() and kwargs is not None:
            self._here.forwards.chain.end()
            self._here.forwards.chain.hand_on(-1, hidden_states(args, kwargs))

    def after_all(self, block: nn.Module, args: Any, *rest: Any) -> None:
        """What the last block returned, after everybody else's hooks."""
        if self._listens() and len(rest) == 2:
            self._here.forwards.chain.check_states(self._host, self._host.depth, states_of(rest[1]))

    def _listens(self) -> bool:
        return not torch.compiler.is_compiling() and self._here.forwards.listens
