"""Algorithm 1 of the paper, with its placements and gates; comments name the paper's lines, symbols are the paper's.

`attach` runs this very function, from a hook on the window's last block (or on the last block). Lines 1, 11 and 12
otherwise belong to the host's own forward: prefix, window, suffix, taps and head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from gramloop.replay.config import Route
from gramloop.replay.gram import GramAnchor, interpolate, patch_gate, token_gate
from gramloop.replay.trace import Trace
from gramloop.replay.vit import TokenLayout

RunBlocks = Callable[[int, int, Tensor], Tensor]  # blocks first to last, inclusive, on a state (B, T, C)
Suffix = Callable[
    [Tensor], tuple[Tensor, Tensor]
]  # Z_0 -> the states after the probe and after the last block


def gram_gated_replay(
    Z: Tensor,
    run: RunBlocks,
    patches: Callable[[Tensor], Tensor],
    settings: Route,
    layout: TokenLayout,
    *,
    suffix: Suffix | None = None,
    window_input: Tensor | None = None,
    valid: Tensor | None = None,
    share: Tensor | None = None,
    trace: Trace | None = None,
) -> Tensor:
    """The accepted state: Z_K at the window's end or, with ``update_at="final"``, Y_K at the last block.

    Args:
        Z: Z_0, the baseline's state at the window's end, (B, T, C).
        run: runs blocks of the host.
        patches: Patch(LN(Y)), the final-normed patches of a state, (B, T, C) -> (B, N, C).
        settings: K, gate, strength, eps, the window [s, e], the probe block and where the update is applied.
        layout: where the patches are among the tokens.
        suffix: the baseline's suffix, where the caller knows it or wants more of it; else it is run here.
        window_input: what the window was given in the baseline pass, for substeps.
        valid: which patches are image and not padding, (B, N) bool.
        share: how much of the gate each image gets, (B,); all of it by default.
        trace: keeps drift, gate and step of every replay.
    """
    config, s, e, p, last = settings.config, settings.start, settings.end, settings.probe, settings.last
    at_final = config.update_at == "final"
    accept = partial(_accept, settings=settings, layout=layout, valid=valid, share=share)
    P, Y = suffix(Z) if suffix else _suffix(Z, run, settings)  # line 1: Y_0 = S(Z_0), and P at the probe
    anchor = GramAnchor(patches(P), valid) if settings.measures else None  # line 2: Q_0
    X = Y if at_final else Z  # the state that is updated
    G, G_hat, d_G = Z, Z, None  # the Gram-gated trajectory, where the strength is matched to it
    del P, Y

    def probe(Z_hat: Tensor) -> tuple[Tensor, Tensor | None]:
        P_hat = run(e + 1, p, Z_hat) if anchor or at_final else Z_hat  # line 4: S, as far as the probe
        return P_hat, anchor.drift(patches(P_hat)) if anchor else None  # lines 5 and 6, without Gram matrices

    def follow_gated(G: Tensor, G_hat: Tensor, d_G: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        gate = patch_gate(layout.patches(G), d_G, replace(config, gate="gram", strength=1.0), valid)
        G, _ = accept(G, G_hat, gate)
        G_hat = run(s, e, G)
        return G, G_hat, probe(G_hat)[1]

    for _ in range(config.replays):  # line 3
        Z_hat = (
            run(s, e, Z) if window_input is None else _substeps(Z, run, settings, window_input)
        )  # line 4: F
        P_hat, d = probe(Z_hat)
        X_hat = run(p + 1, last, P_hat) if at_final else Z_hat
        if config.strength == "matched" and not at_final:  # the mean gate of the gated trajectory G
            G, G_hat, d_G = follow_gated(G, G_hat, d_G) if d_G is not None else (Z, Z_hat, d)
        g = patch_gate(layout.patches(X), d if d_G is None else d_G, config, valid)  # line 7
        X_new, g = accept(X, X_hat, g)  # lines 8 and 9
        if trace is not None and d is not None:
            trace.record(d, g, layout.patches(X_new - X), valid)
        X, Z = X_new, Z_hat if at_final else X_new  # the final filter loops on ungated
    if trace is not None:
        trace.anchor = anchor
    return X  # lines 11 and 12: the host runs S and the head on it


def _suffix(Z: Tensor, run: RunBlocks, settings: Route) -> tuple[Tensor, Tensor]:
    P = run(settings.end + 1, settings.probe, Z)
    return P, run(settings.probe + 1, settings.last, P)


def _substeps(Z: Tensor, run: RunBlocks, settings: Route, window_input: Tensor) -> Tensor:
    """The window's input moved in K steps of 1/K, of which the host's own pass, which ended in Z, gives the first."""
    steps = settings.config.substeps or 1
    if steps == 1:
        return Z
    state, after = window_input, Z
    for number in range(steps):
        if number:
            after = run(settings.start, settings.end, state)
        state = interpolate(state, after, torch.full(state.shape[:2], 1 / steps, device=state.device))
    return state


def _accept(
    X: Tensor,
    X_hat: Tensor,
    g: Tensor,
    settings: Route,
    layout: TokenLayout,
    valid: Tensor | None,
    share: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Move each token its gate's share of the way, and not at all to where a proposal is not finite.

    Returns the accepted state (B, T, C) and the patch gates that were applied, (B, N).
    """
    finite = X_hat.isfinite().all(-1)  # (B, T)
    g = torch.where(layout.patches(finite).to(g.device), g, 0.0)
    if share is not None:
        g = g * share[:, None].to(g.device)
    if settings.config.gate == "none" and valid is None and share is None:
        return torch.where(finite[..., None], X_hat, X), g
    tokens = token_gate(g, layout.prefix, valid, layout.suffix)  # line 8
    return interpolate(X, X_hat, torch.where(finite, tokens.to(finite.device), 0.0)), g  # line 9
