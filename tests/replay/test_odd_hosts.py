"""What hosts and their users do that nobody foresaw: it is right, or it is refused in a sentence."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import gramloop
from gramloop.replay.gram import GramAnchor
from library_models import build, outputs

WINDOW = (2, 3)


def some_patches() -> Tensor:
    mask = torch.zeros(2, 4, 4, dtype=torch.bool)
    mask[:, :3] = True
    return mask


def test_a_mask_does_not_outlive_a_forward_that_failed(vit: nn.Module, x: Tensor) -> None:
    with gramloop.attached(vit, window=WINDOW) as loop:
        unmasked = outputs(vit, x)[0]
        loop.set_valid(some_patches())
        with pytest.raises(RuntimeError, match="channels"):
            vit(torch.randn(2, 5, 64, 64))
        assert torch.equal(outputs(vit, x)[0], unmasked)


def test_a_mask_holds_for_one_forward(vit: nn.Module, x: Tensor) -> None:
    with gramloop.attached(vit, window=WINDOW) as loop:
        unmasked = outputs(vit, x)[0]
        loop.set_valid(some_patches())
        assert not torch.equal(outputs(vit, x)[0], unmasked)
        assert torch.equal(outputs(vit, x)[0], unmasked)


def test_a_mask_of_width_by_height_is_refused(vit: nn.Module) -> None:
    with gramloop.attached(vit, window=WINDOW) as loop:
        loop.set_valid(torch.ones(1, 5, 3, dtype=torch.bool))
        with pytest.raises(gramloop.GramLoopError, match=r"bool of shape \(1, 15\) or \(1, 3, 5\)"):
            outputs(vit, torch.randn(1, 3, 48, 80))


class Features(nn.Module):
    def __init__(self, vit: nn.Module) -> None:
        super().__init__()
        self.vit = vit

    def forward(self, x: Tensor) -> Tensor:
        return self.vit(x).last_hidden_state


def test_a_model_that_was_compiled_and_run_before_is_replayed(vit: nn.Module, x: Tensor) -> None:
    torch._dynamo.reset()
    model = Features(vit).eval()
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        plain = compiled(x)
        for settings in ({"replays": 2}, {"replays": 1}, {"replays": 1, "gate": "uniform", "strength": 0.3}):
            with gramloop.attached(vit, window=WINDOW, **settings) as loop:
                expected = model(x)
                assert torch.equal(compiled(x), expected)
                assert loop.blocks_executed > 6
            assert torch.equal(compiled(x), plain)
    assert not any("forward" in vars(module) for module in vit.modules())


def test_two_replays_and_a_counter_leave_no_trace_in_any_order(vit: nn.Module, x: Tensor) -> None:
    first = gramloop.attach(vit, window=WINDOW)
    with gramloop.counting(first.vit.blocks):
        first.detach()
        second = gramloop.attach(vit, window=WINDOW)
    second.detach()
    assert not any("forward" in vars(module) or module._forward_hooks for module in vit.modules())


class Exploding(nn.Module):
    """Fine when it runs first; after that one token of the second image is not a number."""

    def __init__(self, block: nn.Module, token: int) -> None:
        super().__init__()
        self.block, self.token, self.calls = block, token, 0

    def forward(self, *args, **kwargs) -> Tensor:
        self.calls += 1
        out = self.block(*args, **kwargs)
        if self.calls > 1:
            out = out.clone()
            out[1, self.token] = math.nan
        return out


@pytest.mark.parametrize(
    "settings",
    [
        {"gate": "none"},
        {"gate": "uniform", "strength": 0.5},
        {"gate": "gram", "gate_at": "end"},
        {"gate": "uniform", "strength": "matched", "gate_at": "end"},
    ],
    ids=str,
)
@pytest.mark.parametrize("token", [0, 9], ids=["class token", "patch"])
def test_no_gate_accepts_what_is_not_finite(vit: nn.Module, x: Tensor, settings: dict, token: int) -> None:
    seen: list[Tensor] = []
    vit.model.layer[3] = Exploding(vit.model.layer[3], token).eval()
    vit.model.layer[4].register_forward_pre_hook(lambda block, args: seen.append(args[0]))
    outputs(vit, x)
    vit.model.layer[3].calls = 0
    with gramloop.attached(vit, window=WINDOW, replays=1, **settings):
        outputs(vit, x)
    before, after = seen
    assert after.isfinite().all()
    assert torch.equal(after[1, token], before[1, token])
    assert not torch.equal(after[0, token], before[0, token])
    if "gate_at" not in settings:  # one patch that is not finite spoils every relation of the image's patches
        assert not torch.equal(after[1, token + 1], before[1, token + 1])


def test_one_module_that_is_listed_twice(vit: nn.Module) -> None:
    layers = list(vit.model.layer)
    with pytest.raises(gramloop.GramLoopError, match="blocks must be different modules of"):
        gramloop.attach(vit, blocks=[*layers, layers[0]], norm=vit.norm, prefix=5)


@pytest.mark.parametrize("described", [False, True])
@pytest.mark.parametrize("what", ["window", "end", "suffix", "norm"])
def test_a_block_or_norm_that_is_replaced_after_attach(
    vit: nn.Module, x: Tensor, described: bool, what: str
) -> None:
    more = {"blocks": list(vit.model.layer), "norm": vit.norm, "prefix": 5} if described else {}
    other = build("DINOv3ViTModel")[0]
    with gramloop.attached(vit, window=WINDOW, **more):
        outputs(vit, x)
        if what == "norm":
            vit.norm = other.norm
        else:
            index = {"window": 2, "end": 3, "suffix": 5}[what]
            vit.model.layer[index] = other.model.layer[index]
        with pytest.raises(gramloop.GramLoopError, match="DINOv3ViTModel were replaced; detach"):
            outputs(vit, x)


@pytest.mark.parametrize("scale", [0.0, 1e-20, 1e-3, 0.05, 0.1, 20.0, 1e10])
def test_drift_of_a_patch_whose_length_changes_by_orders_of_magnitude(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    before = torch.randn(1, 20, 8, generator=generator)
    after = before + 0.1 * torch.randn(1, 20, 8, generator=generator)
    after[0, 3] *= scale
    unit = [(p / p.norm(dim=-1, keepdim=True).clamp(min=1e-12)).double() for p in (before, after)]
    first, second = (q[0] @ q[0].T for q in unit)
    expected = (second - first).square().mean(1)
    torch.testing.assert_close(GramAnchor(before).drift(after)[0].double(), expected, rtol=1e-4, atol=1e-9)


def test_float64_hosts_keep_their_digits(vit: nn.Module, x: Tensor) -> None:
    vit, x = vit.double(), x.double()
    seen: list[Tensor] = []
    vit.model.layer[3].register_forward_hook(lambda block, args, output: seen.append(output))
    outputs(vit, x)
    for settings in ({"gate": "none"}, {"gate": "uniform", "strength": 0.25}):
        with gramloop.attached(vit, window=WINDOW, replays=1, **settings):
            outputs(vit, x)
    ordinary, proposal, accepted = seen
    assert (
        accepted - (ordinary + 0.25 * (proposal - ordinary))
    ).abs().max() < 1e-15 * ordinary.abs().max() * 4


def test_a_namesake_of_timms_class() -> None:
    class VisionTransformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks, self.norm = nn.ModuleList([nn.Linear(4, 4)]), nn.LayerNorm(4)

    with pytest.raises(gramloop.GramLoopError, match=r"VisionTransformer has no num_prefix_tokens.*blocks="):
        gramloop.attach(VisionTransformer().eval())


class Chain(nn.Module):
    """Tokens in, tokens out, and nothing that shows a grid."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize("gate", ["gram", "uniform", "none"])
