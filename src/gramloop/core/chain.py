"""Whether blocks are a plain chain in a forward: each is given what the one before returned, and the same arguments.

Replays and probes run blocks one after the other, without the hooks that others put on them. Where such a hook changes
a state, where the host does so between two blocks, or where blocks are given different arguments, they would compute
something else than the host. That is seen in the host's own pass, and refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from gramloop.core.call import States, hidden_states, hidden_states_name
from gramloop.core.hosts import Host
from gramloop.errors import GramLoopError

_BEFORE = -2  # no block


class Chain:
    """What one thread's host handed from block to block, since the last one that was looked at."""

    def __init__(self) -> None:
        self._index, self._states = _BEFORE, list[Tensor]()
        self._rest: dict[str, Any] | None = None

    def hand_on(self, index: int, states: States) -> None:
        """Block ``index`` returns these, in the host's own layout."""
        if not torch.compiler.is_compiling():
            self._index, self._states = index, states

    def resume(self, host: Host, until: int, given: States, states: States) -> None:
        """The block after ``until`` is given other states in place of these."""
        if not torch.compiler.is_compiling():
            self.check_states(host, until + 1, given)
        self.hand_on(until, states)

    def check(self, host: Host, index: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Refuse what block ``index`` was given, unless it is what the block before returned, in the same way."""
        if self._index == index - 1:
            self.check_states(host, index, hidden_states(args, kwargs))
            rest = _rest(args, kwargs)
            if self._rest is not None:
                _check_arguments(host, index, self._rest, rest)
            self._rest = rest
        else:
            self._rest = None

    def check_states(self, host: Host, index: int, given: States) -> None:
        """Refuse states after block ``index - 1`` that it did not return."""
        if self._index != index - 1 or (
            len(given) == len(self._states) and all(map(_same, given, self._states))
        ):
            return
        hooks = [*_foreign(host, index - 1, "_forward_hooks"), *_foreign(host, index, "_forward_pre_hooks")]
        who = f"the hook {hooks[0]} changes" if hooks else "the model changes"
        raise GramLoopError(
            f"{who} what block {index - 1} of {host.name} returns before block {index} is given it; replays and probes "
            "would not: remove it, do it inside a block, or choose window, gate_at and until before or after it"
            if index < host.depth
            else f"{who} what the last block of {host.name} returns; probes would not see that: do it after the blocks"
        )

    def end(self) -> None:
        """Let go of the states."""
        self._index, self._states, self._rest = _BEFORE, [], None


def is_ours(hook: Callable[..., Any]) -> bool:
    """Whether a hook is one of this package."""
    module = getattr(getattr(hook, "func", hook), "__module__", None)
    return isinstance(module, str) and module.startswith("gramloop.")


def _foreign(host: Host, index: int, kind: str) -> Iterator[str]:
    """The names of the hooks that others put on a block."""
    if 0 <= index < host.depth:
        for hook in getattr(host.blocks[index], kind).values():
            if not is_ours(hook):
                target = getattr(hook, "func", hook)
                yield getattr(target, "__qualname__", type(target).__qualname__)


def _rest(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a block beside its hidden states."""
    hidden = None if args else hidden_states_name(kwargs)
    positional = {f"argument {place}": value for place, value in enumerate(args[1:], start=2)}
    return positional | {name: value for name, value in kwargs.items() if name != hidden}


def _check_arguments(host: Host, index: int, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for name in {**before, **now}:
        if name not in before or name not in now or not _equal(before[name], now[name]):
            raise GramLoopError(
                f"block {index} of {host.name} is given another {name} than block {index - 1}; a replay gives all blocks "
                "the same, so window, gate_at and until must stay among blocks that are given the same"
            )


def _equal(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return _same(one, other)
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)
    return type(one) is type(other) and isinstance(one, bool | int | float | str) and one == other


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two states are one, or hold the same numbers; a host may cast or move them between blocks."""
    if one is other:
        return True
    if one.shape != other.shape:
        return False
    if one.is_meta or other.is_meta:
        return True
    with torch.no_grad():
        alike = one.to(other)
        return torch.equal(alike, other) or bool(((alike == other) | (alike.isnan() & other.isnan())).all())
