"""Forward hooks that show, and change, the patches that the head of any model reads from its ViT.

Heads read patches in one of three places, which calibration finds out (`gramloop.mitigations.calibration`):

    norm    after the final norm, block by block; a normed state is matched to the block that returned it
    states  the ``hidden_states`` or ``feature_maps`` that the ViT returns, before any norm
    blocks  the output of a block, which the rest of the model reads (detection tokens by attention, a neck)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gramloop.errors import GramLoopError
from gramloop.models.backbone import Backbone, Tap
from gramloop.replay.guards import hide_from_compiler, registering, show_to_compiler
from gramloop.replay.vit import TokenLayout, ViT, find_vit

Place = Literal["norm", "states", "blocks"]
# a block, its patches (B, N, C) as the head reads them, and which are valid (B, N) → others; None leaves them
Change = Callable[[int, Tensor, Tensor | None], Tensor | None]
Registration = tuple[Callable[..., RemovableHandle], Callable[..., Any]]  # a method of a module, and a hook


@dataclass(frozen=True)
class FeatureSource:
    """A model with a ViT inside whose features can be read and changed.

    model: the whole model. backbone: the built-in backbone that offers its taps, if it is one.
    taps: the blocks that the head reads; empty if unknown.
    """

    vit: ViT
    model: nn.Module
    backbone: Backbone | None = None
    taps: tuple[int, ...] = ()

    def places(self) -> list[tuple[Place, tuple[int, ...]]]:
        """Where its head may read patches, and of which blocks; the likeliest place first."""
        if self.backbone is not None and self.taps:
            return [("norm", self.taps)]
        vit, returned = self.vit, _returned_blocks(self.vit)
        norm: list[tuple[Place, tuple[int, ...]]] = [("norm", returned)] if _has_norm(vit) else []
        last = [(vit.depth - 1,), (vit.depth - 2,)] if vit.depth > 1 else [(vit.depth - 1,)]
        return [*norm, ("states", returned), *(("blocks", block) for block in last)]


def feature_source(model: object, needed_by: str, **description: Any) -> FeatureSource:
    """The ViT in a predictor or a torch module, or an error that says why there is none to hook.

    Args:
        model: a predictor, or a module with one ViT inside.
        needed_by: what is refused otherwise.
        description: ``blocks``, ``norm``, ``prefix`` and ``which`` as `gramloop.attach` takes them.
    """
    if isinstance(model, nn.Module) and not callable(getattr(model, "predict", None)):
        found = FeatureSource(find_vit(model, **description), getattr(model, "_orig_mod", model))
    else:
        vit, backbone, module = (getattr(model, name, None) for name in ("host", "backbone", "model"))
        if vit is None:
            raise GramLoopError(
                f"{needed_by} acts on the patches of a ViT through forward hooks, and no torch module with one ViT was found "
                f"in {getattr(model, 'name', type(model).__name__)}; mitigations on pixels and outputs work with it"
            )
        found = FeatureSource(vit, module if isinstance(module, nn.Module) else vit.module)
        if isinstance(backbone, Backbone):
            found = FeatureSource(vit, backbone, backbone, tuple(model.taps))  # type: ignore[attr-defined]
    if found.vit.shuffles:
        raise GramLoopError(
            f"{needed_by} needs all patches of an image, and {found.vit.name} drops some of them"
        )
    return found


def _has_norm(vit: ViT) -> bool:
    return isinstance(vit.final_norm, nn.Module) and not vit.layout.map


def _returned_blocks(vit: ViT) -> tuple[int, ...]:
    """The blocks that a ViT shows a head: the ``out_indices`` of transformers' backbones, or all."""
    named, stages = getattr(vit.module, "out_indices", None), vit.depth + 1
    if vit.paths is None or not isinstance(named, Sequence):
        return tuple(range(vit.depth))
    return tuple(int(stage) % stages - 1 for stage in named if int(stage) % stages > 0)


