"""Give a frozen ViT Gram-gated replay: one forward hook that runs `gramloop.replay.algorithm`, undone by removing it."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gramloop.errors import GramLoopError, UntunedWindowWarning
from gramloop.replay import guards
from gramloop.replay.adaptive import image_noise, noise_response, share
from gramloop.replay.algorithm import gram_gated_replay
from gramloop.replay.config import PAPER_DEPTH, ReplayConfig, ReplaySettings, Route, read_replay, route
from gramloop.replay.gram import Trace
from gramloop.replay.vit import Grid, Norm, ViT, find_vit, hidden_states, state_of, with_hidden, with_state

_NO_THREAD = -1


def attach(
    model: nn.Module,
    config: ReplayConfig | str | Path | None = None,
    *,
    trace: bool = False,
    keep: Sequence[int] = (),
    blocks: Sequence[nn.Module] | None = None,
    norm: Norm | None = None,
    prefix: int | None = None,
    which: str | None = None,
    layout: str = "BTC",
    this_thread: bool = False,
    **settings: Unpack[ReplaySettings],
) -> Loop:
    """Let ``model``'s ViT replay a window of its blocks in every forward, until ``loop.detach()``.

    In a ``with`` statement it ends with the block; `attached` is another name for that use. Threads may call one
    attached model. Attach and detach while none of them is inside a forward, or for ``this_thread``.

    The published placement registers three hooks on the ViT: after the window's last block, where Algorithm 1 runs;
    after the patch embedding, for the grid; before the block in front of the window, where the hooks of others are
    checked. Two on the model, and two on a ViT inside it, begin and end a forward. Each kept block adds one,
    ``update_at="final"`` and ``trace`` those of the last and the probe block.

    Args:
        model: a ViT, or any model that contains exactly one; heads, adapters and weights stay as they are.
        config: the replay, or a settings file as `gramloop tune` writes it; the published replay by default.
        trace: keep drift and gate maps of the latest forward in ``loop.trace``.
        keep: blocks whose output in the baseline pass is kept in ``loop.baseline``, for paired predictions.
        blocks, norm, prefix, layout, which: describe or name the ViT where it is of an unknown family, or one of several;
            see `find_vit`.
        this_thread: replay in forwards of the calling thread alone. Others run the model as if nothing were attached,
            or with what they attach in this way.
        settings: fields of `ReplayConfig` that take the place of those in ``config``.
    """
    vit = find_vit(model, blocks, norm, prefix, which, layout)
    config = read_replay(config) if isinstance(config, str | Path) else config or ReplayConfig()
    if not isinstance(config, ReplayConfig):
        raise GramLoopError(
            f"config is {config!r}; it is a ReplayConfig, the path of a settings file, or left out"
        )
    loop = Loop(vit, replace(config, **settings) if settings else config, keep, trace, this_thread)
    if loop.route.config.window is None and loop.config.replays and vit.depth != PAPER_DEPTH:
        window = list(loop.config.window or ())
        warnings.warn(
            f"window {window} is the published one scaled to {vit.depth} blocks, a guess: it was not measured on this "
            "backbone, and may hurt; gramloop tune finds a window, or none",
            UntunedWindowWarning,
            stacklevel=2,
        )
    loop._register(model)
    return loop


attached = attach
"""`attach`, as it reads in a ``with`` statement."""


class BlockCalls:
    """How the host calls its blocks in one forward: all are given the same, apart from the state.

    states: the baseline's, (B, T, C), by block. valid, share, trace: as `gram_gated_replay` takes them.
    """

    valid: Tensor | None = None
    share: Tensor | None = None
    trace: Trace | None = None

    def __init__(self, vit: ViT, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        hidden = hidden_states(args, kwargs)
        self.vit, self.executed, self._listed = vit, 0, isinstance(hidden, list)
        self.states: dict[int, Tensor] = {}
        self.grid: Grid | None = vit.layout.grid(state_of(hidden))
        self._args, self._kwargs = with_hidden(args, kwargs, None)

    def run(self, first: int, last: int, tokens: Tensor) -> Tensor:
        """Blocks first to last (inclusive; none when last < first) applied to a state (B, T, C)."""
        # block.forward, not block(): the hooks of others must not count replays and probes
        for block in self.vit.blocks[first : last + 1]:
            args, kwargs = with_hidden(self._args, self._kwargs, self.shaped(tokens))
            run = block.forward if guards.in_graph() else partial(guards.run_unchanging, block)
            tokens = self.vit.layout.tokens(state_of(run(*args, **kwargs)))
            self.executed += 1
        return tokens

    def shaped(self, tokens: Tensor) -> Tensor | list[Tensor]:
        """Tokens as the host passes them from block to block."""
        state = self.vit.layout.state(tokens, self.grid)
        return [state] if self._listed else state


@dataclass
class _Forward:
    """One forward: what is known before the window's end, and what it leaves.

    images: how many the model, or its patch embedding, was given.
    embedded: patch grid and, if it decides, noise response of the input that the patch embedding cut last.
    skipped: no image is replayed, so that the host's own blocks show the baseline pass.
    versions: how often kept outputs had been written to when they were kept.
    """

    images: int | None = None
    embedded: tuple[Grid | None, Tensor | None] = (None, None)
    valid: Tensor | None = None
    calls: BlockCalls | None = None
    skipped: bool = False
    trace: Trace | None = None
    baseline: dict[int, Any] = field(default_factory=dict)
    versions: dict[int, int | None] = field(default_factory=dict)
    blocks_executed: int = 0


class _Forwards:
    """One thread's forwards, the latest and the next."""

    def __init__(self, listens: bool, check: guards.BlockOrderCheck) -> None:
        self.listens, self.check = listens, check
        self.latest, self.next = _Forward(), _Forward()

    def begin(self) -> _Forward:
        """The next forward has reached the first block that matters."""
        self.latest, self.next = self.next, _Forward()
        return self.latest

    def end(self) -> None:
        """A forward is over, perhaps because it failed before it began to matter here."""
        self.next = _Forward()
        self.check.end()


