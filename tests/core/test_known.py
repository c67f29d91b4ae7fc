from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn

import gramloop.core.known
from gramloop import ReplayConfig, attach, attached
from gramloop.core.hosts import find_host
from gramloop.core.known import KNOWN, Known, Measured, fingerprint, head_fingerprint, known_settings
from gramloop.errors import MeasuredElsewhereWarning, UntunedWindowWarning
from library_models import build


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


class Headed(nn.Module):
    """A known kind of ViT with somebody's head."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.vit = build("DINOv3ViTModel")[0]
        torch.manual_seed(seed)
        self.decode = nn.Sequential(nn.BatchNorm1d(32), nn.Linear(32, 3))
        self.eval()

    def fingerprints(self) -> tuple[str, str]:
        host = find_host(self)
        return fingerprint(host), head_fingerprint(self, host)


def entry(model: Headed, **changes: object) -> Known:
    backbone, head = model.fingerprints()
    setting = ReplayConfig(window=(2, 2), replays=1, strength=0.2)
    whole = Known(
        "a ViT", backbone, "a small head", head, setting, "", "a few images", Measured(0.5, 0.2, 0.8),
        Measured(0.0, -0.1, 0.1), 1.4, "2026-11-17",
    )  # fmt: skip
    return dataclasses.replace(whole, **changes)


def test_a_heads_fingerprint_follows_its_weights_wherever_it_lies() -> None:
    model = Headed()
    head = model.fingerprints()[1]
    wrapped = nn.ModuleDict({"inner": model})
    assert head_fingerprint(wrapped, find_host(wrapped)) == head
    assert head_fingerprint(model.vit, find_host(model)) == ""
    assert Headed(seed=1).fingerprints()[1] not in ("", head)
    assert Headed(seed=1).fingerprints()[0] == model.fingerprints()[0]
    model.to(torch.bfloat16)
    assert model.fingerprints()[1] == head


@pytest.mark.filterwarnings("error")
def test_a_good_setting_of_this_very_head_is_taken_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Headed()
    worse = entry(model, replay=ReplayConfig(window=(3, 3)), gain=Measured(0.3, 0.1, 0.5))
    monkeypatch.setattr(gramloop.core.known, "KNOWN", (worse, entry(model)))
    with attached(model) as loop:
        assert loop.config == entry(model).replay


@pytest.mark.parametrize(
    "changes",
    [
        {"gain": Measured(0.5, -0.1, 0.9)},
        {"clean": Measured(-0.2, -0.4, 0.0)},
        {"head_fingerprint": "0" * 16},
        {"head_fingerprint": ""},
    ],
    ids=["perhaps no gain", "a loss on clean images", "another head", "no head told"],
)
def test_any_other_is_taken_with_its_figures_told(monkeypatch: pytest.MonkeyPatch, changes: dict) -> None:
    model = Headed()
    poor = entry(model, **changes)
    monkeypatch.setattr(gramloop.core.known, "KNOWN", (poor,))
    with pytest.warns(MeasuredElsewhereWarning) as told:
        loop = attach(model)
    assert str(poor.gain) in str(told[0].message)
    assert str(poor.clean) in str(told[0].message)
    assert loop.config == poor.replay
    loop.detach()
    with (
        pytest.warns(UntunedWindowWarning),
        attached(model, replays=3) as loop,
    ):  # half a setting is the user's own
        assert loop.config.strength == 1.0


def test_what_attach_cannot_run_is_listed_and_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Headed()
    free = entry(model, replay=None, beside="recentre:c=1", gain=Measured(2.0, 1.5, 2.5), work=1.0)
    both = entry(model, beside="recentre:c=1", head_fingerprint="0" * 16, gain=Measured(3.0, 1.5, 2.5))
    monkeypatch.setattr(gramloop.core.known, "KNOWN", (both, free))
    assert known_settings(model) == (free, both)  # of this head before others
    assert free.mitigations == "recentre:c=1"
    assert both.mitigations == "recentre:c=1+replay:window=2-2,replays=1,strength=0.2"
    assert [each.good for each in (free, both)] == [True, True]
    with pytest.warns(UntunedWindowWarning), attached(model) as loop:
        assert loop.config.replays == 2
    assert "recentre:c=1: +2.00 [+1.50, +2.50] under shift" in str(free)


def test_a_stranger_is_not_known() -> None:
    assert known_settings(Headed()) == ()


def test_the_table_is_complete() -> None:
    from gramloop.mitigations import parse_mitigations

    for one in KNOWN:
        empty = {"replay", "beside", "head_fingerprint"}
        fields = {field.name for field in dataclasses.fields(one)} - empty
        assert all(getattr(one, field) for field in fields)
        assert one.gain.low <= one.gain.change <= one.gain.high
        assert one.clean.low <= one.clean.change <= one.clean.high
        assert parse_mitigations(one.mitigations)
        assert one.replay is None or one.replay.window is not None
