"""Algorithm 1 in its two placements: the accepted step is applied at the window's end, or at the last block.

Symbols are the paper's: Z is the state at the window's end, Y the state at the last block, K the number of
replays. A placement holds what stays the same over forwards; what belongs to one is in its `Forward`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from gramloop.core.call import BlockCall, States
from gramloop.core.config import ReplayConfig, Route, route
from gramloop.core.drift import Probe
from gramloop.core.forward import Forward
from gramloop.core.gate import interpolate, patch_gate, token_gate
from gramloop.core.layout import Layout
from gramloop.core.signals import Decision


@dataclass(frozen=True)
class _Placement:
    """What both placements share. ``keep`` and ``trace`` are those of `attach`."""

    config: ReplayConfig
    route: Route
    keep: tuple[int, ...]
    trace: bool

    @property
    def measures(self) -> bool:
        """Whether proposals are probed."""
        return self.config.replays > 0 and (self.config.measures_drift or self.trace)

    def _accept(
        self,
        forward: Forward,
        layout: Layout,
        states: States,
        proposals: States,
        drifts: list[Tensor] | None,
        shares: list[Tensor] | None = None,
    ) -> States:
        """Move each token its gate's share of the way; ``shares`` scale the gates of images, (B,) per entry."""
        config = self.config
        accepts_all = config.gate == "none" and config.trust is None and shares is None
        accepted = []
        for i, (state, proposal, mask) in enumerate(zip(states, proposals, forward.masks, strict=True)):
            drift = None if drifts is None else drifts[i]
            gate = patch_gate(layout.patches(state), drift, config, mask)
            finite = proposal.isfinite().all(-1)  # (B, T)
            gate = torch.where(layout.patches(finite).to(gate.device), gate, 0.0)
            if shares is not None:
                gate = gate * shares[i][:, None].to(gate.device)
            if accepts_all and mask is None:
                new = torch.where(finite[..., None], proposal, state)
            else:
                tokens = token_gate(gate, layout.prefix, mask, layout.suffix)
                new = interpolate(state, proposal, torch.where(finite, tokens.to(finite.device), 0.0))
            if forward.traces and drift is not None:
                forward.traces[i].record(drift, gate, layout.patches(new - state), mask)
            accepted.append(new)
        return accepted


class AtWindowEnd(_Placement):
    """Replay and gate at the window's end; the host goes on from what was accepted."""

    @property
    def steps(self) -> set[int]:
        """The blocks after which there is something to do."""
        return {self.route.end, self.route.probe} if self.trace else {self.route.end}

    @property
    def resumes(self) -> bool:
        """Whether the host goes on from the ordinary state after ``until``."""
        return self.config.replays > 0 and self.route.until < self.route.last

    @property
    def reach(self) -> int:
        """The last block that is run beside the host: for a proposal, the probe, a kept block or ``until``."""
        route = self.route
        kept = [index for index in self.keep if not self.resumes or index <= route.until]
        return max(
            [route.end, *kept, route.probe if self.measures else 0, route.until if self.resumes else 0]
        )

    @property
    def extra_blocks(self) -> int:
        """Blocks executed beside the host's own, by every replay and by the ordinary suffix."""
        route, config = self.route, self.config
        probe = route.probe if self.measures else route.end
        # of substeps the first is the host's own pass
        passes = 1 if config.substeps is None else config.substeps - 1
        proposal = passes * (route.end - route.start + 1) + probe - route.end
        return config.replays * proposal + self.reach - route.end

    def shows_ordinary(self, forward: Forward, index: int) -> bool:
        """Whether the host's own forward shows the ordinary output of a block."""
        end, until = self.route.end, self.route.until
        return index < end or (self.resumes and index > until) or (forward.skipped and index > end)

    def after_block(self, forward: Forward, index: int, call: BlockCall, states: States) -> States | None:
        """What is due after one of ``steps``; the states to go on with, where they are others."""
        refined = None
        if index == self.route.end:
            forward.reach_window_end(call, states, self.trace)
            refined = self._replay(forward, call, states)
            forward.blocks_executed += call.executed
            if not self.trace or (self.resumes and self.route.until < self.route.probe):
                forward.probe = None  # what was accepted never gets to the probe
        if index == self.route.probe and forward.probe is not None:
            forward.record_post_drift(states if refined is None else refined)
        return refined

    def _replay(self, forward: Forward, call: BlockCall, Z: States) -> States | None:
        """Z_0 -> Z_K; None where nothing is replayed."""
        run, layout, route, replays = call.run, call.host.layout, self.route, self.config.replays
        begun = self.config.substeps is None or forward.window_start  # else attached while this was under way
        if not replays or not begun:
            self._run_ordinary_suffix(forward, call, Z)
            return None
        decision = Decision(self.config.adaptive, layout, forward.masks, forward.traces)
        ordinary = decision.by_pixels(forward.noise) or decision.by_state(Z)
        if ordinary or decision.by_proposal(Z, proposal := self._propose(forward, call, Z)):
            forward.trace_skipped(Z, layout, replays)
            forward.skipped = True  # the host's own suffix is the ordinary pass, and the only one
            if route.end in self.keep:
                forward.ordinary[route.end] = call.as_output(Z)
            return None
        self._run_ordinary_suffix(forward, call, Z)
        for replay in range(replays):
            if replay:
                proposal = self._propose(forward, call, Z)
            drift = None
            if forward.probe is not None:
                with torch.no_grad():
                    drift = forward.probe.drift(run(route.end + 1, route.probe, proposal))
            skips = replay == 0 and drift is not None and decision.by_drift(drift)
            Z = self._accept(forward, layout, Z, proposal, drift, decision.shares)
            if skips:
                forward.trace_skipped(Z, layout, replays - 1)
                break
        return Z

    def _propose(self, forward: Forward, call: BlockCall, Z: States) -> States:
        """The window run on the state, or, from its input on, in substeps of which the host's pass is the first."""
        route, steps = self.route, self.config.substeps
        if steps is None:
            return call.run(route.start, route.end, Z)
        states, after = forward.window_start, Z
        forward.window_start = []
        for number in range(steps if steps > 1 else 0):
            if number:
                after = call.run(route.start, route.end, states)
            states = [_part_of_the_way(*each, steps) for each in zip(states, after, strict=True)]
        return states if steps > 1 else Z

    def _run_ordinary_suffix(self, forward: Forward, call: BlockCall, Z: States) -> None:
        """The ordinary pass after the window, as far as the probe or a kept block needs it."""
        route = self.route
        states = Z
        with nullcontext() if self.resumes else torch.no_grad():
            for index in range(route.end, self.reach + 1):
                if index > route.end:
                    states = call.run(index, index, states)
                if index in self.keep:
                    forward.ordinary[index] = call.as_output(states)
                if index == route.probe and self.measures:
                    forward.probe = Probe(call.patches, states, forward.masks)
                if index == route.until and self.resumes:
                    forward.resumed = states


