"""Where hosts meet other code: collectors inside blocks, graphs for any batch, padding, other layouts, sharded weights."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gramloop
from gramloop.replay.gram import GramAnchor
from gramloop.replay.vit import find_vit
from library_models import VIT, build, outputs
from reference_packages import import_reference

WINDOW = (2, 3)


class Features(nn.Module):
    def __init__(self, vit: nn.Module) -> None:
        super().__init__()
        self.vit = vit

    def forward(self, x: Tensor) -> Tensor:
        return self.vit(x).last_hidden_state


def random_weights(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        if weight.ndim > 1:
            nn.init.normal_(weight, std=0.15, generator=generator)
    return model.eval()


@pytest.mark.parametrize(
    "name", ["DINOv3ViTModel", "ViTModel", "CLIPVisionModel", "BeitModel", "YolosForObjectDetection"]
)
def test_attention_maps_are_those_of_the_blocks(name: str) -> None:
    """Attention of the host's own pass, by block; the blocks after the window see the replayed state."""
    model, x = build(name)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        plain = model(x, output_attentions=True).attentions
        with gramloop.attached(model, window=WINDOW):
            replayed = model(x, output_attentions=True).attentions
        again = model(x, output_attentions=True).attentions
    assert len(plain) == len(replayed) == len(again) == 6
    assert all(torch.equal(a, b) for a, b in zip(plain[:4], replayed[:4], strict=True))
    assert not torch.equal(plain[5], replayed[5])
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))


def test_a_gradient_collector_sees_one_activation_for_each_gradient(vit: nn.Module, x: Tensor) -> None:
    """As pytorch-grad-cam collects them; the activation is the one that the output depends on."""
    activations, gradients = [], []

    def collect(module: nn.Module, args: Any, output: Tensor) -> None:
        activations.append(output)
        output.register_hook(gradients.append)

    handles = [vit.model.layer[index].norm2.register_forward_hook(collect) for index in (3, 5)]
    with gramloop.attached(vit, window=WINDOW):
        found = vit(x).last_hidden_state
        found.square().sum().backward()
    assert len(activations) == 2
    assert len(gradients) >= 2
    assert torch.equal(activations[1], vit.model.layer[5].norm2(activations[1].detach() * 0 + given(vit, x)))
    for handle in handles:
        handle.remove()
    assert not any(module._forward_hooks for block in vit.model.layer for module in block.modules())