def test_a_batch_of_no_images(gate: str) -> None:
    model = Chain().eval()
    with gramloop.attached(
        model, window=(1, 1), gate=gate, trace=True, blocks=model.blocks, prefix=1
    ) as loop:
        assert outputs(model, torch.zeros(0, 6, 8))[0].shape == (0, 6, 8)
    assert loop.trace is not None
    assert loop.trace.gate[0].shape == (0, 5)


def test_a_prefix_that_leaves_no_patch() -> None:
    model = Chain().eval()
    with (
        gramloop.attached(model, window=(1, 1), blocks=model.blocks, prefix=6),
        pytest.raises(gramloop.GramLoopError, match="returned 6 tokens of which 6 are no patches"),
    ):
        model(torch.randn(1, 6, 8))


def test_an_attached_model_without_a_norm_can_be_pickled() -> None:
    model, tokens = Chain().eval(), torch.randn(1, 6, 8)
    with gramloop.attached(model, window=(1, 1), blocks=model.blocks, prefix=1):
        twin = pickle.loads(pickle.dumps(model))
        expected = outputs(model, tokens)[0]
    assert torch.equal(outputs(twin, tokens)[0], expected)
    assert not torch.equal(outputs(model, tokens)[0], expected)


@pytest.mark.parametrize("config", [5, {"window": (2, 3)}, (2, 3)])
def test_a_config_of_another_kind(vit: nn.Module, config: object) -> None:
    with pytest.raises(gramloop.GramLoopError, match=r"config is .*; it is a ReplayConfig, the path of"):
        gramloop.attach(vit, config)  # type: ignore[arg-type]


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_is_refused(reentrant: bool) -> None:
    class Checkpointed(Chain):
        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=reentrant)
            return x

    model, tokens = Checkpointed().eval(), torch.randn(1, 6, 8, requires_grad=True)
    with gramloop.attached(model, window=(1, 1), blocks=model.blocks, prefix=1):
        out = model(tokens).sum()
        with pytest.raises(gramloop.GramLoopError, match="again inside a backward pass, by activation check"):
            out.backward()
