"""Calling a host's blocks again, the way the host just called one of them.

States come as lists, because some hosts push several resolutions through their blocks at once; each entry
is gated on its own, as tokens (B, T, C) whatever the host's layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from gramloop.core.hosts import Host
from gramloop.errors import GramLoopError

States = list[Tensor]
Masks = Sequence[Tensor | None]  # of valid patches, (B, N) bool, per entry of the state
_HIDDEN_STATES = ("hidden_states", "x", "input")


def states_of(output: Any) -> States:
    """The hidden states in a block's output: a tensor, a tuple that begins with one, or a list of tensors."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, tuple) and output and isinstance(output[0], Tensor):
        return [output[0]]
    if isinstance(output, list) and output and all(isinstance(entry, Tensor) for entry in output):
        return list(output)
    raise GramLoopError(
        f"a block returned {type(output).__name__}; replay understands a tensor, a tuple that begins with "
        "one, and a list of tensors"
    )


def with_states(output: Any, states: States) -> Any:
    """The same kind of output with other hidden states."""
    if isinstance(output, Tensor):
        return states[0]
    if isinstance(output, tuple):
        return (states[0], *output[1:])
    return states


def hidden_states(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> States:
    """The hidden states that a block is called with; they stand first, or have a name."""
    name = None if args else hidden_states_name(kwargs)
    if not args and name is None:
        return []
    given = args[0] if name is None else kwargs[name]
    return list(given) if isinstance(given, list) else [given]


def hidden_states_name(kwargs: Mapping[str, Any]) -> str | None:
    """The name under which a block is given its hidden states, where they have one."""
    return next((name for name in _HIDDEN_STATES if name in kwargs), None)


class BlockCall:
    """How the host called a block: its hidden states aside, every block is given the same arguments."""

    def __init__(self, host: Host, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Read it off the arguments that a forward hook receives; hidden states stand first, or have a name."""
        keyword = None if args else hidden_states_name(kwargs)
        if not args and keyword is None:
            raise GramLoopError(f"the blocks of {host.name} take no hidden states first: {sorted(kwargs)}")
        self.host, self.executed = host, 0
        self._keyword, self._args = keyword, args[1:]
        self._kwargs = {name: value for name, value in kwargs.items() if name != keyword}
        hidden = kwargs[keyword] if keyword else args[0]
        self._listed = isinstance(hidden, list)
        self.grids = [host.layout.grid(state) for state in states_of(hidden)]

    def given(self, states: States) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same call with other hidden states, as positional and keyword arguments."""
        hidden = self.as_output(states)
        if self._keyword:
            return self._args, {**self._kwargs, self._keyword: hidden}
        return (hidden, *self._args), self._kwargs

    def as_output(self, states: States) -> Any:
        """States as the host hands them around."""
        shaped = self.shaped(states)
        return shaped if self._listed else shaped[0]

    def shaped(self, states: States) -> States:
        """Tokens in the host's own layout."""
        return [self.host.layout.state(*each) for each in zip(states, self.grids, strict=True)]

    def states_of(self, output: Any) -> States:
        """The hidden states in a block's output, as tokens."""
        return [self.host.layout.tokens(state) for state in states_of(output)]

    def patches(self, tokens: Tensor) -> Tensor:
        """Final-normed patches, (B, T, C) -> (B, N, C)."""
        return self.host.norm(self.host.layout.patches(tokens))

    def run(self, first: int, last: int, states: States) -> States:
        """Blocks first to last (inclusive; none when last < first) applied to a state."""
        # block.forward, not block(): the host's capture hooks must not count replays and probes
        for block in self.host.blocks[first : last + 1]:
            args, kwargs = self.given(states)
            known = torch.compiler.is_compiling() or block in _pure
            run = block.forward if known else partial(self._first_run, block)
            states = self.states_of(run(*args, **kwargs))
            self.executed += 1
        return states

    def _first_run(self, block: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Run a block for the first time beside the host, and see whether it leaves alone what it is given."""
        given = hidden_states(args, kwargs)
        before = [state.clone() if state.is_inference() else state._version for state in given]
        output = block.forward(*args, **kwargs)
        for state, then in zip(given, before, strict=True):
            if not (torch.equal(state, then) if isinstance(then, Tensor) else state._version == then):
                raise GramLoopError(
                    f"{type(block).__name__}, a block of {self.host.name}, works in place: it writes into the state that it "
                    "is given, which a replay needs again; let it return a new one, as in x = x + …"
                )
        _pure.add(block)
        return output


_pure: WeakSet[nn.Module] = WeakSet()  # blocks that were seen to leave alone what they are given
