"""Calling a ViT's blocks again, as the host called them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from gramloop.errors import GramLoopError
from gramloop.replay.vit import Grid, ViT

_pure: WeakSet[nn.Module] = WeakSet()  # blocks that were seen to leave their input alone


def states_of(output: Any) -> list[Tensor]:
    """The hidden states in a block's output: a tensor, a tuple that begins with one, or a list of resolutions."""
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


def with_states(output: Any, states: list[Tensor]) -> Any:
    """The same kind of output with other hidden states."""
    if isinstance(output, tuple):
        return (states[0], *output[1:])
    return states if isinstance(output, list) else states[0]


def hidden_states(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The hidden states that a block is called with; they come first, or have a name."""
    return args[0] if args else kwargs[_hidden_name(kwargs)]


def with_hidden(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], hidden: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same arguments with other hidden states."""
    if args:
        return (hidden, *args[1:]), dict(kwargs)
    return (), {**kwargs, _hidden_name(kwargs): hidden}


def _hidden_name(kwargs: Mapping[str, Any]) -> str:
    for name in ("hidden_states", "x", "input"):
        if name in kwargs:
            return name
    raise GramLoopError(f"blocks are called with hidden states first; these are given {sorted(kwargs)}")


class BlockCall:
    """How the host called a block: its hidden states aside, every block is given the same arguments."""

    def __init__(self, vit: ViT, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        hidden = hidden_states(args, kwargs)
        self.vit, self.executed, self.listed = vit, 0, isinstance(hidden, list)
        self.grid: Grid | None = vit.layout.grid(states_of(hidden)[0])
        self._args, self._kwargs = with_hidden(args, kwargs, None)

    @classmethod
    def of(cls, vit: ViT, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[BlockCall]:
        """The call, or one for each resolution where the host passes lists of them through its blocks."""
        hidden = hidden_states(args, kwargs)
        if not isinstance(hidden, list):
            return [cls(vit, args, kwargs)]

        def entry(value: Any, i: int) -> Any:
            return [value[i]] if isinstance(value, list) and len(value) == len(hidden) else value

        return [
            cls(
                vit, tuple(entry(each, i) for each in args), {name: entry(kwargs[name], i) for name in kwargs}
            )
            for i in range(len(hidden))
        ]

    def run(self, first: int, last: int, tokens: Tensor) -> Tensor:
        """Blocks first to last (inclusive; none when last < first) applied to a state (B, T, C)."""
        # block.forward, not block(): the hooks of others must not count replays and probes
        for block in self.vit.blocks[first : last + 1]:
            state = self.shaped(tokens)
            args, kwargs = with_hidden(self._args, self._kwargs, [state] if self.listed else state)
            run = (
                block.forward
                if torch.compiler.is_compiling() or block in _pure
                else partial(_first_run, block)
            )
            tokens = self.vit.layout.tokens(states_of(run(*args, **kwargs))[0])
            self.executed += 1
        return tokens

    def shaped(self, tokens: Tensor) -> Tensor:
        """Tokens as the host passes them from block to block."""
        return self.vit.layout.state(tokens, self.grid)


def _first_run(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """BlockForward a block for the first time, and refuse it if it writes into its input, which a replay needs again."""
    (state,) = states_of(hidden_states(args, kwargs))
    before = state.clone() if state.is_inference() else state._version
    output = block.forward(*args, **kwargs)
    if not (torch.equal(state, before) if isinstance(before, Tensor) else state._version == before):
        raise GramLoopError(
            f"{type(block).__name__} works in place: it writes into its input, which a replay needs again; let it return a new "
            "state, as in x = x + …"
        )
    _pure.add(block)
    return output
