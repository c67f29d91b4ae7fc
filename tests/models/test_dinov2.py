"""DINOv2 files as Meta writes them, against transformers' own model filled by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import Dinov2WithRegistersModel

from gramloop import GramLoopError, attached
from gramloop.models.backbone import LinearHead, LinearSegmentor
from gramloop.models.checkpoint import open_checkpoint
from gramloop.models.dino import infer_dinov2, load_backbone
from gramloop.tasks.loading import load_head
from gramloop.tasks.semantic import SegmentConfig, Segmenter

DEPTH, WIDTH, PATCH, SIDE = 4, 64, 14, 5


def meta_file(path: Path, registers: int = 4, gated: bool = False) -> dict[str, Tensor]:
    """A small file with the names and shapes of a released one."""
    random = torch.Generator().manual_seed(7)
    hidden = 176 if gated else 4 * WIDTH  # two thirds of 256, rounded up to a multiple of 8
    shapes = {
        "cls_token": (1, 1, WIDTH),
        "pos_embed": (1, 1 + SIDE * SIDE, WIDTH),
        "mask_token": (1, WIDTH),
        "patch_embed.proj.weight": (WIDTH, 3, PATCH, PATCH),
        "patch_embed.proj.bias": (WIDTH,),
        "norm.weight": (WIDTH,),
        "norm.bias": (WIDTH,),
    }
    if registers:
        shapes["register_tokens"] = (1, registers, WIDTH)
    for index in range(DEPTH):
        inner = {
            "norm1.weight": (WIDTH,),
            "norm1.bias": (WIDTH,),
            "attn.qkv.weight": (3 * WIDTH, WIDTH),
            "attn.qkv.bias": (3 * WIDTH,),
            "attn.proj.weight": (WIDTH, WIDTH),
            "attn.proj.bias": (WIDTH,),
            "ls1.gamma": (WIDTH,),
            "norm2.weight": (WIDTH,),
            "norm2.bias": (WIDTH,),
            "ls2.gamma": (WIDTH,),
        }
        if gated:
            inner |= {"mlp.w12.weight": (2 * hidden, WIDTH), "mlp.w12.bias": (2 * hidden,)}
            inner |= {"mlp.w3.weight": (WIDTH, hidden), "mlp.w3.bias": (WIDTH,)}
        else:
            inner |= {"mlp.fc1.weight": (hidden, WIDTH), "mlp.fc1.bias": (hidden,)}
            inner |= {"mlp.fc2.weight": (WIDTH, hidden), "mlp.fc2.bias": (WIDTH,)}
        shapes |= {f"blocks.{index}.{name}": shape for name, shape in inner.items()}
    weights = {name: 0.2 * torch.randn(*shape, generator=random) for name, shape in shapes.items()}
    torch.save(weights, path)
    return weights


def reference(weights: dict[str, Tensor], pixels: Tensor, registers: int, gated: bool) -> Tensor:
    """The forward written out: the last block's tokens before the final norm, on the grid of the positions."""
    import torch.nn.functional as F

    x = F.conv2d(pixels, weights["patch_embed.proj.weight"], weights["patch_embed.proj.bias"], stride=PATCH)
    x = x.flatten(2).transpose(1, 2)
    x = torch.cat([weights["cls_token"].expand(len(x), -1, -1), x], dim=1) + weights["pos_embed"]
    if registers:
        x = torch.cat([x[:, :1], weights["register_tokens"].expand(len(x), -1, -1), x[:, 1:]], dim=1)
    for index in range(DEPTH):
        w = {name.removeprefix(f"blocks.{index}."): value for name, value in weights.items()}
        y = F.layer_norm(x, (WIDTH,), w["norm1.weight"], w["norm1.bias"], 1e-6)
        q, k, v = (
            F.linear(y, w["attn.qkv.weight"], w["attn.qkv.bias"]).reshape(*y.shape[:2], 3, 1, 64).unbind(2)
        )
        y = (
            F.scaled_dot_product_attention(*(each.transpose(1, 2) for each in (q, k, v)))
            .transpose(1, 2)
            .flatten(2)
        )
        x = x + w["ls1.gamma"] * F.linear(y, w["attn.proj.weight"], w["attn.proj.bias"])
        y = F.layer_norm(x, (WIDTH,), w["norm2.weight"], w["norm2.bias"], 1e-6)
        if gated:
            gate, up = F.linear(y, w["mlp.w12.weight"], w["mlp.w12.bias"]).chunk(2, dim=-1)
            y = F.linear(F.silu(gate) * up, w["mlp.w3.weight"], w["mlp.w3.bias"])
        else:
            y = F.gelu(F.linear(y, w["mlp.fc1.weight"], w["mlp.fc1.bias"]))
            y = F.linear(y, w["mlp.fc2.weight"], w["mlp.fc2.bias"])
        x = x + w["ls2.gamma"] * y
    return x


