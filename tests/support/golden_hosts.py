"""The reference weights in every library's ViT, read out in one way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from golden import Golden
from gramloop.models.checkpoint import Checkpoint
from gramloop.models.dino import load_backbone
from meta_vit import DinoVisionTransformer
from reference_packages import import_reference


@dataclass(frozen=True)
class GoldenHost:
    model: nn.Module
    blocks: Sequence[nn.Module]
    taps: Callable[[Tensor, list[int]], dict[int, Tensor]]  # image -> all tokens after the final norm


def meta(golden: Golden) -> GoldenHost:
    vit = DinoVisionTransformer(golden.weights, golden.config["heads"]).eval()
    return GoldenHost(
        vit, vit.blocks, lambda x, n: dict(zip(n, vit.get_intermediate_layers(x, n), strict=True))
    )


def meta_list(golden: Golden) -> GoldenHost:
    """The list path shows the last block only."""
    vit = DinoVisionTransformer(golden.weights, golden.config["heads"]).eval()

    def taps(x: Tensor, n: list[int]) -> dict[int, Tensor]:
        out = vit.forward_features(x)
        parts = (out["x_norm_clstoken"][:, None], out["x_storage_tokens"], out["x_norm_patchtokens"])
        return {n[-1]: torch.cat(parts, 1)}

    return GoldenHost(vit, vit.blocks, taps)


def transformers_model(golden: Golden) -> GoldenHost:
    vit = load_golden_dinov3(golden)

    def taps(x: Tensor, n: list[int]) -> dict[int, Tensor]:
        states = vit(x, output_hidden_states=True).hidden_states
        assert len(states) == len(vit.model.layer) + 1
        return {index: vit.norm(states[index + 1]) for index in n}

    return GoldenHost(vit, vit.model.layer, taps)


def transformers_backbone(golden: Golden) -> GoldenHost:
    from transformers import DINOv3ViTBackbone

    source = load_golden_dinov3(golden)
    config = source.config
    config.out_indices = [index + 1 for index in golden.config["taps"]]
    config.reshape_hidden_states = False
    config.apply_layernorm = True
    config.return_class_token = True
    vit = DINOv3ViTBackbone(config).eval()
    vit.load_state_dict(source.state_dict())
    vit.rope_embeddings.inv_freq = source.rope_embeddings.inv_freq

    def taps(x: Tensor, n: list[int]) -> dict[int, Tensor]:
        out = vit(x, output_hidden_states=True)
        full = {index: vit.norm(out.hidden_states[index + 1]) for index in n}
        for index, patches in zip(n, out.feature_maps, strict=True):
            assert torch.equal(full[index][:, 5:], patches)
        return full

    return GoldenHost(vit, vit.model.layer, taps)


def load_golden_dinov3(golden: Golden):
    """transformers' DINOv3ViTModel with the reference weights."""
    weights = golden.weights
    shapes = {name: tuple(value.shape) for name, value in weights.items()}
    dtypes = {name: value.dtype for name, value in weights.items()}
    return load_backbone(Checkpoint(Path("golden"), shapes, dtypes, lambda: weights)).model


def timm_eva(golden: Golden) -> GoldenHost:
    import_reference("timm")
    from timm.models.eva import Eva, checkpoint_filter_fn

    weights = golden.weights
    gated = "blocks.0.mlp.w1.weight" in weights
    width = golden.config["embed_dim"]
    hidden = weights["blocks.0.mlp.w1.weight" if gated else "blocks.0.mlp.fc1.weight"].shape[0]
    vit = Eva(
        img_size=golden.config["input"][2:],
        patch_size=16,
        num_classes=0,
        global_pool="token",
        embed_dim=width,
        depth=golden.config["depth"],
        num_heads=golden.config["heads"],
        qkv_bias="blocks.0.attn.qkv.bias" in weights,
        mlp_ratio=hidden / width,
        swiglu_mlp=gated,
        swiglu_align_to=8,
        init_values=1e-5,
        rope_type="dinov3",
        rope_temperature=100,
        rope_rotate_half=True,
        use_rot_pos_emb=True,
        use_abs_pos_emb=False,
        num_reg_tokens=4,
        use_fc_norm=False,
        norm_layer=partial(nn.LayerNorm, eps=1e-5),
    ).eval()
    missing, unexpected = vit.load_state_dict(checkpoint_filter_fn(dict(weights), vit), strict=False)
    assert not unexpected, unexpected
    assert not [name for name in missing if "k_bias" not in name and "rope" not in name], missing

    def taps(x: Tensor, n: list[int]) -> dict[int, Tensor]:
        pairs = vit.forward_intermediates(
            x, indices=n, norm=True, return_prefix_tokens=True, output_fmt="NLC", intermediates_only=True
        )
        return {
            index: torch.cat([prefix, patches], 1) for index, (patches, prefix) in zip(n, pairs, strict=True)
        }

    return GoldenHost(vit, vit.blocks, taps)


HOSTS = {
    "transformers": transformers_model,
    "transformers-backbone": transformers_backbone,
    "meta": meta,
    "meta-list": meta_list,
    "timm": timm_eva,
}
