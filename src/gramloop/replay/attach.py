"""Give a frozen ViT Gram-gated replay: one forward hook that runs `gramloop.replay.algorithm`, undone by removing it."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gramloop.errors import GramLoopError, UntunedWindowWarning
from gramloop.replay.adaptive import image_signal, noise, noise_response, share
from gramloop.replay.algorithm import gram_gated_replay
from gramloop.replay.blocks import (
    BlockCall,
    hidden_states,
    hide_from_compiler,
    show_to_compiler,
    states_of,
    with_hidden,
    with_states,
)
from gramloop.replay.config import PAPER_DEPTH, ReplayConfig, ReplaySettings, read_replay
from gramloop.replay.cost import Route, route
from gramloop.replay.guards import (
    BlockOrderCheck,
    check_grid,
    check_mask,
    check_running,
    embedded_grid,
    keep_first,
    registering,
)
from gramloop.replay.trace import Trace
from gramloop.replay.vit import Grid, Norm, ViT, find_vit

Masks = Tensor | Sequence[Tensor] | None
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
    this_thread: bool = False,
    **settings: Unpack[ReplaySettings],
) -> Loop:
    """Let ``model``'s ViT replay a window of its blocks in every forward, until ``loop.detach()``.

    In a ``with`` statement it ends with the block; `attached` is another name for that use. Threads may call one
    attached model. Attach and detach while none of them is inside a forward, or for ``this_thread``.

    The published placement takes three hooks on the ViT: after the window's last block, where Algorithm 1 runs;
    after the patch embedding, for the grid; before the block in front of the window, where others' hooks are checked.
    Two more on the model (and on the ViT inside it) begin and end a forward. Every kept block adds one, a trace the
    probe's, ``update_at="final"`` the last block's, ``until`` and ``substeps`` one before a block.

    Args:
        model: a ViT, or any model that contains exactly one; heads, adapters and weights stay as they are.
        config: the replay, or a settings file as `gramloop tune` writes it; single fields can be given, or overridden,
            as keywords (``window=(21, 23)``, ``replays=2``, ...; see `ReplayConfig`). By default the published
            replay, with a warning where its window is only scaled to this depth.
        trace: keep drift and gate maps of the latest forward in ``loop.trace``.
        keep: blocks whose output in the baseline pass is kept in ``loop.baseline``, for paired predictions.
        blocks, norm, prefix: describe a ViT of an unknown family: its blocks in order, its final norm, and how many
            class and register tokens come before the patches.
        which: the path of the ViT in ``model``, or of a part that contains it, where a model holds several.
        this_thread: replay in forwards of the calling thread alone. Others run the model as if nothing were attached,
            or with what they attach in this way.

    Returns:
        The attached replay, with what it measured in the latest forward.
    """
    vit = find_vit(model, blocks, norm, prefix, which)
    if isinstance(config, str | Path):
        config = read_replay(config)
    if not isinstance(config, ReplayConfig | None):
        raise GramLoopError(
            f"config is {config!r}; it is a ReplayConfig, the path of a settings file, or left out"
        )
    config = replace(config or ReplayConfig(), **settings) if settings else config or ReplayConfig()
    loop = Loop(vit, route(config, vit.depth, keep, trace), trace, this_thread)
    if config.window is None and config.replays and vit.depth != PAPER_DEPTH:
        warnings.warn(
            f"window [{loop.route.start}, {loop.route.end}] is the published one scaled to {vit.depth} blocks, a guess: "
            "it was not measured on this backbone, and may hurt; gramloop tune finds a window, or none",
            UntunedWindowWarning,
            stacklevel=2,
        )
    loop._register(model)
    return loop


attached = attach
"""`attach`, as it reads in a ``with`` statement."""


def check_replay_fits(vit: ViT, at: Route) -> None:
    """Refuse a replay that reaches into blocks of a ViT that are no plain chain, as `attach` would."""
    if at.config.replays or at.reach > at.end:
        vit.check_plain_chain(at.reach)


@dataclass
class _Entry:
    """One resolution of one forward; most hosts pass one through their blocks. ``states``: the baseline's, by block."""

    call: BlockCall
    states: dict[int, Tensor]
    valid: Tensor | None
    share: Tensor | None
    trace: Trace | None
    window_input: Tensor | None