def given(vit: nn.Module, x: Tensor) -> Tensor:
    """What the last block's second norm is given with a replay attached."""
    seen: list[Tensor] = []
    with gramloop.attached(vit, window=WINDOW):
        handle = vit.model.layer[5].norm2.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
        vit(x)
        handle.remove()
    assert len(seen) == 1
    return seen[0]


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("written", [False, True], ids=["returned", "written in place"])
def test_a_hook_inside_a_block_that_changes_something_belongs_to_the_block(
    vit: nn.Module, x: Tensor, written: bool, inference: bool
) -> None:
    class Doubled(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) * 2

    def double(module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        return output.mul_(2) and None if written else output * 2

    def double_in_place(module: nn.Module, args: Any, output: Tensor) -> None:
        output.mul_(2)

    places = [vit.model.layer[index] for index in (3, 4)]
    with torch.inference_mode() if inference else torch.no_grad():
        handles = [each.mlp.register_forward_hook(double_in_place if written else double) for each in places]
        with gramloop.attached(vit, window=WINDOW):
            with pytest.raises(gramloop.GramLoopError, match=r"inside block 4 of .* run the forward again"):
                vit(x)
            found = vit(x).last_hidden_state
        for handle in handles:
            handle.remove()
        for each in places:
            each.mlp = Doubled(each.mlp)
        with gramloop.attached(vit, window=WINDOW):
            assert torch.equal(found, vit(x).last_hidden_state)


@pytest.mark.parametrize(("patches", "channels"), [(24, 16), (600, 200), (300, 16)])
def test_the_drift_of_a_batch_in_a_graph(patches: int, channels: int) -> None:
    """All three forms of the product, for more images than the graph was made with."""

    class Drift(nn.Module):
        def forward(self, before: Tensor, after: Tensor) -> Tensor:
            return GramAnchor(before).drift(after)

    before = torch.randn(3, patches, channels, generator=torch.Generator().manual_seed(1))
    after = before + 0.1 * torch.randn(before.shape, generator=torch.Generator().manual_seed(2))
    expected = Drift()(before, after)
    batch = {0: torch.export.Dim("images")}
    program = torch.export.export(Drift(), (before[:2], after[:2]), dynamic_shapes=(batch, batch))
    torch.testing.assert_close(program.module()(before, after), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    "kind", ["trace", "export", "legacy onnx", pytest.param("onnx", marks=pytest.mark.slow)]
)
def test_a_graph_takes_any_number_of_images(kind: str, tmp_path: Path) -> None:
    model, _ = build("DINOv3ViTModel")
    features, path = Features(model).eval(), str(tmp_path / "model.onnx")
    images = {
        many: torch.randn(many, 3, 64, 64, generator=torch.Generator().manual_seed(many))
        for many in (1, 2, 3)
    }
    batch = {"x": {0: torch.export.Dim("images", min=1, max=64)}}
    with torch.no_grad(), warnings.catch_warnings(), gramloop.attached(features, window=WINDOW):
        warnings.simplefilter("ignore")
        expected = {many: features(x) for many, x in images.items()}
        run: Callable[[Tensor], Tensor]
        if kind == "trace":
            run = torch.jit.trace(features, (images[2],))
        elif kind == "export":
            run = torch.export.export(features, (images[2],), dynamic_shapes=batch).module()
        else:
            runtime = pytest.importorskip("onnxruntime")
            more: dict[str, Any] = {"dynamo": True, "dynamic_shapes": batch}
            if kind == "legacy onnx":
                more = {"dynamo": False, "input_names": ["x"], "dynamic_axes": {"x": {0: "images"}}}
            torch.onnx.export(features, (images[2],), path, **more)
            session = runtime.InferenceSession(path)
            run = lambda x: torch.from_numpy(session.run(None, {"x": x.numpy()})[0])  # noqa: E731
    with torch.no_grad():
        for many, x in images.items():
            torch.testing.assert_close(run(x), expected[many], rtol=0, atol=1e-5)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_padding_that_the_host_masks_takes_no_part(attention: str) -> None:
    from transformers import Siglip2VisionConfig, Siglip2VisionModel

    config = Siglip2VisionConfig(**{**VIT, "num_patches": 16}, attn_implementation=attention)
    model = random_weights(Siglip2VisionModel(config))
    patches = torch.randn(2, 16, 768, generator=torch.Generator().manual_seed(1))
    mask, shapes = torch.ones(2, 16, dtype=torch.long), torch.tensor([[4, 4], [3, 3]])
    mask[1, 9:] = 0
    with torch.no_grad(), gramloop.attached(model, window=WINDOW, trace=True) as loop:
        padded = model(patches, mask, shapes).last_hidden_state[1, :9]
        assert loop.trace is not None
        assert loop.trace.valid is not None
        assert torch.equal(loop.trace.valid, mask.bool())
        alone = model(patches[1:, :9], mask[1:, :9], shapes[1:]).last_hidden_state[0]
    torch.testing.assert_close(padded, alone, rtol=0, atol=1e-5)


class OtherBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention, self.linear = (
            nn.LayerNorm(16),
            nn.MultiheadAttention(16, 2),
            nn.Linear(16, 16),
        )

    def forward(self, x: Tensor, order: str) -> Tensor:
        tokens = {"BTC": lambda: x.transpose(0, 1), "TBC": lambda: x, "TC": lambda: x[:, None]}.get(
            order, lambda: x.flatten(1, 2).transpose(0, 1)
        )()
        normed = self.norm(tokens)
        tokens = tokens + self.attention(normed, normed, normed)[0]
        tokens = tokens + self.linear(tokens).tanh()
        if order in ("BTC", "BHWC"):
            return tokens.transpose(0, 1).reshape(x.shape)
        return tokens.reshape(x.shape)


class OtherViT(nn.Module):
    def __init__(self, order: str = "BTC") -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 16, 16, 16)
        self.blocks, self.norm = nn.ModuleList(OtherBlock() for _ in range(6)), nn.LayerNorm(16)
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).permute(0, 2, 3, 1)
        if self.order != "BHWC":
            x = x.flatten(1, 2)
            x = {"BTC": x, "TBC": x.transpose(0, 1), "TC": x[0]}[self.order]
        for block in self.blocks:
            x = block(x, self.order)
        x = self.norm(x)
        return {"TBC": lambda: x.transpose(0, 1), "TC": lambda: x[None]}.get(
            self.order, lambda: x.reshape(x.shape[0], -1, 16)
        )()