@pytest.mark.parametrize("registers", [0, 4])
@pytest.mark.parametrize("gated", [False, True], ids=["mlp", "swiglu"])
def test_features_against_the_forward_written_out(tmp_path: Path, registers: int, gated: bool) -> None:
    weights = meta_file(tmp_path / "dinov2.pth", registers, gated)
    backbone = load_backbone(tmp_path / "dinov2.pth")
    pixels = torch.randn(2, 3, SIDE * PATCH, SIDE * PATCH, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        (tap,) = backbone(pixels, [DEPTH - 1])
        expected = backbone.norm(reference(weights, pixels, registers, gated))
    assert tap.prefix == 1 + registers
    torch.testing.assert_close(tap.tokens, expected, rtol=1e-4, atol=1e-5)  # sums in another order


def test_other_sizes_and_all_taps(tmp_path: Path) -> None:
    meta_file(tmp_path / "dinov2.pth")
    backbone = load_backbone(tmp_path / "dinov2.pth")
    assert isinstance(backbone.model, Dinov2WithRegistersModel)
    pixels = torch.randn(1, 3, 3 * PATCH, 7 * PATCH)
    with torch.no_grad():
        taps = backbone(pixels, range(DEPTH))
        whole = backbone.model(pixels).last_hidden_state
    assert [tap.map.shape for tap in taps] == [(1, WIDTH, 3, 7)] * DEPTH
    torch.testing.assert_close(taps[-1].tokens, whole, rtol=0, atol=0)


def test_a_linear_head_segments_and_replays(tmp_path: Path) -> None:
    meta_file(tmp_path / "dinov2.pth")
    backbone = load_backbone(tmp_path / "dinov2.pth")
    head = LinearHead(WIDTH, 3, [1, 3])
    torch.nn.init.normal_(head.conv.weight)
    head.save(tmp_path / "head.safetensors")
    config = SegmentConfig(mode="whole", short_side=3 * PATCH)
    loaded = load_head(tmp_path / "dinov2.pth", tmp_path / "head.safetensors", "semantic", **vars(config))
    built = Segmenter(LinearSegmentor(backbone, head), config)
    image = torch.randint(0, 256, (50, 70, 3), dtype=torch.uint8).numpy()
    assert (loaded.predict(image).labels == built.predict(image).labels).all()
    with attached(backbone.model, window=(1, 1)) as loop:
        built.predict(image)
    assert loop.vit.layout.prefix == 5


def test_the_architecture_is_read_off_the_file(tmp_path: Path) -> None:
    meta_file(tmp_path / "dinov2.pth", registers=0, gated=True)
    shape, positions = infer_dinov2(open_checkpoint(tmp_path / "dinov2.pth"))
    assert (shape.depth, shape.width, shape.patch, shape.registers, shape.gated) == (
        DEPTH,
        WIDTH,
        PATCH,
        0,
        True,
    )
    assert positions == SIDE


def test_a_file_that_is_no_backbone(tmp_path: Path) -> None:
    torch.save({"pos_embed": torch.zeros(1, 5, 4), "cls_token": torch.zeros(1, 1, 4)}, tmp_path / "x.pth")
    with pytest.raises(GramLoopError, match=r"x\.pth is not a DINOv2 backbone: it lacks patch_embed"):
        load_backbone(tmp_path / "x.pth")


def test_rounded_weights_give_float32_features(tmp_path: Path) -> None:
    meta_file(tmp_path / "backbone.pth")
    pixels = torch.randn(1, 3, 5 * PATCH, 4 * PATCH)
    exact, rounded = (
        load_backbone(tmp_path / "backbone.pth", dtype=dtype)(pixels, [DEPTH - 1])[0].tokens
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert rounded.dtype == torch.float32
    assert 1e-4 < (rounded - exact).abs().mean() / exact.abs().mean() < 0.05  # bfloat16 keeps three digits