class _PerThread(threading.local):
    """Each thread's `_Forwards`. ``thread``: the only one whose forwards are replayed; None for all."""

    def __init__(self, thread: int | None, vit: ViT, at: Route) -> None:
        # never assigned again: a compiled graph writes into what a thread-local holds, but not its attributes
        listens = thread is None or thread == threading.get_ident()
        self.forwards = _Forwards(listens, guards.BlockOrderCheck(vit, at))
        self.thread, self._made_of = thread, (vit, at)

    def __reduce__(self) -> tuple[type[_PerThread], tuple[Any, ...]]:
        # a copy of a model starts afresh, and a replay for one thread does not follow into it
        return _PerThread, (None if self.thread is None else _NO_THREAD, *self._made_of)

    def meets(self, other: _PerThread) -> bool:
        """Whether some thread's forwards would be replayed by both."""
        mine, its = self.thread, other.thread
        return _NO_THREAD not in (mine, its) and (None in (mine, its) or mine == its)


class Loop:
    """A replay attached to a model. Made by `attach`. The latest forward is that of the thread that asks."""

    def __init__(
        self, vit: ViT, config: ReplayConfig, keep: Sequence[int], trace: bool, this_thread: bool
    ) -> None:
        self.vit, self.route = vit, route(config, vit.depth, keep, trace)
        at, self._trace = self.route, trace
        self.config = config if config.window else replace(config, window=(at.start, at.end))
        self._rule = config.adaptive if config.replays else None
        guards.check_vit(vit, at, self._rule is not None)
        self._here = _PerThread(threading.get_ident() if this_thread else None, vit, at)
        self._handles: list[RemovableHandle] = []
        self._held_first: list[tuple[nn.Module, str, RemovableHandle]] = []
        self._shown: list[nn.Module] = []
        self._gathering: list[nn.Module] = []
        self._first = min(at.end, *at.keep, vit.depth)

    @property
    def trace(self) -> Trace | None:
        """The latest forward's trace, when asked for."""
        return self._here.forwards.latest.trace

    @property
    def baseline(self) -> dict[int, Any]:
        """Block index -> output of the kept block in the latest baseline pass, before the final norm."""
        forward = self._here.forwards.latest
        for index, then in forward.versions.items():
            if guards.version(forward.baseline[index]) != then:
                raise GramLoopError(
                    f"the kept output of block {index} of {self.vit.name} was written into by a later one, which works in "
                    "place; let blocks return new states, as in x = x + …"
                )
        return forward.baseline

    @property
    def blocks_executed(self) -> int:
        """Blocks that each image of the latest forward went through, the host's own among them."""
        return self._here.forwards.latest.blocks_executed

    def set_valid(self, mask: Tensor | None) -> None:
        """Say which patches of this thread's next forward are image and not padding: (B, h, w) or (B, N) bool.

        It holds for one forward of the model that was attached to, also for one that fails. Invalid patches take no
        part in drift, median and mean, and keep the baseline trajectory.
        """
        if not (mask is None or isinstance(mask, Tensor)):
            raise GramLoopError(f"the valid-patch mask is a {type(mask).__name__}, not a bool tensor")
        self._here.forwards.next.valid = mask

    def detach(self) -> None:
        """Remove every hook; the model is what it was before."""
        with guards.registering:
            self._here.forwards.check.end()
            for handle in self._handles:
                handle.remove()
            guards.hide_from_compiler(self._shown)
            if not any(loops_on(self.vit)):
                guards.release(self.vit, self._gathering)
            self._handles, self._held_first, self._shown = [], [], []

    def __enter__(self) -> Loop:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def _register(self, model: nn.Module) -> None:
        vit, at, check = self.vit, self.route, self._here.forwards.check
        with guards.registering:
            if any(self._here.meets(other._here) for other in loops_on(vit)):
                raise GramLoopError(f"{vit.name} has a replay attached already; detach() that one first")
            self._gathering = guards.gather_in_forward(vit.blocks)
            for index in sorted({*at.keep, *at.steps}):
                self._add(vit.blocks[index], partial(self._after_block, index))
            if at.runs_blocks:
                self._add(vit.blocks[check.first], self._before_checked, before=True)
            if vit.embedding is not None:
                self._handles.append(vit.embedding.register_forward_hook(self._after_embedding))
            # what torch.compile returns holds the model that it runs
            for whole in {getattr(model, "_orig_mod", model), vit.module}:
                self._handles.append(whole.register_forward_pre_hook(self._before_forward))
                self._handles.append(whole.register_forward_hook(self._after_forward, always_call=True))
            hooked = {vit.blocks[index] for index in {*at.keep, *at.steps, at.start}}
            self._shown = guards.show_to_compiler([*hooked, *([vit.embedding] if vit.embedding else [])])

    def _add(self, block: nn.Module, hook: Callable[..., Any], before: bool = False) -> None:
        """Register a hook that stays before those of others: the host's captures must see the refined state."""
        register = block.register_forward_pre_hook if before else block.register_forward_hook
        handle = register(hook, with_kwargs=True, prepend=True)
        self._handles.append(handle)
        self._held_first.append((block, "_forward_pre_hooks" if before else "_forward_hooks", handle))

    def _before_forward(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not guards.in_graph():
            self.vit.check_unchanged()
            guards.keep_first(self._held_first)
            if args and isinstance(args[0], Tensor) and self._here.forwards.listens:
                self._here.forwards.next.images = args[0].shape[0]

    def _after_forward(self, *_: Any) -> None:
        if not guards.in_graph():
            self._here.forwards.end()

    def _after_embedding(self, embedding: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        self._before_forward(embedding, args)  # a part of a model may be called by a method of its own
        if self._here.forwards.listens:
            response = noise_response(args[0]) if self._rule else None
            self._here.forwards.next.embedded = guards.embedded_grid(self.vit, args[0], output), response

    def _before_checked(self, block: nn.Module, args: Any, kwargs: Any = None) -> None:
        if self._here.forwards.listens and kwargs is not None and not guards.in_graph():
            self._here.forwards.check.begin(args, kwargs)

    def _after_block(self, index: int, block: nn.Module, args: Any, *rest: Any) -> Any:
        forwards, at = self._here.forwards, self.route
        # Torch adds and removes a hook and the mark that it takes keyword arguments one after the other; in
        # between, a thread that did not wait for that calls it without them.
        if not forwards.listens or len(rest) < 2:
            return None
        kwargs, output = rest
        guards.check_running(self.vit, block)
        forward = forwards.begin() if index == self._first else forwards.latest
        baseline_shown = at.at_final or index < at.end or (forward.skipped and index > at.end)
        if index in at.keep and baseline_shown:
            forward.baseline[index] = output[0] if isinstance(output, tuple) else output
            if not guards.in_graph():
                forward.versions[index] = guards.version(output)
        if index not in at.steps:
            return None
        tokens, refined = self.vit.layout.tokens(state_of(output)), None
        if index == at.end:
            self._reach_window_end(forward, args, kwargs, tokens)
        calls = forward.calls
        if calls is None:  # attached while this forward was under way
            return None
        calls.states[index] = tokens
        if index == (at.last if at.at_final else at.end):
            with guards.unobserved():
                refined = self._replay(forward, calls)
        if index == at.probe and calls.trace is not None:
            calls.trace.record_accepted(self.vit.patches(tokens if refined is None else refined))
        if index == max(at.steps):
            forward.calls = None
        if refined is None:
            return None
        state = self.vit.layout.state(refined, calls.grid)
        forwards.check.pass_on(index, state)
        return with_state(output, state)

    def _reach_window_end(self, forward: _Forward, args: Any, kwargs: Any, Z: Tensor) -> None:
        """Check grid and mask against the state, measure what decides per image, and begin to trace."""
        vit, calls = self.vit, BlockCalls(self.vit, args, kwargs)
        embedded, response = forward.embedded
        grid = calls.grid or embedded
        guards.check_images(vit, Z, forward.images, kwargs)
        mask = guards.host_mask(vit, Z, args, kwargs) if forward.valid is None else forward.valid
        calls.valid = guards.check_patches(vit, Z, grid, mask)
        forward.trace = calls.trace = Trace(grid) if self._trace else None
        if self._rule is not None:
            if response is None or len(response) != len(Z):
                raise GramLoopError("the ViT embeds other images than its blocks see, so noise cannot decide")
            signal = image_noise(response, calls.valid, grid).to(Z.device)
            calls.share = share(self._rule, signal)
            if calls.trace is not None:
                calls.trace.signal = signal
        forward.calls, forward.embedded, forward.blocks_executed = calls, (None, None), vit.depth

    def _replay(self, forward: _Forward, calls: BlockCalls) -> Tensor | None:
        """Algorithm 1; nothing where no image is replayed."""
        at, vit, Z, refined = self.route, self.vit, calls.states[self.route.end], None
        if (
            calls.share is not None and not calls.share.is_meta and not guards.in_graph()
        ):  # a graph cannot ask
            forward.skipped = not bool(calls.share.any())
        if forward.skipped:
            if calls.trace is not None:
                calls.trace.record_nothing(vit.layout.patches(Z), at.config.replays)
        elif not at.config.replays:
            self._suffix(calls, Z)
        else:
            refined = gram_gated_replay(
                Z, calls.run, partial(self._suffix, calls), vit.patches, at, vit.layout,
                valid=calls.valid, share=calls.share, trace=calls.trace,
            )  # fmt: skip
        forward.blocks_executed += calls.executed
        for index in {*at.keep} & {*calls.states} - {*forward.baseline}:
            forward.baseline[index] = calls.shaped(calls.states[index])
        return refined

    def _suffix(self, calls: BlockCalls, Z: Tensor) -> tuple[Tensor, Tensor]:
        """Line 1: the baseline's states after the probe and the last block; run as far as drift and ``keep`` need."""
        at, P, state = self.route, Z, Z
        if at.at_final:  # the host's own pass has shown them
            return calls.states[at.probe], calls.states[at.last]
        with torch.no_grad():
            for index in range(at.end + 1, at.reach + 1):
                state = calls.run(index, index, state)
                P = state if index == at.probe else P
                if index in at.keep:
                    calls.states[index] = state
        return P, state


def loops_on(vit: ViT) -> Iterator[Loop]:
    """What is attached to a ViT's blocks, once for each hook."""
    for block in vit.blocks:
        for hook in tuple(block._forward_hooks.values()):
            loop = getattr(getattr(hook, "func", None), "__self__", None)
            if isinstance(loop, Loop):
                yield loop
