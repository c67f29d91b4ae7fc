"""Give a frozen ViT Gram-gated replay: one forward hook, undone by removing it."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gramloop.core.call import BlockCall, hidden_states, with_states
from gramloop.core.chain_watch import Places, watch_chain
from gramloop.core.config import PAPER_DEPTH, ReplayConfig, ReplaySettings, default_window
from gramloop.core.forward import PerThread
from gramloop.core.hosts import Host, find_host, grid_shown
from gramloop.core.known import head_fingerprint, known_replay
from gramloop.core.noise import noise_response
from gramloop.core.replay import AtLastBlock, AtWindowEnd, placement
from gramloop.core.settings import read_replay
from gramloop.core.trace import Trace
from gramloop.core.watch import hide_from_compiler, show_to_compiler
from gramloop.errors import GramLoopError, MeasuredElsewhereWarning, UntunedWindowWarning


def attach(
    model: nn.Module,
    config: ReplayConfig | str | Path | None = None,
    *,
    trace: bool = False,
    keep: Sequence[int] = (),
    blocks: Sequence[nn.Module] | None = None,
    norm: nn.Module | Callable[[Tensor], Tensor] | None = None,
    prefix: int | None = None,
    which: str | None = None,
    this_thread: bool = False,
    **settings: Unpack[ReplaySettings],
) -> Loop:
    """Let ``model``'s ViT replay a window of its blocks in every forward, until ``loop.detach()``.

    In a ``with`` statement it ends with the block; `attached` is another name for that use. Threads may call one
    attached model. Attach and detach while none of them is inside a forward, or for ``this_thread``.

    model: a ViT, or any model that contains exactly one; heads, adapters and weights stay as they are.
    config: the replay, or a settings file as `gramloop tune` writes it; single fields can be given, or
        overridden, as keywords (``window=(21, 23)``, ``replays=2``, ...; see `ReplayConfig`). With nothing
        given, a backbone that `gramloop.core.known` lists gets the replay that was measured on it, with a warning
        unless it was good with this very head; any other the published one, with a warning where that is a guess.
    trace: keep drift and gate maps of the latest forward in ``loop.trace``.
    keep: blocks whose output in the ordinary pass is kept in ``loop.ordinary``, for paired predictions.
    blocks, norm, prefix: for a ViT of an unknown family: its blocks in order, its final norm, and how many
        class and register tokens stand before the patches.
    which: the path of the ViT in ``model``, or of a part that contains it, where a model holds several.
    this_thread: replay in forwards of the calling thread alone. Others run the model as if nothing were attached,
        or with what they attach for themselves in this way.
    """
    host = find_host(model, blocks, norm, prefix, which)
    if isinstance(config, str | Path):
        config = read_replay(config)
    loop = Loop(host, _settle(model, host, config, settings), trace, tuple(keep), this_thread)
    loop._register(model)
    return loop


attached = attach
"""`attach`, as it reads in a ``with`` statement."""


def check_host(host: Host, config: ReplayConfig) -> None:
    """Refuse a replay that reaches into blocks of a host that are no plain chain, as `attach` would."""
    _check_reach(host, placement(config, host.depth))


def _check_reach(host: Host, placed: AtWindowEnd | AtLastBlock) -> None:
    if placed.config.replays or placed.reach > placed.route.end:
        host.check_plain_chain(placed.reach)


def _settle(
    model: nn.Module, host: Host, config: ReplayConfig | None, settings: ReplaySettings
) -> ReplayConfig:
    """The replay that the arguments of `attach` mean on this host."""
    if config is None and not settings and (known := known_replay(host)) is not None and known.replay:
        if not (known.good and known.is_of_head(head_fingerprint(model, host))):
            warnings.warn(
                f"this backbone gets what was measured on it, which may not hold for your head and images ({known}); "
                "gramloop.known_settings(model) lists all that was measured, gramloop tune finds what to use",
                MeasuredElsewhereWarning,
                stacklevel=3,
            )
        return known.replay
    if not isinstance(config, ReplayConfig | None):
        raise GramLoopError(
            f"config is {config!r}; it is a ReplayConfig, the path of a settings file, or left out"
        )
    settled = replace(config or ReplayConfig(), **settings)
    if settled.window is None and settled.replays and host.depth != PAPER_DEPTH:
        start, end = default_window(host.depth)
        warnings.warn(
            f"window [{start}, {end}] is the published one scaled to {host.depth} blocks, a guess: nobody measured "
            "it on this backbone, and it may hurt; gramloop tune finds a window, or none",
            UntunedWindowWarning,
            stacklevel=3,
        )
    return settled


class Loop:
    """A replay attached to a model. Made by `attach`. The latest forward is that of the thread that asks."""

    def __init__(
        self,
        host: Host,
        config: ReplayConfig,
        trace: bool,
        keep: tuple[int, ...],
        this_thread: bool,
    ) -> None:
        """Check that this host can run this configuration."""
        self.host = host
        self._placement = placement(config, host.depth, keep, trace)
        self.route = self._placement.route
        self.config = replace(config, window=(self.route.start, self.route.end))
        self._first = min(self.route.end, *keep, host.depth)
        self._here = PerThread.of_this(this_thread)
        self._handles: list[RemovableHandle] = []
        self._places = Places()
        self._shown: list[nn.Module] = []
        self._check()

    @property
    def trace(self) -> Trace | None:
        """The latest forward's trace, when asked for; with several resolutions per forward, see ``traces``."""
        return self.traces[0] if self.traces else None

    @property
    def traces(self) -> list[Trace]:
        """The latest forward's traces, one per resolution."""
        return self._here.forwards.latest.traces

    @property
    def ordinary(self) -> dict[int, Any]:
        """Block index -> output of the kept block in the latest ordinary pass, before the final norm."""
        return self._here.forwards.latest.unchanged(self.host)

    @property
    def blocks_executed(self) -> int:
        """Blocks that the latest forward ran, the host's own among them."""
        return self._here.forwards.latest.blocks_executed

    def set_valid(self, mask: Tensor | Sequence[Tensor] | None) -> None:
        """Say which patches of this thread's next forward are image and not padding: (B, h, w) or (B, N) bool.

        It holds for one forward of the model that was attached to, also for one that fails. Invalid patches take no part in drift, median and mean, and keep the
        ordinary trajectory. A host that takes several resolutions at once gets a list of masks.
        """
        self._here.forwards.next.valid = mask

    @contextmanager
    def valid(self, mask: Tensor | Sequence[Tensor] | None) -> Iterator[None]:
        """The same for every forward of this thread inside the ``with`` statement, and none after it."""
        forwards = self._here.forwards
        before, forwards.valid = forwards.valid, mask
        try:
            yield
        finally:
            forwards.valid = before

    def detach(self) -> None:
        """Remove every hook; the model is what it was before."""
        with _registering:
            for handle in self._handles:
                handle.remove()
            self._handles.clear()
            hide_from_compiler(self._shown)
            self._shown = []

    def __enter__(self) -> Loop:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def _check(self) -> None:
        if any(block.training for block in self.host.blocks):
            raise GramLoopError(
                f"{self.host.name} is in training mode; replay is for frozen models: call model.eval() first"
            )
        for index in self._placement.keep:
            if not 0 <= index < self.host.depth:
                raise GramLoopError(f"keep names block {index}; the blocks are 0 to {self.host.depth - 1}")
        _check_reach(self.host, self._placement)
        if self._wants_noise and self.host.embedding is None:
            raise GramLoopError(
                f"{self.host.name} does not show the image that its patches are cut from, so its noise cannot decide; "
                "take another signal, such as length"
            )

    @property
    def _wants_noise(self) -> bool:
        rule = self.config.adaptive
        return rule is not None and rule.signal == "noise" and self.config.replays > 0

    def _register(self, model: nn.Module) -> None:
        with _registering:
            if any(self._here.meets(other._here) for other in loops_on(self.host)):
                raise GramLoopError(
                    f"{self.host.name} has a replay attached already; detach() that one first"
                )
            blocks, embedding, add = self.host.blocks, self.host.embedding, self._handles.append
            for index in sorted({*self._placement.keep, *self._placement.steps}):
                hook = partial(self._after_block, index)
                # first: the host's own capture hooks must see the refined state
                add(self._places.first_after(blocks[index], hook))
            if self.config.substeps is not None:
                add(blocks[self.route.start].register_forward_pre_hook(self._before_window, with_kwargs=True))
            if self._placement.resumes:
                add(self._places.first_before(blocks[self.route.until + 1], self._before_resumed))
            self._handles += watch_chain(self.host, self._placement, self._here, self._places)
            if embedding is not None:
                add(embedding.register_forward_hook(self._after_embedding))
            outermost = getattr(
                model, "_orig_mod", model
            )  # what torch.compile returns holds the model that it runs
            for whole in {outermost, self.host.vit}:
                add(whole.register_forward_pre_hook(self._before_forward))
                add(whole.register_forward_hook(self._after_forward, always_call=True))
            steps = {*self._placement.keep, *self._placement.steps, self.route.start}
            hooked = {*(blocks[index] for index in steps), *([embedding] if embedding else [])}
            self._shown = show_to_compiler([*hooked])

    def _after_block(self, index: int, block: nn.Module, args: Any, *rest: Any) -> Any:
        forwards, placement = self._here.forwards, self._placement
        # Torch adds and removes a hook and the mark that it takes keyword arguments one after the other; in
        # between, a thread that did not wait for that calls it without them.
        if not forwards.listens or len(rest) < 2:
            return None
        kwargs, output = rest
        if not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1:
            raise GramLoopError(
                f"{self.host.name} is run again inside a backward pass, by activation checkpointing: a replay would "
                "not be the same there; turn checkpointing off, or detach()"
            )
        if block.training:
            raise GramLoopError(f"{self.host.name} was put into training mode with a replay attached")
        forward = forwards.begin() if index == self._first else forwards.latest
        if index in placement.keep and placement.shows_ordinary(forward, index):
            forward.keep(index, output[0] if isinstance(output, tuple) else output)
        if index not in placement.steps:
            return None
        call = BlockCall(self.host, args, kwargs)
        refined = placement.after_block(forward, index, call, call.states_of(output))
        if refined is None:
            return None
        shaped = call.shaped(refined)
        forwards.chain.hand_on(index, shaped)
        return with_states(output, shaped)

    def _before_window(self, block: nn.Module, args: Any, kwargs: Any = None) -> None:
        """Keep what the window is given, from which substeps begin; a copy, since a block may write into it."""
        forwards = self._here.forwards
        if forwards.listens and kwargs is not None:
            forward = forwards.latest if self._first < self.route.start else forwards.next
            tokens = self.host.layout.tokens
            forward.window_start = [tokens(state).clone() for state in hidden_states(args, kwargs)]

    def _before_resumed(self, block: nn.Module, args: Any, kwargs: Any = None) -> tuple[Any, Any] | None:
        """The first block after ``until`` is given the ordinary state."""
        forward = self._here.forwards.latest
        states, forward.resumed = forward.resumed, []
        if not states or kwargs is None:
            return None
        call = BlockCall(self.host, args, kwargs)
        self._here.forwards.chain.resume(
            self.host, self.route.until, hidden_states(args, kwargs), call.shaped(states)
        )
        return call.given(states)

    def _before_forward(self, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self.host.check_same()
            self._places.take()

    def _after_forward(self, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self._here.forwards.end()

    def _after_embedding(self, embedding: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        self._before_forward()  # a part of a model may be called by a method of its own
        if self._here.forwards.listens:
            forward = self._here.forwards.next
            forward.grids.append(grid_shown(embedding, args[0], output))
            if self._wants_noise:
                forward.responses.append(noise_response(args[0]))


_registering = threading.RLock()  # torch can give two threads that register hooks at once the same handle


def loops_on(host: Host) -> Iterator[Loop]:
    """What is attached to a host's blocks, once for each hook."""
    for block in host.blocks:
        for hook in tuple(block._forward_hooks.values()):
            loop = getattr(getattr(hook, "func", None), "__self__", None)
            if isinstance(loop, Loop):
                yield loop