class AtLastBlock(_Placement):
    """Loop on ungated, and gate what that does to the last block; the host's own pass stays ordinary until then."""

    resumes = False

    @property
    def steps(self) -> set[int]:
        """The blocks after which there is something to do."""
        return {self.route.end, self.route.probe, self.route.last}

    @property
    def reach(self) -> int:
        """The last block that is run beside the host."""
        return self.route.last if self.config.replays else self.route.end

    @property
    def extra_blocks(self) -> int:
        """Blocks executed beside the host's own, by every replay."""
        return self.config.replays * (self.route.last - self.route.start + 1)

    def shows_ordinary(self, forward: Forward, index: int) -> bool:
        """Whether the host's own forward shows the ordinary output of a block: always, before the update."""
        return True

    def after_block(self, forward: Forward, index: int, call: BlockCall, states: States) -> States | None:
        """What is due after one of ``steps``; the states to go on with, where they are others."""
        route = self.route
        if index == route.end:
            forward.reach_window_end(call, states, self.trace)
            forward.call, forward.window_end = call, states
        if forward.call is None:  # attached while this forward was under way
            return None
        if index == route.probe and self.measures:
            forward.probe = Probe(forward.call.patches, states, forward.masks)
        if index != route.last or not self.config.replays:
            return None
        Y = self._replay(forward, forward.call, states)
        forward.blocks_executed += forward.call.executed
        if self.trace and route.probe == route.last:
            forward.record_post_drift(Y)
        forward.window_end, forward.call, forward.probe = [], None, None
        return Y

    def _replay(self, forward: Forward, call: BlockCall, Y: States) -> States:
        """Y_0 -> Y_K."""
        run, route, Z = call.run, self.route, forward.window_end
        for _ in range(self.config.replays):
            Z = run(route.start, route.end, Z)
            probed = run(route.end + 1, route.probe, Z)
            drift = None if forward.probe is None else forward.probe.drift(probed)
            Y = self._accept(forward, call.host.layout, Y, run(route.probe + 1, route.last, probed), drift)
        return Y


def _part_of_the_way(state: Tensor, proposal: Tensor, steps: int) -> Tensor:
    return interpolate(state, proposal, torch.full(state.shape[:2], 1 / steps, device=state.device))


def placement(
    config: ReplayConfig, depth: int, keep: Sequence[int] = (), trace: bool = False
) -> AtWindowEnd | AtLastBlock:
    """The placement that a configuration asks for, on ``depth`` blocks."""
    kind = AtLastBlock if config.update_at == "final" else AtWindowEnd
    return kind(config, route(config, depth), tuple(keep), trace)
