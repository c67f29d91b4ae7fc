"""Give a frozen ViT Gram-gated replay: one forward hook, undone by removing it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gramloop.core.call import BlockCall, states_of, with_states
from gramloop.core.config import PAPER_DEPTH, ReplayConfig, ReplaySettings, Route, default_window, route
from gramloop.core.hosts import Host, PatchGrid, find_host
from gramloop.core.known import known_setting
from gramloop.core.replay import Masks, Probe, Replay, States, all_skipped
from gramloop.core.settings import read_replay
from gramloop.core.signals import length, share, spread, step
from gramloop.core.trace import Trace
from gramloop.errors import GramLoopError, UntunedWindowWarning


def attach(
    model: nn.Module,
    config: ReplayConfig | str | Path | None = None,
    *,
    trace: bool = False,
    keep: Sequence[int] = (),
    blocks: Sequence[nn.Module] | None = None,
    norm: nn.Module | Callable[[Tensor], Tensor] | None = None,
    prefix: int | None = None,
    **settings: Unpack[ReplaySettings],
) -> Loop:
    """Let ``model``'s ViT replay a window of its blocks in every forward, until ``loop.detach()``.

    model: a ViT, or any model that contains exactly one; heads, adapters and weights stay as they are.
    config: the replay, or a settings file as `gramloop tune` writes it; single fields can be given, or
        overridden, as keywords (``window=(21, 23)``, ``replays=2``, ...; see `ReplayConfig`). With nothing
        given, a backbone that `gramloop.core.known` lists gets its measured setting, any other the published one.
    trace: keep drift and gate maps of the latest forward in ``loop.trace``.
    keep: blocks whose output in the ordinary pass is kept in ``loop.ordinary``, for paired predictions.
    blocks, norm, prefix: for a ViT of an unknown family: its blocks in order, its final norm, and how many
        class and register tokens stand before the patches.
    """
    host = find_host(model, blocks, norm, prefix)
    loop = Loop(host, _settle(host, config, settings), trace, tuple(keep))
    loop._register()
    return loop


def _settle(host: Host, config: ReplayConfig | str | Path | None, settings: ReplaySettings) -> ReplayConfig:
    """The replay that the arguments of `attach` mean on this host."""
    if isinstance(config, str | Path):
        config = read_replay(config)
    if config is None and not settings and (known := known_setting(host)) is not None:
        return known.replay
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


@contextmanager
def attached(
    model: nn.Module,
    config: ReplayConfig | str | Path | None = None,
    *,
    trace: bool = False,
    keep: Sequence[int] = (),
    blocks: Sequence[nn.Module] | None = None,
    norm: nn.Module | Callable[[Tensor], Tensor] | None = None,
    prefix: int | None = None,
    **settings: Unpack[ReplaySettings],
) -> Iterator[Loop]:
    """`attach` for the length of a ``with`` block."""
    loop = attach(model, config, trace=trace, keep=keep, blocks=blocks, norm=norm, prefix=prefix, **settings)
    try:
        yield loop
    finally:
        loop.detach()


class Loop:
    """A replay attached to a model. Made by `attach`.

    trace: the latest forward's `Trace`, when asked for; with several resolutions per forward, see ``traces``.
    ordinary: block index -> output of the kept block in the latest ordinary pass, before the final norm.
    blocks_executed: blocks that the latest forward ran, the host's own among them.
    """

    def __init__(self, host: Host, config: ReplayConfig, trace: bool, keep: tuple[int, ...]) -> None:
        """Check that this host can run this configuration."""
        self.host = host
        self.place: Route = route(config, host.depth)
        self.config = replace(config, window=(self.place.start, self.place.end))
        self.traces: list[Trace] = []
        self.ordinary: dict[int, Any] = {}
        self.blocks_executed = 0
        self._keep = keep
        self._trace = trace
        self._valid: Tensor | Sequence[Tensor] | None = None
        self._grid = PatchGrid()
        self._handles: list[RemovableHandle] = []
        self._probe: Probe | None = None
        self._window_end: States = []
        self._resumed: States = []  # the ordinary state at ``until``, where the host goes on from it
        self._masks: Masks = []
        self._call: BlockCall | None = None
        self._idle = False
        self._check()

    @property
    def trace(self) -> Trace | None:
        """The latest forward's trace, or None."""
        return self.traces[0] if self.traces else None

    def set_valid(self, mask: Tensor | Sequence[Tensor] | None) -> None:
        """Say which patches of the next forward are image and not padding: (B, h, w) or (B, N) bool.

        It holds for one forward. Invalid patches take no part in drift, median and mean, and keep the
        ordinary trajectory. A host that takes several resolutions at once gets a list of masks.
        """
        self._valid = mask

    def detach(self) -> None:
        """Remove every hook; the model is what it was before."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _check(self) -> None:
        if any(block.training for block in self.host.blocks):
            raise GramLoopError(
                f"{self.host.name} is in training mode; replay is for frozen models: call model.eval() first"
            )
        if any(_is_loop_hook(hook) for block in self.host.blocks for hook in block._forward_hooks.values()):
            raise GramLoopError(f"{self.host.name} has a replay attached already; detach() that one first")
        for index in self._keep:
            if not 0 <= index < self.host.depth:
                raise GramLoopError(f"keep names block {index}; the blocks are 0 to {self.host.depth - 1}")
        self._check_chain()

    def _check_chain(self) -> None:
        """Blocks that replays, probes and the ordinary suffix run by themselves must form a plain chain."""
        place, final = self.place, self.config.update_at == "final"
        runs = [] if final else [index for index in self._keep if index > place.end]
        if self.config.replays:
            runs.append(place.last if final else place.until if self._resumes else place.end)
        if self._measures:
            runs.append(place.probe)
        if runs:
            self.host.check_plain_chain(max(runs))

    @property
    def _measures(self) -> bool:
        return self.config.replays > 0 and (self.config.measures_drift or self._trace)

    @property
    def _resumes(self) -> bool:
        """Whether the host goes on from the ordinary state after ``until``."""
        return self.config.replays > 0 and self.place.until < self.place.last

    def _register(self) -> None:
        place = self.place
        watched = {*self._keep, place.end}
        if self.config.update_at == "final":
            watched |= {place.probe, place.last}
        elif self._trace:
            watched.add(place.probe)
        for index in sorted(watched):
            # prepend: the host's own capture hooks must see the refined state
            handle = self.host.blocks[index].register_forward_hook(
                partial(self._after_block, index), with_kwargs=True, prepend=True
            )
            self._handles.append(handle)
        if self._resumes:
            handle = self.host.blocks[place.until + 1].register_forward_pre_hook(
                self._before_resumed, with_kwargs=True
            )
            self._handles.append(handle)
        if self.host.patch_embedding is not None:
            self._handles.append(self.host.patch_embedding.register_forward_hook(self._grid.after_embedding))

    def _after_block(self, index: int, block: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        if block.training:
            raise GramLoopError(f"{self.host.name} was put into training mode with a replay attached")
        if index in self._keep and self._is_ordinary(index):
            self.ordinary[index] = output
        refined = None
        if index == self.place.end:
            refined = self._at_window_end(BlockCall.of(self.host, args, kwargs), states_of(output))
        if self.config.update_at == "final" and index >= self.place.end:
            refined = self._on_ordinary_suffix(index, states_of(output))
        elif index == self.place.probe and self._probe is not None and self._trace:
            self._record_post_drift(states_of(output) if refined is None else refined)
        return None if refined is None else with_states(output, refined)

    def _before_resumed(self, block: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """The first block after ``until`` is given the ordinary state."""
        states, self._resumed = self._resumed, []
        return BlockCall.of(self.host, args, kwargs).given(states) if states else None

    def _is_ordinary(self, index: int) -> bool:
        """Whether the host's own forward shows the ordinary output of a block."""
        return (
            index < self.place.end
            or self.config.update_at == "final"
            or (self._resumes and index > self.place.until)
            or (self._idle and index > self.place.end)
        )

    def _at_window_end(self, call: BlockCall, Z: States) -> States | None:
        config = self.config
        grids = self._grid.take(Z, self.host.prefix)
        self.traces = [Trace(grid) for grid in grids] if self._trace else []
        self.blocks_executed = self.host.depth
        self._masks = self._masks_for(Z)
        self._probe = None
        self._resumed = []
        self._idle = False
        if config.update_at == "final":
            self._call, self._window_end = call, Z
            return None
        shares, first = self._decide(call, Z)
        if shares is not None and all_skipped(shares):
            self._skip(call, Z)
            return None
        self._run_ordinary_suffix(call, Z)
        refined = self._replay(call).at_window_end(Z, shares, first) if config.replays else None
        self.blocks_executed += call.executed
        if not self._trace:
            self._probe = None
        return refined

    def _decide(self, call: BlockCall, Z: States) -> tuple[list[Tensor] | None, States | None]:
        """Each image's share of the gate, (B,) per entry, and the first proposal if that took one.

        None where nothing is decided, or where the drift will decide.
        """
        rule, place = self.config.adaptive, self.place
        if rule is None or not self.config.replays or rule.signal == "drift":
            return None, None
        patches = [tokens[:, self.host.prefix :] for tokens in Z]
        proposal = None
        if rule.signal == "step":
            proposal = call.chain.run(place.start, place.end, Z)
            moved = [tokens[:, self.host.prefix :] for tokens in proposal]
            signals = [step(*each) for each in zip(patches, moved, self._masks, strict=True)]
        else:
            measure = length if rule.signal == "length" else spread
            signals = [measure(*each) for each in zip(patches, self._masks, strict=True)]
        for trace, signal in zip(self.traces, signals, strict=False):
            trace.signal = signal
        return [share(rule, signal) for signal in signals], proposal

    def _skip(self, call: BlockCall, Z: States) -> None:
        """No image is replayed: the host's own suffix is the ordinary pass, and the only one."""
        self._idle = True
        self.blocks_executed += call.executed
        if self.place.end in self._keep:
            self.ordinary[self.place.end] = call.as_output(Z)
        for trace, tokens in zip(self.traces, Z, strict=False):
            trace.skip(tokens[:, self.host.prefix :], self.config.replays)

    def _run_ordinary_suffix(self, call: BlockCall, Z: States) -> None:
        """The ordinary pass after the window, as far as the probe or a kept block needs it."""
        place = self.place
        kept = [index for index in self._keep if not self._resumes or index <= place.until]
        reach = max(
            [place.probe if self._measures else place.end, *kept, place.until if self._resumes else 0]
        )
        states = Z
        with nullcontext() if self._resumes else torch.no_grad():
            for index in range(place.end, reach + 1):
                if index > place.end:
                    states = call.chain.run(index, index, states)
                if index in self._keep:
                    self.ordinary[index] = call.as_output(states)
                if index == place.probe and self._measures:
                    self._probe = Probe(call.chain, states, self._masks)
                if index == place.until and self._resumes:
                    self._resumed = states

    def _on_ordinary_suffix(self, index: int, states: States) -> States | None:
        """Update at the last block: the host's own suffix is the ordinary pass."""
        place, call = self.place, self._call
        assert call is not None
        if index == place.probe and self._measures:
            self._probe = Probe(call.chain, states, self._masks)
        if index != place.last or not self.config.replays:
            return None
        Y = self._replay(call).at_last_block(self._window_end, states)
        self.blocks_executed += call.executed
        if self._trace and place.probe == place.last:
            self._record_post_drift(Y)
        self._window_end, self._call, self._probe = [], None, None
        return Y

    def _replay(self, call: BlockCall) -> Replay:
        return Replay(call.chain, self.place, self.config, self._probe, self._masks, self.traces)

    def _record_post_drift(self, states: States) -> None:
        assert self._probe is not None
        for trace, drift in zip(self.traces, self._probe.drift(states), strict=True):
            trace.post_drift = trace.as_map(drift)
        self._probe = None

    def _masks_for(self, states: States) -> Masks:
        given, self._valid = self._valid, None
        if given is None:
            return [None] * len(states)
        masks = [given] if isinstance(given, Tensor) else list(given)
        if len(masks) != len(states):
            raise GramLoopError(f"{len(masks)} valid-patch masks were given for {len(states)} inputs")
        return [self._mask_for(mask, tokens) for mask, tokens in zip(masks, states, strict=True)]

    def _mask_for(self, mask: Tensor, tokens: Tensor) -> Tensor:
        expected = (tokens.shape[0], tokens.shape[1] - self.host.prefix)
        flat = mask.flatten(1) if mask.ndim == 3 else mask
        if mask.dtype != torch.bool or tuple(flat.shape) != expected:
            raise GramLoopError(
                f"the valid-patch mask is {mask.dtype} of shape {tuple(mask.shape)}; this forward has "
                f"{expected[0]} images of {expected[1]} patches, so it is bool of shape {expected} or (B, h, w)"
            )
        return flat.to(tokens.device)


def _is_loop_hook(hook: object) -> bool:
    return isinstance(hook, partial) and isinstance(getattr(hook.func, "__self__", None), Loop)