@pytest.mark.parametrize(
    ("order", "wrong"),
    [("TBC", "tokens come first; pass layout='TBC'"), ("TC", "not BTC"), ("BHWC", "not BTC")],
)
def test_layouts_of_described_hosts(order: str, wrong: str) -> None:
    torch.manual_seed(0)
    model = random_weights(OtherViT())
    x = torch.randn(1 if order == "TC" else 3, 3, 48, 64)
    described = {"blocks": model.blocks, "norm": model.norm, "prefix": 0, "window": WINDOW}
    with torch.no_grad():
        with gramloop.attached(model, **described):
            expected = model(x)
        model.order = order
        with gramloop.attached(model, **described), pytest.raises(gramloop.GramLoopError, match=wrong):
            model(x)
        with gramloop.attached(model, **described, layout=order, trace=True) as loop:
            torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-5)
    assert loop.trace is not None
    assert loop.trace.gate[0].shape == (len(x), 3, 4)


@pytest.mark.parametrize(
    ("more", "wrong"),
    [({"layout": "CTB"}, "layout is 'CTB'"), ({"layout": "BHWC", "prefix": 1}, "0 where blocks carry maps")],
)
def test_a_layout_that_cannot_be(more: dict[str, Any], wrong: str) -> None:
    model = OtherViT().eval()
    with pytest.raises(gramloop.GramLoopError, match=wrong):
        gramloop.attach(model, **{"blocks": model.blocks, "norm": model.norm, "prefix": 0, **more})


def test_what_is_left_of_a_model_by_features_only_is_refused() -> None:
    timm = import_reference("timm")
    model = timm.create_model("vit_tiny_patch16_224", features_only=True, out_indices=[3]).eval()
    with pytest.raises(gramloop.GramLoopError, match="features_only removes blocks and the final norm"):
        gramloop.attach(model)


