"""Algorithm 1 over a chain of blocks. Knows no model.

Symbols are the paper's: Z is the state at the window's end, Y the state at the last block, [s, e] the
window, K the number of replays. States come as lists, because some hosts push several resolutions through
their blocks at once; each entry (B, T, C) is gated on its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gramloop.core.config import ReplayConfig, Route
from gramloop.core.drift import GramAnchor
from gramloop.core.gate import gram_gate, interpolate, masked_median, mean_gate, token_gate
from gramloop.core.signals import median, share
from gramloop.core.trace import Trace

States = list[Tensor]
Masks = Sequence[Tensor | None]


@dataclass(frozen=True)
class Chain:
    """The host's blocks as the algorithm sees them.

    run: blocks first to last (inclusive; none when last < first) applied to a state.
    norm: the encoder's final norm.
    prefix: how many class and register tokens stand before the patches.
    """

    run: Callable[[int, int, States], States]
    norm: Callable[[Tensor], Tensor]
    prefix: int

    def patches(self, tokens: Tensor) -> Tensor:
        """Final-normed patches, (B, T, C) -> (B, N, C)."""
        return self.norm(tokens[:, self.prefix :])


class Probe:
    """Measures states at the probe block against the ordinary pass."""

    def __init__(self, chain: Chain, ordinary: States, valid: Masks) -> None:
        """Anchor on the ordinary pass's state at the probe block."""
        self._chain = chain
        with torch.no_grad():
            self._anchors = [
                GramAnchor(chain.patches(tokens), mask) for tokens, mask in zip(ordinary, valid, strict=True)
            ]

    def drift(self, states: States) -> list[Tensor]:
        """Gram drift of every patch, one (B, N) per entry."""
        with torch.no_grad():
            return [
                anchor.drift(self._chain.patches(tokens))
                for anchor, tokens in zip(self._anchors, states, strict=True)
            ]


@dataclass(frozen=True)
class Replay:
    """Everything that stays the same over the replays of one forward.

    probe: where drift is measured, or None where nothing depends on it.
    valid: a mask of valid patches, (B, N) bool, per entry of the state, or None.
    traces: one per entry, or none at all.
    """

    chain: Chain
    place: Route
    config: ReplayConfig
    probe: Probe | None
    valid: Masks
    traces: Sequence[Trace]

    def at_window_end(
        self, Z: States, shares: list[Tensor] | None = None, first: States | None = None
    ) -> States:
        """Replay and gate at the window's end: Z_0 -> Z_K.

        shares: how much of the gate each image gets, (B,) per entry, where that is decided.
        first: the first proposal, where it is known.
        """
        run, place = self.chain.run, self.place
        for replay in range(self.config.replays):
            proposal = first if first is not None and replay == 0 else run(place.start, place.end, Z)
            drift = None
            if self.probe is not None:
                with torch.no_grad():
                    drift = self.probe.drift(run(place.end + 1, place.probe, proposal))
            if replay == 0 and drift is not None and self._decides_by_drift:
                shares = self._shares_by_drift(drift)
            Z = self._accept(Z, proposal, drift, shares)
            if replay == 0 and self._decides_by_drift and shares is not None and all_skipped(shares):
                for trace, tokens in zip(self.traces, Z, strict=False):  # as many maps as any other image has
                    trace.skip(tokens[:, self.chain.prefix :], self.config.replays - 1)
                break
        return Z

    @property
    def _decides_by_drift(self) -> bool:
        return self.config.adaptive is not None and self.config.adaptive.signal == "drift"

    def _shares_by_drift(self, drifts: list[Tensor]) -> list[Tensor]:
        assert self.config.adaptive is not None
        signals = [median(drift, mask) for drift, mask in zip(drifts, self.valid, strict=True)]
        for trace, signal in zip(self.traces, signals, strict=False):
            trace.signal = signal
        return [share(self.config.adaptive, signal) for signal in signals]

    def at_last_block(self, Z: States, Y: States) -> States:
        """Loop on ungated, and gate what it does to the last block's output: Y_0 -> Y_K."""
        run, place = self.chain.run, self.place
        for _ in range(self.config.replays):
            Z = run(place.start, place.end, Z)
            probed = run(place.end + 1, place.probe, Z)
            drift = None if self.probe is None else self.probe.drift(probed)
            Y = self._accept(Y, run(place.probe + 1, place.last, probed), drift)
        return Y

    def _accept(
        self,
        states: States,
        proposals: States,
        drifts: list[Tensor] | None,
        shares: list[Tensor] | None = None,
    ) -> States:
        prefix = self.chain.prefix
        accepted = []
        for i, (state, proposal, mask) in enumerate(zip(states, proposals, self.valid, strict=True)):
            drift = None if drifts is None else drifts[i]
            gate = _patch_gate(state[:, prefix:], drift, self.config, mask)
            if shares is not None:
                gate = gate * shares[i][:, None].to(gate.device)
            if self._accepts_all and mask is None and shares is None:
                new = proposal
            else:
                new = interpolate(state, proposal, token_gate(gate, prefix, mask))
            if self.traces and drift is not None:
                self.traces[i].record(drift, gate, (new - state)[:, prefix:], mask)
            accepted.append(new)
        return accepted

    @property
    def _accepts_all(self) -> bool:
        return self.config.gate == "none" and self.config.trust is None


def all_skipped(shares: list[Tensor]) -> bool:
    """Whether no image of the batch is to be replayed; inside a compiled graph that cannot be asked."""
    return not torch.compiler.is_compiling() and not any(bool(each.any()) for each in shares)


def _patch_gate(patches: Tensor, drift: Tensor | None, config: ReplayConfig, valid: Tensor | None) -> Tensor:
    if drift is not None and config.gates_by_drift:
        gate = gram_gate(drift, config.eps, valid)
        if config.strength == "matched":
            gate = (mean_gate(gate, valid) * config.matched_to).expand_as(gate)
        elif config.strength != 1.0:
            gate = gate * config.strength
    else:
        level = 1.0 if config.gate == "none" else float(config.strength)
        gate = torch.full(patches.shape[:2], level, dtype=torch.float32, device=patches.device)
    if drift is not None and config.trust is not None:
        gate = gate * _trusted(drift, config.trust, valid)
    return gate if valid is None else torch.where(valid, gate, 0.0)


def _trusted(drift: Tensor, trust: float, valid: Tensor | None) -> Tensor:
    """The share of a proposal that its median drift leaves, (B, N) -> (B, 1); 1 up to ``trust``.

    A patch without a finite drift gets gate 0 by the Gram gate alone, so the others decide.
    """
    counted = drift.isfinite() if valid is None else drift.isfinite() & valid
    return (trust / masked_median(drift, counted).clamp(min=trust)).to(drift.dtype)
