"""Every run of the reference's explicit Algorithm 1, through every library's ViT."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gramloop
from golden import load_golden
from golden_hosts import HOSTS

RUNS: dict[str, dict[str, Any]] = {
    "gramloop": {},
    "gramloop_k1": {"replays": 1},
    "gramloop_k4": {"replays": 4},
    "endpoint": {"gate_at": "end"},
    "final_filter": {"update_at": "final"},
    "ungated": {"gate": "none"},
    "uniform": {"gate": "uniform", "strength": 0.4},
    "masked": {},
}
FEATURES = 1e-5  # what the reference agrees to between libraries, on features of scale 4
RELATIVE = 1e-4  # drift and gate: the reference forms float64 Gram matrices of float32 features


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("host_name", HOSTS)
@pytest.mark.parametrize("style", ["backbone_7b", "backbone_s", "backbone_splus"])
def test_run_of_the_reference(style: str, host_name: str, run: str) -> None:
    golden = load_golden(style)
    host = HOSTS[host_name](golden)
    taps, values = golden.config["taps"], golden.values
    settings = {"window": tuple(golden.config["window"]), **RUNS[run]}
    trace = f"{run}.drift.1" in values
    with torch.no_grad(), gramloop.attached(host.model, trace=trace, **settings) as loop:
        loop.set_valid(values["masked.valid"] if run == "masked" else None)
        with gramloop.counting(host.blocks) as counter:
            refined = host.taps(values["x"], taps)

    blocks = int(values[f"{run}.blocks"])
    assert counter.blocks == loop.blocks_executed == gramloop.cost(8, **settings).blocks == blocks
    for index, tokens in refined.items():
        parts = (
            values[f"{run}.cls.{index}"][:, None],
            values[f"{run}.reg.{index}"],
            values[f"{run}.tap.{index}"],
        )
        assert (tokens - torch.cat(parts, dim=1)).abs().max() <= FEATURES
    if trace:
        _check_trace(loop.trace, values, run)


def _check_trace(trace: gramloop.Trace | None, values: dict[str, Tensor], run: str) -> None:
    assert trace is not None
    assert len(trace.drift) == sum(name.startswith(f"{run}.drift.") for name in values)
    for k, (drift, gate) in enumerate(zip(trace.drift, trace.gate, strict=True), start=1):
        assert drift.shape == gate.shape == (2, 4, 6)
        torch.testing.assert_close(drift.flatten(1), values[f"{run}.drift.{k}"], rtol=RELATIVE, atol=0)
        torch.testing.assert_close(gate.flatten(1), values[f"{run}.gate.{k}"], rtol=RELATIVE, atol=0)
