from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import nn

import gramloop
from gramloop.replay.vit import find_vit
from library_models import MODELS, build, outputs

WINDOW = (2, 3)


def equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return len(first) == len(second) and all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_attached_changes_and_detached_restores(name: str) -> None:
    model, x = build(name)
    names = list(model.state_dict())
    before = outputs(model, x)
    with gramloop.attached(model, window=WINDOW, trace=True) as loop:
        with gramloop.counting(loop.vit.blocks) as counter:
            during = outputs(model, x)
        assert list(model.state_dict()) == names
    assert [t.shape for t in during] == [t.shape for t in before]
    assert not equal(during, before)
    assert counter.blocks == loop.blocks_executed == gramloop.cost(6, WINDOW).blocks
    assert loop.trace is not None
    assert loop.trace.gate[0].shape == ((2, 16) if loop.vit.shuffles else (2, 4, 4))
    assert equal(outputs(model, x), before)
    with gramloop.attached(model, window=WINDOW):
        assert equal(outputs(model, x), during)
    assert equal(outputs(model, x), before)


def taps_by_position(name: str) -> bool:
    return any(word in name for word in ("Backbone", "Depth", "DPT", "CHM", "own-head"))


@pytest.mark.parametrize("name", [name for name in MODELS if not taps_by_position(name)])
def test_ungated_replay_is_an_encoder_in_which_the_window_stands_twice(name: str) -> None:
    model, x = build(name)
    deeper = copy.deepcopy(model)
    blocks = _block_list(deeper)
    again = [copy.deepcopy(blocks[i]) for i in range(WINDOW[0], WINDOW[1] + 1)]
    for offset, block in enumerate(again):
        blocks.insert(WINDOW[1] + 1 + offset, block)
    with gramloop.attached(model, window=WINDOW, replays=1, gate="none"):
        assert equal(outputs(model, x), outputs(deeper, x))


def _block_list(model: nn.Module) -> nn.ModuleList | nn.Sequential:
    first = find_vit(model).blocks[0]
    return next(
        module
        for module in model.modules()
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and len(module) and module[0] is first
    )


@pytest.mark.parametrize("name", ["DINOv3ViTBackbone", "Dinov2Backbone", "Dinov2WithRegistersBackbone"])
def test_taps_before_the_window_stay_ordinary(name: str) -> None:
    model, x = build(name)
    before = outputs(model, x)
    with gramloop.attached(model, window=WINDOW):
        during = outputs(model, x)
    assert torch.equal(during[0], before[0])
    assert not torch.equal(during[1], before[1])


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("DINOv3ViTModel", 5),
        ("Dinov2Model", 1),
        ("DeiTModel", 2),
        ("IJepaModel", 0),
        ("SiglipVisionModel", 0),
        ("timm-vit", 3),
        ("timm-eva", 1),
    ],
)
def test_prefix_tokens(name: str, prefix: int) -> None:
    assert find_vit(build(name)[0]).layout.prefix == prefix


def test_a_described_vit_is_the_same_as_a_known_one() -> None:
    model, x = build("DINOv3ViTModel")
    with gramloop.attached(model, window=WINDOW):
        known = outputs(model, x)
    with gramloop.attached(model, window=WINDOW, blocks=model.model.layer, norm=model.norm, prefix=5):
        assert equal(outputs(model, x), known)