def _vision_towers() -> dict[str, Callable[[], tuple[nn.Module, Callable[[nn.Module], Tensor]]]]:
    def tower(package: str, name: str, settings: str, **more: Any) -> Callable[[], tuple[nn.Module, Any]]:
        def make() -> tuple[nn.Module, Any]:
            folder = f"transformers.models.{package}"
            kind = getattr(import_module(f"{folder}.modeling_{package}"), name)
            config = getattr(import_module(f"{folder}.configuration_{package}"), settings)
            x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
            if name.startswith("Qwen"):
                patches, grid = x.reshape(16, -1), torch.tensor([[1, 4, 4]])
                return kind(config(**more)), lambda model: model(patches, grid_thw=grid).last_hidden_state
            return kind(config(**{**VIT, **more})), lambda model: model(x).last_hidden_state

        return make

    return {
        "SmolVLM": tower("smolvlm", "SmolVLMVisionTransformer", "SmolVLMVisionConfig"),
        "Idefics3": tower("idefics3", "Idefics3VisionTransformer", "Idefics3VisionConfig"),
        "InternVL": tower("internvl", "InternVLVisionModel", "InternVLVisionConfig", image_size=[64, 64], patch_size=[16, 16]),
        "BLIP-2": tower("blip_2", "Blip2VisionModel", "Blip2VisionConfig"),
        "Qwen2-VL": tower(
            "qwen2_vl", "Qwen2VisionTransformerPretrainedModel", "Qwen2VLVisionConfig",
            depth=6, embed_dim=32, hidden_size=32, num_heads=4, patch_size=16, temporal_patch_size=2,
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", _vision_towers())
def test_vision_towers_of_language_models(name: str) -> None:
    """An ungated replay is an encoder in which the window is there twice."""
    made, run = _vision_towers()[name]()
    model = random_weights(made)
    with torch.no_grad():
        before = run(model)
        with gramloop.attached(model, window=WINDOW, replays=1, gate="none"):
            replayed = run(model)
        with gramloop.attached(model, window=WINDOW) as loop:
            gated = run(model)
        assert torch.equal(run(model), before)
        blocks = find_vit(model).blocks
        places = next(
            each for each in model.modules() if isinstance(each, nn.ModuleList) and each[0] is blocks[0]
        )
        for offset in (0, 1):
            places.insert(WINDOW[1] + 1 + offset, places[WINDOW[0] + offset])
        assert torch.equal(run(model), replayed)
    assert loop.blocks_executed == gramloop.cost(6, WINDOW).blocks
    assert not torch.equal(gated, before)
    assert not torch.equal(gated, replayed)


def test_images_in_one_sequence_are_given_one_at_a_time() -> None:
    made, _ = _vision_towers()["Qwen2-VL"]()
    patches, grids = torch.randn(32, 3 * 2 * 16 * 16), torch.tensor([[1, 4, 4], [1, 4, 4]])
    with (
        gramloop.attached(made.eval(), window=WINDOW),
        pytest.raises(gramloop.GramLoopError, match="2 images are packed"),
    ):
        made(patches, grid_thw=grids)


def segment_anything_encoder(**options: Any) -> nn.Module:
    """Meta's own encoder, small: maps (B, H, W, C), no norm after the blocks, a neck."""
    modeling = import_reference("segment_anything").modeling
    sizes = {"img_size": 64, "patch_size": 16, "embed_dim": 32, "depth": 6, "num_heads": 4, "out_chans": 8}
    return random_weights(modeling.ImageEncoderViT(**sizes, **options))


@pytest.mark.parametrize("windows", [0, 2], ids=["global attention", "windowed attention"])
def test_segment_anything(windows: int) -> None:
    torch.manual_seed(0)
    model = segment_anything_encoder(use_rel_pos=True, window_size=windows, global_attn_indexes=(2, 5))
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad(), gramloop.attached(model, window=WINDOW, trace=True) as loop:
        together = model(x)
        assert loop.trace is not None
        assert loop.trace.gate[0].shape == (2, 4, 4)
        torch.testing.assert_close(torch.cat([model(one[None]) for one in x]), together, rtol=0, atol=1e-5)


@pytest.mark.parametrize("adaptive", [None, {"signal": "noise", "off": 1.0, "full": 2.0}])
def test_a_forward_on_the_meta_device(adaptive: Any) -> None:
    model = build("DINOv3ViTModel")[0].to("meta")
    with torch.no_grad(), gramloop.attached(model, window=WINDOW, adaptive=adaptive, trace=True) as loop:
        (found, *_) = outputs(model, torch.empty(2, 3, 64, 64, device="meta"))
    assert found.is_meta
    assert loop.blocks_executed == gramloop.cost(6, WINDOW).blocks


SHARDED = """
import copy, sys, torch, torch.distributed as dist
sys.path.insert(0, sys.argv[2])
import gramloop
from library_models import build
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/meet", rank=0, world_size=1)
model, x = build("DINOv3ViTModel")
sharded = copy.deepcopy(model)
for block in sharded.model.layer:
    fully_shard(block)
fully_shard(sharded)
with torch.no_grad():
    with gramloop.attach(model, window=(2, 3)):
        expected = model(x).last_hidden_state
    plain = sharded(x).last_hidden_state
    with gramloop.attach(sharded, window=(2, 3)):
        found = [sharded(x).last_hidden_state for _ in (0, 1)]
    assert torch.equal(sharded(x).last_hidden_state, plain)
assert not any("forward" in vars(block) for block in sharded.model.layer)
print(max((each - expected).abs().max().item() for each in found))
dist.destroy_process_group()
"""


def test_blocks_whose_weights_are_sharded(tmp_path: Path) -> None:
    support = str(Path(__file__).parents[1] / "support")
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SHARDED, str(tmp_path), support],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert float(run.stdout.split()[-1]) <= 1e-6