@dataclass
class _Forward:
    """One forward: what is known before the window's end, and what it leaves.

    embedded: patch grid and, if it decides, noise response of each input that the patch embedding cut.
    valid: masks of valid patches as they were given.
    skipped: no image is replayed, so that the host's own blocks show the baseline pass.
    versions: how often kept outputs had been written to when they were kept.
    """

    embedded: list[tuple[Grid, Tensor | None]] = field(default_factory=list)
    valid: Masks = None
    window_inputs: list[Tensor] = field(default_factory=list)
    entries: list[_Entry] = field(default_factory=list)
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
        self.valid: Masks = None

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
        start = at.start if at.config.replays else at.end
        check = BlockOrderCheck(vit, start, at.reach, at.resumes and at.until == at.reach)
        self.forwards = _Forwards(thread is None or thread == threading.get_ident(), check)
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

    def __init__(self, vit: ViT, at: Route, trace: bool, this_thread: bool) -> None:
        self.vit, self.route, config = vit, at, at.config
        self.config = config if config.window else replace(config, window=(at.start, at.end))
        self._trace = trace
        self._here = _PerThread(threading.get_ident() if this_thread else None, vit, at)
        self._handles: list[RemovableHandle] = []
        self._held_first: list[tuple[nn.Module, str, RemovableHandle]] = []
        self._shown: list[nn.Module] = []
        self._steps = {
            at.end,
            *([at.probe] if trace or at.at_final else []),
            *([at.last] if at.at_final else []),
        }
        self._first = min(at.end, *at.keep, vit.depth)
        self._baseline_states = {
            *at.keep,
            *([at.probe] if at.measures else []),
            *([at.until] if at.resumes else []),
        }
        # else what was accepted never gets to the probe
        self._probes_accepted = at.probe == at.last if at.at_final else not at.resumes or at.probe <= at.until
        self._wants_noise = (
            config.replays > 0 and config.adaptive is not None and config.adaptive.signal == "noise"
        )
        if any(block.training for block in vit.blocks):
            raise GramLoopError(
                f"{vit.name} is in training mode; replay is for frozen models: call model.eval() first"
            )
        check_replay_fits(vit, at)
        if self._wants_noise and vit.embedding is None:
            raise GramLoopError(
                f"{vit.name} does not show the image that its patches are cut from, so its noise cannot decide; "
                "take another signal, such as length"
            )

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
            if _versions(forward.baseline[index]) != then:
                raise GramLoopError(
                    f"the kept output of block {index} of {self.vit.name} was written into by a later one, which works in "
                    "place; let blocks return new states, as in x = x + …"
                )
        return forward.baseline

    @property
    def blocks_executed(self) -> int:
        """Blocks that each image of the latest forward went through, the host's own among them."""
        return self._here.forwards.latest.blocks_executed

    def set_valid(self, mask: Masks) -> None:
        """Say which patches of this thread's next forward are image and not padding: (B, h, w) or (B, N) bool.

        It holds for one forward of the model that was attached to, also for one that fails. Invalid patches take no
        part in drift, median and mean, and keep the baseline trajectory. A host that takes several resolutions at once
        gets a list of masks.
        """
        self._here.forwards.next.valid = mask

    @contextmanager
    def valid(self, mask: Masks) -> Iterator[None]:
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
            self._handles, self._held_first = [], []
            hide_from_compiler(self._shown)
            self._shown = []

    def __enter__(self) -> Loop:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def _register(self, model: nn.Module) -> None:
        vit, at = self.vit, self.route
        with registering:
            if any(self._here.meets(other._here) for other in loops_on(vit)):
                raise GramLoopError(f"{vit.name} has a replay attached already; detach() that one first")
            for index in sorted({*at.keep, *self._steps}):
                self._add(vit.blocks[index], partial(self._after_block, index))
            if at.config.replays or at.reach > at.end:
                check = self._here.forwards.check
                self._add(vit.blocks[check.first], self._before_watched, before=True)
            if at.config.substeps is not None:
                self._add(vit.blocks[at.start], self._before_window, before=True)
            if at.resumes:
                self._add(vit.blocks[at.until + 1], self._before_resumed, before=True)
            if vit.embedding is not None:
                self._handles.append(vit.embedding.register_forward_hook(self._after_embedding))
            # what torch.compile returns holds the model that it runs
            for whole in {getattr(model, "_orig_mod", model), vit.module}:
                self._handles.append(whole.register_forward_pre_hook(self._before_forward))
                self._handles.append(whole.register_forward_hook(self._after_forward, always_call=True))
            hooked = {vit.blocks[index] for index in {*at.keep, *self._steps, at.start}}
            self._shown = show_to_compiler([*hooked, *([vit.embedding] if vit.embedding else [])])

    def _add(self, block: nn.Module, hook: Callable[..., Any], before: bool = False) -> None:
        """Register a hook that stays before those of others: the host's captures must see the refined state."""
        register = block.register_forward_pre_hook if before else block.register_forward_hook
        handle = register(hook, with_kwargs=True, prepend=True)
        self._handles.append(handle)
        self._held_first.append((block, "_forward_pre_hooks" if before else "_forward_hooks", handle))

    def _before_forward(self, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self.vit.check_unchanged()
            keep_first(self._held_first)

    def _after_forward(self, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self._here.forwards.end()

    def _after_embedding(self, embedding: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        self._before_forward()  # a part of a model may be called by a method of its own
        if self._here.forwards.listens:
            response = noise_response(args[0]) if self._wants_noise else None
            self._here.forwards.next.embedded.append((embedded_grid(self.vit, args[0], output), response))

    def _before_watched(self, block: nn.Module, args: Any, kwargs: Any = None) -> None:
        if self._here.forwards.listens and kwargs is not None and not torch.compiler.is_compiling():
            self._here.forwards.check.begin(args, kwargs)

    def _before_window(self, block: nn.Module, args: Any, kwargs: Any = None) -> None:
        """Keep what the window is given, from which substeps begin; a copy, since a block may write into it."""
        forwards = self._here.forwards
        if forwards.listens and kwargs is not None:
            forward = forwards.latest if self._first < self.route.start else forwards.next
            states = states_of(hidden_states(args, kwargs))
            forward.window_inputs = [self.vit.layout.tokens(state).clone() for state in states]

    def _before_resumed(self, block: nn.Module, args: Any, kwargs: Any = None) -> tuple[Any, Any] | None:
        """The first block after ``until`` is given the baseline state."""
        forwards, until = self._here.forwards, self.route.until
        entries, forwards.latest.entries = forwards.latest.entries, []
        if not entries or kwargs is None or forwards.latest.skipped:
            return None
        hidden = hidden_states(args, kwargs)
        states = [entry.call.shaped(entry.states[until]) for entry in entries]
        forwards.check.resume(until, states_of(hidden), states)
        return with_hidden(args, kwargs, with_states(hidden, states))

    def _after_block(self, index: int, block: nn.Module, args: Any, *rest: Any) -> Any:
        forwards, at = self._here.forwards, self.route
        # Torch adds and removes a hook and the mark that it takes keyword arguments one after the other; in
        # between, a thread that did not wait for that calls it without them.
        if not forwards.listens or len(rest) < 2:
            return None
        kwargs, output = rest
        check_running(self.vit, block)
        forward = forwards.begin() if index == self._first else forwards.latest
        if index in at.keep and self._shows_baseline(forward, index):
            forward.baseline[index] = output[0] if isinstance(output, tuple) else output
            if not torch.compiler.is_compiling():
                forward.versions[index] = _versions(output)
        if index not in self._steps:
            return None
        states = [self.vit.layout.tokens(state) for state in states_of(output)]
        if index == at.end:
            self._reach_window_end(forward, args, kwargs, states)
        if not forward.entries:  # attached while this forward was under way
            return None
        refined = self._step(forward, index, states)
        shaped = [entry.call.shaped(each) for entry, each in zip(forward.entries, refined, strict=False)]
        if index == max(self._steps) and not at.resumes:
            forward.entries = []
        if not refined:
            return None
        forwards.check.pass_on(index, shaped)
        return with_states(output, shaped)

    def _shows_baseline(self, forward: _Forward, index: int) -> bool:
        """Whether the host's own forward shows the baseline output of a block."""
        at = self.route
        after = (at.resumes and index > at.until) or (forward.skipped and index > at.end)
        return at.at_final or index < at.end or after

    def _reach_window_end(self, forward: _Forward, args: Any, kwargs: Any, states: list[Tensor]) -> None:
        """Check grids and masks against the states, measure what decides per image, and begin to trace."""
        vit, rule, count = self.vit, self.config.adaptive, len(states)
        calls, masks = BlockCall.of(vit, args, kwargs), forward.valid
        given = [masks] if isinstance(masks, Tensor) else [None] * count if masks is None else list(masks)
        if len(given) != count:
            raise GramLoopError(f"{len(given)} valid-patch masks were given for {count} inputs")
        embedded = forward.embedded[-count:] if len(forward.embedded) >= count else []
        for i, (call, Z, mask) in enumerate(zip(calls, states, given, strict=True)):
            grid, response = embedded[i] if embedded else (None, None)
            grid = call.grid or grid
            check_grid(Z, grid, vit.layout)
            valid = None if mask is None else check_mask(mask, Z, grid, vit)
            entry = _Entry(call, {self.route.end: Z}, valid, None, None, None)
            entry.trace = Trace(grid) if self._trace else None
            entry.window_input = forward.window_inputs[i] if forward.window_inputs else None
            if rule is not None and self.config.replays:
                level = None if response is None else noise(response, valid, grid)
                signal = image_signal(rule, vit.layout.patches(Z), valid, level)
                entry.share = share(rule, signal)
                if entry.trace is not None:
                    entry.trace.signal = signal
            forward.entries.append(entry)
        forward.traces = [entry.trace for entry in forward.entries if entry.trace is not None]
        forward.embedded, forward.window_inputs = [], []
        forward.blocks_executed = vit.depth

    def _step(self, forward: _Forward, index: int, states: list[Tensor]) -> list[Tensor]:
        """What is due after a block: the states to continue with, none where these stay."""
        at, refined = self.route, list[Tensor]()
        if at.at_final:
            for entry, tokens in zip(forward.entries, states, strict=True):
                entry.states[index] = tokens
        if index == (at.last if at.at_final else at.end):
            refined = self._replay(forward)
        if index == at.probe:
            for entry, tokens in zip(forward.entries, refined or states, strict=True):
                if entry.trace is not None and entry.trace.anchor is not None:
                    entry.trace.record_accepted(self.vit.patches(tokens))
        return refined

    def _replay(self, forward: _Forward) -> list[Tensor]:
        """Algorithm 1 on every resolution; nothing where no image is replayed."""
        config, at, vit, refined = self.config, self.route, self.vit, list[Tensor]()
        # a compiled graph cannot ask whether all images are passed over
        shares = [entry.share for entry in forward.entries if not torch.compiler.is_compiling()]
        forward.skipped = all(each is not None and not bool(each.any()) for each in shares or [None])
        for entry in forward.entries:
            Z = entry.states[at.end]
            if forward.skipped:
                if entry.trace is not None:
                    entry.trace.record_nothing(vit.layout.patches(Z), config.replays)
            elif not config.replays or (config.substeps is not None and entry.window_input is None):
                self._suffix(entry, Z)
            else:
                more = {"window_input": entry.window_input, "valid": entry.valid, "share": entry.share}
                suffix, run = partial(self._suffix, entry), entry.call.run
                refined.append(
                    gram_gated_replay(
                        Z, run, vit.patches, at, vit.layout, suffix=suffix, trace=entry.trace, **more
                    )
                )
                if entry.trace is not None and not self._probes_accepted:
                    entry.trace.anchor = None
        forward.blocks_executed += max(entry.call.executed for entry in forward.entries)
        for index in {*at.keep} & {*forward.entries[0].states} - {*forward.baseline}:
            kept = [entry.call.shaped(entry.states[index]) for entry in forward.entries]
            forward.baseline[index] = kept if forward.entries[0].call.listed else kept[0]
        return refined

    def _suffix(self, entry: _Entry, Z: Tensor) -> tuple[Tensor, Tensor]:
        """The baseline's states after the probe and the last block; run as far as drift, ``keep`` or ``until`` needs it."""
        at, state = self.route, Z
        if not at.at_final:  # else the host's own pass has shown them
            with nullcontext() if at.resumes else torch.no_grad():
                for index in range(at.end + 1, at.reach + 1):
                    state = entry.call.run(index, index, state)
                    if index in self._baseline_states:
                        entry.states[index] = state
        return entry.states.get(at.probe, Z), entry.states.get(at.last, Z)


def loops_on(vit: ViT) -> Iterator[Loop]:
    """What is attached to a ViT's blocks, once for each hook."""
    for block in vit.blocks:
        for hook in tuple(block._forward_hooks.values()):
            loop = getattr(getattr(hook, "func", None), "__self__", None)
            if isinstance(loop, Loop):
                yield loop


def _versions(output: Any) -> list[int]:
    return [state._version for state in states_of(output) if not state.is_inference()]
