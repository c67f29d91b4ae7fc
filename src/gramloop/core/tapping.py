"""See, and change, what a head reads of a host: outputs of some blocks, after the final norm or as they are.

Hosts norm their taps one by one, in the middle of the forward or after its last block, and some norm states that
nobody reads. What is normed is recognised as the output of a block by being that very tensor.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gramloop.core.layout import Layout
from gramloop.core.source import Place
from gramloop.errors import GramLoopError
from gramloop.replay.blocks import states_of
from gramloop.replay.vit import ViT

# a block, its patches (B, N, C) as the head reads them, and which of them are valid → others; None for the same
Change = Callable[[int, Tensor, Tensor | None], Tensor | None]


class _Here:
    def __init__(self) -> None:
        self.listens, self.taps, self.tapped = True, dict[int, list[Tensor]](), 0


class PerThread(threading.local):
    """Each thread's own taps; ``alone`` listens to the calling thread only."""

    def __init__(self, thread: int | None) -> None:
        self.forwards = _Here()
        self.forwards.listens = thread is None or thread == threading.get_ident()

    @classmethod
    def of_this(cls, alone: bool = True) -> PerThread:
        """That of the calling thread's forwards, or of all."""
        return cls(threading.get_ident() if alone else None)


class Tapping:
    """What both places share: which blocks, what is done with their patches, and whether any was met."""

    def __init__(self, host: ViT, here: PerThread, taps: Collection[int], change: Change) -> None:
        self.host, self.taps = host, sorted(taps)
        self._here, self._change = here, change
        if host.shuffles:
            raise GramLoopError(
                f"{host.name} drops patches, so the mean of what is left says little about a shift"
            )
        outside = [tap for tap in self.taps if not 0 <= tap < host.depth]
        if outside:
            raise GramLoopError(
                f"{host.name} has the blocks 0 to {host.depth - 1}; the source statistics are of tap {outside[0]}, "
                "so of another backbone"
            )

    @property
    def hooked(self) -> list[nn.Module]:
        """The modules that have its hooks."""
        raise NotImplementedError

    def register(self) -> list[RemovableHandle]:
        """Put the hooks on, and return their handles."""
        raise NotImplementedError

    def check_every_forward(self, model: nn.Module) -> list[RemovableHandle]:
        """Refuse, from now on, a forward of the whole model in which no tap is met: its head reads others."""
        return [
            model.register_forward_pre_hook(self._before_forward),
            model.register_forward_hook(self._after_forward),
        ]

    def _before_forward(self, *_: object) -> None:
        self._here.forwards.tapped = 0

    def _after_forward(self, *_: object) -> None:
        forwards = self._here.forwards
        forwards.taps.clear()
        if forwards.listens and not forwards.tapped and not torch.compiler.is_compiling():
            raise GramLoopError(
                f"{self.host.name} put no block that the source knows {self._missed} in this forward, so nothing was "
                "recentred"
            )

    _missed = ""

    def _changed(self, tap: int, tokens: Tensor, entry: int, layout: Layout) -> Tensor | None:
        """Tokens (B, T, C) with their patches changed; None where they stay."""
        forwards = self._here.forwards
        patches = layout.patches(tokens)
        changed = self._change(tap, patches, None)
        forwards.tapped += 1
        if changed is None or not layout.others:
            return changed
        end = layout.prefix + patches.shape[1]
        return torch.cat([tokens[:, : layout.prefix], changed, tokens[:, end:]], dim=1)


class NormTapping(Tapping):
    """Hooks on the final norm of a host, and on the blocks whose outputs are looked for there."""

    _missed = (
        "through its final norm (its head reads other blocks, or states before the norm, which "
        'gramloop.calibrating(model, at="states") watches)'
    )

    def __init__(self, host: ViT, here: PerThread, taps: Collection[int], change: Change) -> None:
        super().__init__(host, here, taps, change)
        if not isinstance(host.final_norm, nn.Module) or host.layout.map:
            raise GramLoopError(
                f"{host.name} has no norm after its blocks, where a head's features could be recentred; "
                'gramloop.calibrating(model, at="states") watches the states that it returns'
            )

    @property
    def norm(self) -> nn.Module:
        """The final norm."""
        assert isinstance(self.host.final_norm, nn.Module)
        return self.host.final_norm

    @property
    def hooked(self) -> list[nn.Module]:
        """The modules that have its hooks."""
        return [*(self.host.blocks[tap] for tap in self.taps), self.norm]

    def register(self) -> list[RemovableHandle]:
        """Put the hooks on, and return their handles."""
        handles = [
            # after a replay's own hook, so that what it returned is seen
            self.host.blocks[tap].register_forward_hook(partial(self._after_block, tap))
            for tap in self.taps
        ]
        # first: a host's own capture hooks must see what the head sees
        return [*handles, self.norm.register_forward_hook(self._after_norm, prepend=True)]

    def _after_block(self, tap: int, block: nn.Module, args: Any, output: Any) -> None:
        forwards = self._here.forwards
        if forwards.listens:
            forwards.taps[tap] = states_of(output)

    def _after_norm(self, norm: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        if not self._here.forwards.listens or not args:
            return None
        found = self._which(args[0])
        return None if found is None else self._changed(found[0], output, found[1], self.host.layout)

    def _which(self, given: object) -> tuple[int, int] | None:
        """The block whose output is being normed, and which entry of it."""
        forwards = self._here.forwards
        for tap, states in forwards.taps.items():
            for entry, state in enumerate(states):
                if state is given:
                    return tap, entry
        return None


class StateTapping(Tapping):
    """A hook on the ViT: the hidden states or feature maps that it returns, as they are."""

    _missed = "among the hidden states or feature maps that it returns"

    @property
    def hooked(self) -> list[nn.Module]:
        """The modules that have its hooks."""
        return [self.host.vit]

    def register(self) -> list[RemovableHandle]:
        """Put the hook on, and return its handle."""
        return [self.host.vit.register_forward_hook(self._after_vit, prepend=True)]

    def _after_vit(self, vit: nn.Module, args: Any, output: Any) -> Any:
        if not self._here.forwards.listens:
            return None
        for name, blocks in (
            ("feature_maps", taps_read(self.host)),
            ("hidden_states", range(self.host.depth)),
        ):
            states = getattr(output, name, None)
            if isinstance(states, tuple) and states:
                offset = len(states) - len(blocks)  # what stands before the first block's
                new = [*states[:offset], *map(self._state, blocks, states[offset:])]
                setattr(output, name, tuple(new))
                return output
        return None

    def _state(self, tap: int, state: Tensor) -> Tensor:
        """A state (B, T, C), or a map (B, C, h, w) or (B, h, w, C), with its patches changed."""
        if tap not in self.taps:
            return state
        layout = self.host.layout
        if state.ndim == 4:
            layout = Layout(map=layout.map or "BCHW")
        elif layout.map or state.shape[1] <= layout.others:
            return state
        changed = self._changed(tap, layout.tokens(state), 0, replace(layout, map=""))
        return state if changed is None else layout.state(changed, layout.grid(state))


TAPPINGS: dict[Place, type[Tapping]] = {"norm": NormTapping, "states": StateTapping}


def taps_read(host: ViT) -> list[int]:
    """The blocks that a host may show a head: those that it names, as transformers' backbones do, or all."""
    named = getattr(host.vit, "out_indices", None)
    if host.paths is None or not isinstance(named, Sequence):
        return list(range(host.depth))
    return [int(stage) % (host.depth + 1) - 1 for stage in named if int(stage) % (host.depth + 1) > 0]
