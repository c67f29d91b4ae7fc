"""Algorithm 1 of the paper, with its placements and gates; comments name the paper's lines, symbols are the paper's.

`attach` runs this very function, from a hook on the window's last block (or on the last block). Lines 1, 11 and 12
otherwise belong to the host's own forward: prefix, window, suffix, taps and head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from gramloop.replay.config import ReplayConfig, Route
from gramloop.replay.gram import GramAnchor, Trace, interpolate, patch_gate, token_gate
from gramloop.replay.vit import TokenLayout

RunBlocks = Callable[[int, int, Tensor], Tensor]  # blocks first to last, inclusive, on a state (B, T, C)


def gram_gated_replay(
    Z: Tensor,
    run: RunBlocks,
    suffix: Callable[[Tensor], tuple[Tensor, Tensor]],
    patches: Callable[[Tensor], Tensor],
    settings: Route,
    layout: TokenLayout,
    *,
    valid: Tensor | None = None,
    share: Tensor | None = None,
    trace: Trace | None = None,
) -> Tensor:
    """The accepted state: Z_K at the window's end or, with ``update_at="final"``, Y_K at the last block.

    Args:
        Z: Z_0, the baseline's state at the window's end, (B, T, C).
        run: runs blocks of the host.
        suffix: the baseline's states after the probe and after the last block, of Z_0.
        patches: Patch(LN(Y)), the final-normed patches of a state, (B, T, C) -> (B, N, C).
        settings: K, gate, strength, eps, the window [s, e], the probe block and where the update is applied.
        layout: where the patches are among the tokens.
        valid: which patches are image and not padding, (B, N) bool.
        share: how much of the gate each image gets, (B,); all of it by default.
        trace: keeps drift, gate and step of every replay.
    """
    config, s, e, p, last = settings.config, settings.start, settings.end, settings.probe, settings.last
    at_final = settings.at_final
    P, Y = suffix(Z)  # line 1: Y_0 = S(Z_0), and P at the probe
    anchor = GramAnchor(patches(P), valid) if settings.measures else None  # line 2: Q_0
    X = Y if at_final else Z  # the state that is updated
    gated: tuple[Tensor, Tensor, Tensor | None] | None = None  # where strength is matched: G, proposal, drift
    del P, Y

    def probe(Z_hat: Tensor) -> tuple[Tensor, Tensor | None]:
        P_hat = run(e + 1, p, Z_hat) if anchor or at_final else Z_hat  # line 4: S, as far as the probe
        return P_hat, anchor.drift(patches(P_hat)) if anchor else None  # lines 5 and 6, without Gram matrices

    def accept(X: Tensor, X_hat: Tensor, d: Tensor | None, config: ReplayConfig) -> tuple[Tensor, Tensor]:
        finite = X_hat.isfinite().all(-1)  # (B, T); where a proposal is not finite, nothing moves
        g = patch_gate(layout.patches(X), d, config, valid)  # line 7
        g = torch.where(layout.patches(finite).to(g.device), g, 0.0)
        if share is not None:
            g = g * share[:, None].to(g.device)
        if config.gate == "none" and valid is None and share is None:
            return torch.where(finite[..., None], X_hat, X), g
        tokens = token_gate(g, layout.prefix, valid, layout.suffix)  # line 8
        return interpolate(X, X_hat, torch.where(finite, tokens.to(finite.device), 0.0)), g  # line 9

    for _ in range(config.replays):  # line 3
        Z_hat = run(s, e, Z)  # line 4: F
        P_hat, d = probe(Z_hat)
        X_hat = run(p + 1, last, P_hat) if at_final else Z_hat
        d_gate = d
        if config.strength == "matched" and not at_final:  # of the Gram-gated trajectory, which runs along
            if gated is None:
                gated = Z, Z_hat, d
            else:
                G, _ = accept(*gated, replace(config, gate="gram", strength=1.0))
                G_hat = run(s, e, G)
                gated = G, G_hat, probe(G_hat)[1]
            d_gate = gated[2]
        X_new, g = accept(X, X_hat, d_gate, config)
        if trace is not None and d is not None:
            trace.record(d, g, layout.patches(X_new - X), valid)
        X, Z = X_new, Z_hat if at_final else X_new  # the final filter loops on ungated
    if trace is not None and (not at_final or p == last):
        trace.anchor = anchor  # the accepted state will get to the probe
    return X  # lines 11 and 12: the host runs S and the head on it