def test_chunked_blocks_of_dinov2_are_one_chain() -> None:
    class Chunk(nn.ModuleList):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self:
                x = block(x)
            return x

    class DinoVisionTransformer(nn.Module):
        num_register_tokens = 0

        def __init__(self) -> None:
            super().__init__()
            linears = [nn.Linear(8, 8) for _ in range(4)]
            self.blocks = nn.ModuleList(
                [Chunk(linears[:2]), Chunk([nn.Identity(), nn.Identity(), *linears[2:]])]
            )
            self.norm = nn.LayerNorm(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for chunk in self.blocks:
                x = chunk(x)
            return self.norm(x)

    vit = DinoVisionTransformer().eval()
    x = torch.randn(1, 10, 8)
    with (
        torch.no_grad(),
        gramloop.attached(vit, window=(2, 2)) as loop,
        gramloop.counting(loop.vit.blocks) as counter,
    ):
        vit(x)
    assert loop.vit.depth == 4
    assert counter.blocks == gramloop.cost(4, (2, 2)).blocks


def _eomt():
    from transformers import EomtDinov3Config, EomtDinov3ForUniversalSegmentation

    config = EomtDinov3Config(
        hidden_size=32, num_hidden_layers=6, num_attention_heads=4, intermediate_size=64, image_size=64,
        patch_size=16, num_blocks=2, num_queries=5, num_upscale_blocks=1,
    )  # fmt: skip
    torch.manual_seed(0)
    return EomtDinov3ForUniversalSegmentation(config).eval()


def test_eomt_is_refused_where_queries_join_the_tokens() -> None:
    model = _eomt()
    x = torch.randn(1, 3, 64, 64)
    with pytest.raises(
        gramloop.GramLoopError, match=r"from block 4 on.*inserts mask queries.*reaches block 5"
    ):
        gramloop.attach(model, window=(1, 2))
    with pytest.raises(gramloop.GramLoopError, match="inserts mask queries"):
        gramloop.attach(model, window=(3, 4), gate_at="end")
    with pytest.raises(gramloop.GramLoopError, match="inserts mask queries"):
        gramloop.attach(model, window=(1, 2), replays=0, keep=(5,))  # it would run the suffix by itself
    before = outputs(model, x)
    with gramloop.attached(model, window=(1, 2), gate_at=3, trace=True) as loop:
        during = outputs(model, x)
    assert loop.trace is not None
    assert loop.trace.drift[0].shape == (1, 4, 4)
    assert not equal(before, during)
    assert equal(before, outputs(model, x))


@pytest.mark.parametrize("windows", [1, 2])
def test_rf_detr_is_refused_unless_it_has_one_window(windows: int) -> None:
    from transformers.models.rf_detr.configuration_rf_detr import RfDetrDinov2Config
    from transformers.models.rf_detr.modeling_rf_detr import RfDetrDinov2Backbone

    config = RfDetrDinov2Config(
        hidden_size=32, num_hidden_layers=4, num_attention_heads=4, mlp_ratio=2, image_size=64, patch_size=16,
        num_windows=windows, out_indices=[2, 4],
    )  # fmt: skip
    model = RfDetrDinov2Backbone(config).eval()
    if windows == 1:
        with gramloop.attached(model, window=(1, 1)):
            outputs(model, torch.randn(1, 3, 64, 64))
    else:
        with pytest.raises(gramloop.GramLoopError, match="regroups the tokens"):
            gramloop.attach(model, window=(1, 1), gate_at="end")


def test_lw_detr_is_refused() -> None:
    from transformers.models.lw_detr.configuration_lw_detr import LwDetrViTConfig
    from transformers.models.lw_detr.modeling_lw_detr import LwDetrViTBackbone

    config = LwDetrViTConfig(
        hidden_size=32, num_hidden_layers=4, num_attention_heads=4, image_size=64, patch_size=16
    )
    with pytest.raises(
        gramloop.GramLoopError, match="LwDetrViTBackbone cannot be replayed from block 0 on: it regroups"
    ):
        gramloop.attach(LwDetrViTBackbone(config).eval())


def test_no_vit() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval()
    with pytest.raises(
        gramloop.GramLoopError, match="no ViT found in Sequential: looked at its 3 modules for Dino"
    ):
        gramloop.attach(model)
    with pytest.raises(gramloop.GramLoopError, match=re.escape("takes a torch.nn.Module, not dict")):
        gramloop.attach({})  # type: ignore[arg-type]


def test_two_vits() -> None:
    pair = nn.ModuleDict({"student": build("ViTModel")[0], "teacher": build("ViTModel")[0]}).eval()
    with pytest.raises(gramloop.GramLoopError, match=r"contains 2 ViTs \(student, teacher\)"):
        gramloop.attach(pair)
    with gramloop.attached(pair["student"]):
        pass


def test_an_incomplete_description_is_refused() -> None:
    model, _ = build("ViTModel")
    with pytest.raises(gramloop.GramLoopError, match="blocks is missing"):
        gramloop.attach(model, norm=model.layernorm, prefix=1)
    with pytest.raises(gramloop.GramLoopError, match="prefix is None"):
        gramloop.attach(model, blocks=model.layers, norm=model.layernorm)
    with pytest.raises(gramloop.GramLoopError, match="blocks must be different modules of ViTModel"):
        gramloop.attach(model, blocks=[nn.Linear(2, 2)], prefix=1)


def test_a_wrong_prefix_is_found_out() -> None:
    model, x = build("ViTModel")
    with (
        gramloop.attached(model, window=WINDOW, blocks=model.layers, norm=model.layernorm, prefix=2),
        pytest.raises(
            gramloop.GramLoopError, match="17 tokens where 2 prefix tokens and a patch grid of 4 x 4 make 18"
        ),
    ):
        outputs(model, x)


def test_a_margin_that_the_host_drops_is_warned_of() -> None:
    model, _ = build("DINOv3ViTModel")
    with (
        gramloop.attached(model),
        pytest.warns(
            gramloop.GramLoopWarning, match="70 x 64, not a multiple of the patch size 16.* last 6 rows"
        ),
    ):
        outputs(model, torch.randn(1, 3, 70, 64))