class _Thread(threading.local):
    """Each thread's own forward: outputs of blocks, of which blocks patches were met, and whether hooks act.

    Nothing is assigned later: a compiled graph writes into objects that a thread-local holds, but not its attributes.
    """

    def __init__(self, only: int | None) -> None:
        self.only, self.listens = only, only in (None, threading.get_ident())
        self.states: dict[int, Tensor] = {}
        self.met: set[int] = set()

    def __reduce__(self) -> tuple[type[_Thread], tuple[int | None]]:
        return type(self), (self.only,)


class Hooks(ExitStack[None]):
    """Forward hooks on some modules until ``detach()``, or as a context manager."""

    def __init__(self, this_thread: bool = False) -> None:
        super().__init__()
        self._here = _Thread(threading.get_ident() if this_thread else None)

    @property
    def listens(self) -> bool:
        """Whether the hooks act in the calling thread."""
        return self._here.listens

    def register(self, *hooks: Registration) -> None:
        """Call each registering method with its hook, and let compiled models see that there are hooks now."""
        with registering:
            handles = [method(hook) for method, hook in hooks]
        modules = {getattr(getattr(method, "func", method), "__self__", None) for method, _ in hooks}
        compiled = show_to_compiler([each for each in modules if isinstance(each, nn.Module)])
        self.callback(_remove, handles, compiled)

    def detach(self) -> None:
        """Remove the hooks: the model is what it was, to the bit."""
        self.close()


def _remove(handles: Sequence[RemovableHandle], compiled: Sequence[nn.Module]) -> None:
    with registering:
        for handle in handles:
            handle.remove()
        hide_from_compiler(compiled)


