from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn

import gramloop.core.known
from gramloop import ReplayConfig, attach
from gramloop.core.hosts import find_host
from gramloop.core.known import KNOWN, Known, fingerprint, known_setting
from gramloop.errors import UntunedWindowWarning


class Chain(nn.Module):
    def __init__(self, seed: int = 0, depth: int = 6) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(depth))
        self.norm = nn.LayerNorm(8)
        with torch.no_grad():
            self.norm.weight += 0.1 * torch.randn(8, generator=torch.Generator().manual_seed(seed))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    @property
    def parts(self) -> dict[str, object]:
        return {"blocks": list(self.blocks), "norm": self.norm, "prefix": 1}

    def fingerprint(self) -> str:
        return fingerprint(find_host(self, **self.parts))  # type: ignore[arg-type]


def test_a_fingerprint_follows_the_weights_and_survives_casting() -> None:
    same = Chain().fingerprint()
    assert same == Chain().fingerprint() == Chain().to(torch.bfloat16).fingerprint()
    assert len({same, Chain(seed=1).fingerprint(), Chain(depth=7).fingerprint()}) == 3


def test_a_norm_that_is_a_function_cannot_be_recognised() -> None:
    chain = Chain()
    assert fingerprint(find_host(chain, list(chain.blocks), torch.tanh, 1)) == ""


def test_a_known_backbone_gets_its_setting_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain()
    setting = ReplayConfig(window=(2, 2), replays=1, strength=0.2)
    entry = Known("a chain", chain.fingerprint(), setting, "", "", "", "2026-11-16")
    monkeypatch.setattr(gramloop.core.known, "KNOWN", (entry,))
    loop = attach(chain, **chain.parts)  # type: ignore[arg-type]
    assert loop.config == setting
    loop.detach()
    with pytest.warns(UntunedWindowWarning):  # half a setting is the user's own
        loop = attach(chain, replays=3, **chain.parts)  # type: ignore[arg-type]
    assert loop.config.replays == 3
    assert loop.config.strength == 1.0
    loop.detach()


def test_a_stranger_is_not_known() -> None:
    chain = Chain()
    assert known_setting(find_host(chain, **chain.parts)) is None  # type: ignore[arg-type]


def test_the_table_is_complete() -> None:
    assert len({entry.fingerprint for entry in KNOWN}) == len(KNOWN)
    for entry in KNOWN:
        assert all(getattr(entry, field.name) for field in dataclasses.fields(entry))
        assert entry.replay.window is not None
