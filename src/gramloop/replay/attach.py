"""Give a frozen ViT Gram-gated replay: one forward hook that runs `gramloop.replay.algorithm`, undone by removing it."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gramloop.errors import GramLoopError, UntunedWindowWarning
from gramloop.replay.adaptive import image_noise, noise_response, share
from gramloop.replay.algorithm import gram_gated_replay
from gramloop.replay.config import PAPER_DEPTH, ReplayConfig, ReplaySettings, Route, read_replay, route
from gramloop.replay.guards import (
    BlockOrderCheck,
    check_images,
    check_patches,
    check_running,
    check_vit,
    embedded_grid,
    gather_in_forward,
    hide_from_compiler,
    host_mask,
    in_graph,
    keep_first,
    registering,
    release,
    run_unchanging,
    show_to_compiler,
    unobserved,
    versions,
)
from gramloop.replay.trace import Trace
from gramloop.replay.vit import Grid, Norm, ViT, find_vit, hidden_states, states_of, with_hidden, with_states

ValidMasks = Tensor | Sequence[Tensor] | None
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


class Resolution:
    """One resolution of one forward, and how the host calls its blocks: apart from states all are given the same.

    states: the baseline's, (B, T, C), by block. valid, share, trace: as `gram_gated_replay` takes them.
    listed: the host passes a list of resolutions through its blocks; most pass one state.
    """

    valid: Tensor | None = None
    share: Tensor | None = None
    trace: Trace | None = None

    def __init__(self, vit: ViT, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        hidden = hidden_states(args, kwargs)
        self.vit, self.executed, self.listed = vit, 0, isinstance(hidden, list)
        self.states: dict[int, Tensor] = {}
        self.grid: Grid | None = vit.layout.grid(states_of(hidden)[0])
        self._args, self._kwargs = with_hidden(args, kwargs, None)

    @classmethod
    def of(cls, vit: ViT, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Resolution]:
        """Every resolution with which the host calls its blocks."""
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
            run = block.forward if in_graph() else partial(run_unchanging, block)
            tokens = self.vit.layout.tokens(states_of(run(*args, **kwargs))[0])
            self.executed += 1
        return tokens

    def shaped(self, tokens: Tensor) -> Tensor:
        """Tokens as the host passes them from block to block."""
        return self.vit.layout.state(tokens, self.grid)


@dataclass
class _Forward:
    """One forward: what is known before the window's end, and what it leaves.

    images: how many the model, or its patch embedding, was given.
    embedded: patch grid and, if it decides, noise response of each input that the patch embedding cut.
    skipped: no image is replayed, so that the host's own blocks show the baseline pass.
    versions: how often kept outputs had been written to when they were kept.
    """

    images: int | None = None
    embedded: list[tuple[Grid, Tensor | None]] = field(default_factory=list)
    valid: ValidMasks = None
    resolutions: list[Resolution] = field(default_factory=list)
    skipped: bool = False
    traces: list[Trace] = field(default_factory=list)
    baseline: dict[int, Any] = field(default_factory=dict)
    versions: dict[int, list[int]] = field(default_factory=dict)
    blocks_executed: int = 0


class _Forwards:
    """One thread's forwards, the latest and the next; ``valid`` masks hold for all inside `Loop.valid`."""

    def __init__(self, listens: bool, check: BlockOrderCheck) -> None:
        self.listens, self.check = listens, check
        self.latest, self.next = _Forward(), _Forward()
        self.valid: ValidMasks = None

    def begin(self) -> _Forward:
        """The next forward has reached the first block that matters."""
        self.latest, self.next = self.next, _Forward()
        if self.latest.valid is None:
            self.latest.valid = self.valid
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
        self.forwards = _Forwards(listens, BlockOrderCheck(vit, at))
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
        check_vit(vit, at, self._rule is not None)
        self._here = _PerThread(threading.get_ident() if this_thread else None, vit, at)
        self._handles: list[RemovableHandle] = []
        self._held_first: list[tuple[nn.Module, str, RemovableHandle]] = []
        self._shown: list[nn.Module] = []
        self._gathering: list[nn.Module] = []
        self._first = min(at.end, *at.keep, vit.depth)

    @property
    def trace(self) -> Trace | None:
        """The latest forward's trace, when asked for; with several resolutions per forward, see ``traces``."""
        return self.traces[0] if self.traces else None

    @property
    def traces(self) -> list[Trace]:
        """The latest forward's traces, one per resolution."""
        return self._here.forwards.latest.traces

    @property
    def baseline(self) -> dict[int, Any]:
        """Block index -> output of the kept block in the latest baseline pass, before the final norm."""
        forward = self._here.forwards.latest
        for index, then in forward.versions.items():
            if versions(forward.baseline[index]) != then:
                raise GramLoopError(
                    f"the kept output of block {index} of {self.vit.name} was written into by a later one, which works in "
                    "place; let blocks return new states, as in x = x + …"
                )
        return forward.baseline

    @property
    def blocks_executed(self) -> int:
        """Blocks that each image of the latest forward went through, the host's own among them."""
        return self._here.forwards.latest.blocks_executed

    def set_valid(self, mask: ValidMasks) -> None:
        """Say which patches of this thread's next forward are image and not padding: (B, h, w) or (B, N) bool.

        It holds for one forward of the model that was attached to, also for one that fails. Invalid patches take no
        part in drift, median and mean, and keep the baseline trajectory. A host that takes several resolutions at once
        gets a list of masks.
        """
        self._here.forwards.next.valid = mask

    @contextmanager
    def valid(self, mask: ValidMasks) -> Iterator[None]:
        """The same for every forward of this thread inside the ``with`` statement, and none after it."""
        forwards = self._here.forwards
        before, forwards.valid = forwards.valid, mask
        try:
            yield
        finally:
            forwards.valid = before

    def detach(self) -> None:
        """Remove every hook; the model is what it was before."""
        with registering:
            self._here.forwards.check.end()
            for handle in self._handles:
                handle.remove()
            hide_from_compiler(self._shown)
            if not any(loops_on(self.vit)):
                release(self.vit, self._gathering)
            self._handles, self._held_first, self._shown = [], [], []

    def __enter__(self) -> Loop:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def _register(self, model: nn.Module) -> None:
        vit, at, check = self.vit, self.route, self._here.forwards.check
        with registering:
            if any(self._here.meets(other._here) for other in loops_on(vit)):
                raise GramLoopError(f"{vit.name} has a replay attached already; detach() that one first")
            self._gathering = gather_in_forward(vit.blocks)
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
            self._shown = show_to_compiler([*hooked, *([vit.embedding] if vit.embedding else [])])

    def _add(self, block: nn.Module, hook: Callable[..., Any], before: bool = False) -> None:
        """Register a hook that stays before those of others: the host's captures must see the refined state."""
        register = block.register_forward_pre_hook if before else block.register_forward_hook
        handle = register(hook, with_kwargs=True, prepend=True)
        self._handles.append(handle)
        self._held_first.append((block, "_forward_pre_hooks" if before else "_forward_hooks", handle))

    def _before_forward(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not in_graph():
            self.vit.check_unchanged()
            keep_first(self._held_first)
            if args and isinstance(args[0], Tensor) and self._here.forwards.listens:
                self._here.forwards.next.images = args[0].shape[0]

    def _after_forward(self, *_: Any) -> None:
        if not in_graph():
            self._here.forwards.end()

    def _after_embedding(self, embedding: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        self._before_forward(embedding, args)  # a part of a model may be called by a method of its own
        if self._here.forwards.listens:
            response = noise_response(args[0]) if self._rule else None
            grid = embedded_grid(self.vit, args[0], output)
            self._here.forwards.next.embedded.append((grid, response))

    def _before_checked(self, block: nn.Module, args: Any, kwargs: Any = None) -> None:
        if self._here.forwards.listens and kwargs is not None and not in_graph():
            self._here.forwards.check.begin(args, kwargs)

    def _after_block(self, index: int, block: nn.Module, args: Any, *rest: Any) -> Any:
        forwards, at = self._here.forwards, self.route
        # Torch adds and removes a hook and the mark that it takes keyword arguments one after the other; in
        # between, a thread that did not wait for that calls it without them.
        if not forwards.listens or len(rest) < 2:
            return None
        kwargs, output = rest
        check_running(self.vit, block)
        forward = forwards.begin() if index == self._first else forwards.latest
        baseline_shown = at.at_final or index < at.end or (forward.skipped and index > at.end)
        if index in at.keep and baseline_shown:
            forward.baseline[index] = output[0] if isinstance(output, tuple) else output
            if not in_graph():
                forward.versions[index] = versions(output)
        if index not in at.steps:
            return None
        states = [self.vit.layout.tokens(state) for state in states_of(output)]
        if index == at.end:
            self._reach_window_end(forward, args, kwargs, states)
        resolutions = forward.resolutions  # none if attached while this forward was under way
        for each, tokens in zip(resolutions, states, strict=False):
            each.states[index] = tokens
        refined: list[Tensor] = []
        if resolutions and index == (at.last if at.at_final else at.end):
            with unobserved():
                refined = self._replay(forward)
        for each, tokens in zip(resolutions, refined or states, strict=False):
            if index == at.probe and each.trace is not None:
                each.trace.record_accepted(self.vit.patches(tokens))
        if index == max(at.steps):
            forward.resolutions = []
        if not refined:
            return None
        shaped = [each.shaped(tokens) for each, tokens in zip(resolutions, refined, strict=True)]
        forwards.check.pass_on(index, shaped)
        return with_states(output, shaped)

    def _reach_window_end(self, forward: _Forward, args: Any, kwargs: Any, states: list[Tensor]) -> None:
        """Check grids and masks against the states, measure what decides per image, and begin to trace."""
        vit, count, masks = self.vit, len(states), forward.valid
        given = [masks] if isinstance(masks, Tensor) else [None] * count if masks is None else masks
        if len(given) != count:
            raise GramLoopError(f"{len(given)} valid-patch masks were given for {count} inputs")
        embedded = forward.embedded[-count:] if len(forward.embedded) >= count else [(None, None)] * count
        forward.resolutions = Resolution.of(vit, args, kwargs)
        for each, Z, mask, (grid, response) in zip(forward.resolutions, states, given, embedded, strict=True):
            grid = each.grid or grid
            check_images(vit, Z, forward.images, kwargs)
            each.valid = check_patches(
                vit, Z, grid, host_mask(vit, Z, args, kwargs) if mask is None else mask
            )
            each.trace = Trace(grid) if self._trace else None
            if self._rule is not None:
                if response is None or len(response) != len(Z):
                    raise GramLoopError(
                        "the ViT embeds other images than its blocks see, so noise cannot decide"
                    )
                signal = image_noise(response, each.valid, grid).to(Z.device)
                each.share = share(self._rule, signal)
                if each.trace is not None:
                    each.trace.signal = signal
        forward.traces = [each.trace for each in forward.resolutions if each.trace is not None]
        forward.embedded, forward.blocks_executed = [], vit.depth

    def _replay(self, forward: _Forward) -> list[Tensor]:
        """Algorithm 1 on every resolution; nothing where no image is replayed."""
        at, vit, resolutions, refined = self.route, self.vit, forward.resolutions, []
        shares = [each.share for each in resolutions if each.share is not None and not each.share.is_meta]
        if not in_graph():  # a graph cannot ask
            forward.skipped = len(shares) == len(resolutions) and not any(bool(each.any()) for each in shares)
        for each in resolutions:
            Z, suffix = each.states[at.end], partial(self._suffix, each)
            if forward.skipped:
                if each.trace is not None:
                    each.trace.record_nothing(vit.layout.patches(Z), at.config.replays)
            elif not at.config.replays:
                suffix(Z)
            else:
                accepted = gram_gated_replay(
                    Z, each.run, suffix, vit.patches, at, vit.layout,
                    valid=each.valid, share=each.share, trace=each.trace,
                )  # fmt: skip
                refined.append(accepted)
        forward.blocks_executed += max(each.executed for each in resolutions)
        for index in {*at.keep} & {*resolutions[0].states} - {*forward.baseline}:
            kept = [each.shaped(each.states[index]) for each in resolutions]
            forward.baseline[index] = kept if resolutions[0].listed else kept[0]
        return refined

    def _suffix(self, given: Resolution, Z: Tensor) -> tuple[Tensor, Tensor]:
        """Line 1: the baseline's states after the probe and the last block; run as far as drift and ``keep`` need."""
        at, P, state = self.route, Z, Z
        if at.at_final:  # the host's own pass has shown them
            return given.states[at.probe], given.states[at.last]
        with torch.no_grad():
            for index in range(at.end + 1, at.reach + 1):
                state = given.run(index, index, state)
                P = state if index == at.probe else P
                if index in at.keep:
                    given.states[index] = state
        return P, state


def loops_on(vit: ViT) -> Iterator[Loop]:
    """What is attached to a ViT's blocks, once for each hook."""
    for block in vit.blocks:
        for hook in tuple(block._forward_hooks.values()):
            loop = getattr(getattr(hook, "func", None), "__self__", None)
            if isinstance(loop, Loop):
                yield loop