class FeatureHooks(Hooks):
    """Hands the patches of some blocks, where a head reads them, to a function that may change them.

    valid: which patches of the coming forwards are image and not padding, (B, h, w) or (B, N) bool; None for all.
    """

    valid: Tensor | None = None
    text = "recentre"

    def __init__(
        self,
        source: FeatureSource,
        at: Place,
        taps: Collection[int],
        change: Change,
        *,
        this_thread: bool = False,
        required: bool = True,
    ) -> None:
        """``required``: refuse a forward of the whole model in which no patches were met."""
        super().__init__(this_thread)
        self.vit, self.at, self.taps, self._change = source.vit, at, tuple(sorted(taps)), change
        vit = source.vit
        if at == "norm" and source.backbone is not None:
            self.register((source.backbone.tap_point.register_forward_hook, self._after_tap))
            return
        if at == "norm":
            self.register(*self._norm_hooks())
        elif at == "states":
            self.register((partial(vit.module.register_forward_hook, prepend=True), self._after_vit))
        else:
            blocks = ((vit.blocks[tap], partial(self._block_changed, tap)) for tap in self.taps)
            self.register(*((block.register_forward_hook, hook) for block, hook in blocks))
        if required:
            self.register(
                (source.model.register_forward_pre_hook, self._before_forward),
                (source.model.register_forward_hook, self._after_forward),
            )

    def _norm_hooks(self) -> list[Registration]:
        norm, vit = self.vit.final_norm, self.vit
        if not isinstance(norm, nn.Module) or not _has_norm(vit):
            raise GramLoopError(f"{vit.name} has no norm after its blocks; calibrate again with this model")
        # the block before mask queries join the patches gives how many tokens there are without them
        watched = {*self.taps, *([vit.plain_depth - 1] if self._has_queries else [])}
        # after a replay's own hook on the block; before the host's own capture hooks on the norm
        return [
            *((vit.blocks[tap].register_forward_hook, partial(self._after_block, tap)) for tap in watched),
            (partial(norm.register_forward_hook, prepend=True), self._after_norm),
        ]

    @property
    def _has_queries(self) -> bool:
        return 0 < self.vit.plain_depth < self.vit.depth

    def _after_tap(self, point: nn.Module, args: tuple[Tap], tap: Tap) -> Tap | None:
        if not self._here.listens or tap.block not in self.taps:
            return None
        changed = self._change(tap.block, tap.patches, None)
        if changed is None:
            return None
        return replace(tap, tokens=torch.cat([tap.tokens[:, : tap.prefix], changed], 1))

    def _after_block(self, tap: int, block: nn.Module, args: Any, output: Any) -> None:
        state = _first(output)
        if self._here.listens and state is not None:
            self._here.states[tap] = state

    def _after_norm(self, norm: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        if not self._here.listens or not args:
            return None
        states, layout = self._here.states, self.vit.layout
        tap = next((tap for tap, state in states.items() if state is args[0]), None)
        if tap is None or tap not in self.taps:
            return None
        if self._has_queries and (before := states.get(self.vit.plain_depth - 1)) is not None:
            layout = replace(layout, prefix=layout.prefix + output.shape[1] - before.shape[1])
        return self._changed(tap, output, layout)

    def _after_vit(self, vit: nn.Module, args: Any, output: Any) -> Any:
        if not self._here.listens:
            return None
        returned = {"feature_maps": _returned_blocks(self.vit), "hidden_states": range(self.vit.depth)}
        for name, blocks in returned.items():
            states = getattr(output, name, None)
            if isinstance(states, tuple) and states:
                first = len(states) - len(blocks)  # what comes before the first block
                setattr(output, name, (*states[:first], *map(self._state_changed, blocks, states[first:])))
                return output
        return None

    def _block_changed(self, tap: int, block: nn.Module, args: Any, output: Any) -> Any:
        state = _first(output)
        if not self._here.listens or state is None:
            return None
        changed = self._state_changed(tap, state)
        if changed is state:
            return None
        return changed if isinstance(output, Tensor) else (changed, *output[1:])

    def _state_changed(self, tap: int, state: Tensor) -> Tensor:
        """A state (B, T, C), or a map (B, C, h, w) or (B, h, w, C), with its patches changed."""
        layout = self.vit.layout
        if tap not in self.taps:
            return state
        if state.ndim == 4:
            layout = TokenLayout(map=layout.map or "BCHW")
        elif layout.map or state.shape[1] <= layout.others:
            return state
        changed = self._changed(tap, layout.tokens(state), replace(layout, map=""))
        return state if changed is None else layout.state(changed, layout.grid(state))

    def _changed(self, tap: int, tokens: Tensor, layout: TokenLayout) -> Tensor | None:
        """Tokens (B, T, C) with their patches changed; None where they stay."""
        patches = layout.patches(tokens)
        self._here.met.add(tap)
        changed = self._change(tap, patches, None if self.valid is None else self.valid.flatten(1))
        if changed is None or not layout.others:
            return changed
        end = layout.prefix + patches.shape[1]
        return torch.cat([tokens[:, : layout.prefix], changed, tokens[:, end:]], dim=1)

    def _before_forward(self, *_: object) -> None:
        self._here.met.clear()

    def _after_forward(self, *_: object) -> None:
        self._here.states.clear()
        if self._here.listens and not self._here.met and not torch.compiler.is_compiling():
            raise GramLoopError(
                f"{self.vit.name} passed on none of the blocks {list(self.taps)} of the calibration statistics in this "
                "forward, so nothing was recentred; calibrate with the model called as it is here"
            )


def hooks_on(model: nn.Module) -> list[FeatureHooks]:
    """What changes features of a model at present."""
    hooks = [hook for module in model.modules() for hook in module._forward_hooks.values()]
    owners = [getattr(getattr(hook, "func", hook), "__self__", None) for hook in hooks]
    return list(dict.fromkeys(owner for owner in owners if isinstance(owner, FeatureHooks)))


def _first(output: Any) -> Tensor | None:
    """The state in a block's output, a tensor or a tuple that begins with one."""
    state = output[0] if isinstance(output, tuple) and output else output
    return state if isinstance(state, Tensor) else None
