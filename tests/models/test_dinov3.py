from __future__ import annotations

import math

import pytest
import torch

from golden import released_shapes
from gramloop import ReplayConfig, attached
from gramloop.errors import GramLoopError
from gramloop.models.backbone import Backbone, BackboneShape, default_taps
from gramloop.models.dino import SHAPES, dinov3_file_shapes, load_backbone, meta_backbone

GOLDEN = ["backbone_s", "backbone_splus", "backbone_7b"]
FEATURES = 1e-5  # what the reference's own ports agree to, on features of scale 4


@pytest.mark.parametrize("name", GOLDEN)
def test_every_tap_of_a_released_file_is_the_reference(name, golden, golden_file):
    expected = golden(name)
    backbone = load_backbone(golden_file(name))
    with torch.no_grad():
        taps = backbone(expected.values["x"], expected.config["taps"])
    for index, tap in zip(expected.config["taps"], taps, strict=True):
        assert (tap.patches - expected.values[f"plain.tap.{index}"]).abs().max() <= FEATURES
        assert torch.equal(tap.map[:, :, 1, 2], tap.patches[:, 1 * tap.grid[1] + 2])
        assert (tap.cls - expected.values[f"plain.cls.{index}"]).abs().max() <= FEATURES
        assert (tap.tokens[:, 1 : tap.prefix] - expected.values[f"plain.reg.{index}"]).abs().max() <= FEATURES


@pytest.mark.parametrize(
    ("run", "replay"),
    [
        ("gramloop", ReplayConfig(window=(3, 4))),
        ("gramloop_k4", ReplayConfig(window=(3, 4), replays=4)),
        ("endpoint", ReplayConfig(window=(3, 4), gate_at="end")),
        ("final_filter", ReplayConfig(window=(3, 4), update_at="final")),
    ],
)
@pytest.mark.parametrize("name", GOLDEN)
def test_a_replay_on_a_released_file_is_the_reference(name, run, replay, golden, golden_file):
    expected = golden(name)
    backbone = load_backbone(golden_file(name))
    taps = expected.config["taps"]
    with torch.no_grad(), attached(backbone.model, replay, keep=[5, 7]) as loop:
        found = backbone(expected.values["x"], taps)
    for index, tap in zip(taps, found, strict=True):
        assert (tap.patches - expected.values[f"{run}.tap.{index}"]).abs().max() <= FEATURES
        assert (tap.cls - expected.values[f"{run}.cls.{index}"]).abs().max() <= FEATURES
    for index in (5, 7):
        ordinary = backbone.tap(loop.baseline[index], found[0].grid, index)
        assert (ordinary.patches - expected.values[f"plain.tap.{index}"]).abs().max() <= FEATURES


@pytest.mark.parametrize("name", sorted(set(SHAPES) - {"vitl16_sat"}))
def test_names_and_shapes_of_every_size_are_the_released_ones(name):
    assert dinov3_file_shapes(meta_backbone(SHAPES[name])) == released_shapes(f"dinov3_{name}")


def test_the_satellite_model_has_one_norm_more():
    expected = released_shapes("dinov3_vitl16")
    expected |= {"local_cls_norm.weight": (1024,), "local_cls_norm.bias": (1024,)}
    assert dinov3_file_shapes(meta_backbone(SHAPES["vitl16_sat"])) == expected


def test_parameter_count_of_the_largest():
    model = meta_backbone(SHAPES["vit7b16"]).model
    unused = 2 * 4096  # local_cls_norm is in the file and not in the model
    assert sum(value.numel() for value in model.parameters()) + unused == 6_716_043_264


def rounded_periods(path, tmp_path):
    weights = torch.load(path, weights_only=True)
    weights["rope_embed.periods"] = weights["rope_embed.periods"].bfloat16().float()
    torch.save(weights, tmp_path / "rounded.pth")
    return tmp_path / "rounded.pth"


def test_the_rotary_periods_are_those_of_the_file(golden, golden_file, tmp_path):
    x = golden("backbone_7b").values["x"]
    exact = golden_file("backbone_7b")
    rounded = rounded_periods(exact, tmp_path)
    with torch.no_grad():
        difference = load_backbone(rounded)(x, [7])[0].tokens - load_backbone(exact)(x, [7])[0].tokens
    periods = torch.load(rounded, weights_only=True)["rope_embed.periods"]
    assert torch.equal(load_backbone(rounded).model.rope_embeddings.inv_freq, 1 / periods)
    assert difference.abs().max() > 1e-4


@pytest.mark.parametrize("inner", [False, True], ids=["backbone", "model inside"])
@pytest.mark.parametrize("move", [torch.nn.Module.bfloat16, torch.nn.Module.double, torch.nn.Module.float])
def test_moving_a_backbone_does_not_round_its_periods(move, inner, golden_file, tmp_path):
    path = rounded_periods(golden_file("backbone_s"), tmp_path)
    before = load_backbone(path).model.rope_embeddings.inv_freq
    moved = load_backbone(path)
    move(moved.model if inner else moved)
    features = moved(torch.rand(1, 3, 32, 32), [0])[0].tokens
    after = moved.model.rope_embeddings.inv_freq
    assert after.dtype == torch.float32
    assert torch.equal(after, before)
    assert features.dtype == moved.model.norm.weight.dtype
    assert features.isfinite().all()


def test_a_hook_on_a_block_reaches_later_taps_alone(golden, golden_file):
    x = golden("backbone_s").values["x"]
    backbone = load_backbone(golden_file("backbone_s"))
    with torch.no_grad():
        before = backbone(x, [2, 3, 7])
        handle = backbone.blocks[3].register_forward_hook(lambda module, args, output: output * 1.5)
        after = backbone(x, [2, 3, 7])
        handle.remove()
        restored = backbone(x, [2, 3, 7])
    assert torch.equal(before[0].tokens, after[0].tokens)
    assert not torch.equal(before[1].tokens, after[1].tokens)
    assert not torch.equal(before[2].tokens, after[2].tokens)
    assert all(torch.equal(one.tokens, two.tokens) for one, two in zip(before, restored, strict=True))


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("single_file", [False, True], ids=["folder", "file"])
def test_a_transformers_folder_gives_the_same_features(name, single_file, golden, golden_file, tmp_path):
    expected = golden(name)
    released = load_backbone(golden_file(name))
    released.model.save_pretrained(tmp_path / "folder")
    path = tmp_path / "folder" / "model.safetensors" if single_file else tmp_path / "folder"
    again = load_backbone(path)
    with torch.no_grad():
        one, two = released(expected.values["x"], [1, 7]), again(expected.values["x"], [1, 7])
    for left, right in zip(one, two, strict=True):
        # the periods are regenerated, since transformers does not store them
        assert (left.tokens - right.tokens).abs().max() <= FEATURES


def test_transformers_own_forward_agrees(golden, golden_file):
    backbone = load_backbone(golden_file("backbone_splus"))
    x = golden("backbone_splus").values["x"]
    with torch.no_grad():
        assert torch.equal(backbone.model(x).last_hidden_state, backbone(x, [7])[0].tokens)


def test_parameters_are_frozen_and_the_model_evaluates(golden_file):
    backbone = load_backbone(golden_file("backbone_s"))
    assert not any(value.requires_grad for value in backbone.parameters())
    assert not any(module.training for module in backbone.modules())


def test_blocks_in_bfloat16_give_float32_features(golden, golden_file):
    """What a GPU does; a CPU can do it too, but is not asked to."""
    x = golden("backbone_s").values["x"]
    backbone = load_backbone(golden_file("backbone_s"))
    inputs = []
    backbone.blocks[2].mlp.up_proj.register_forward_hook(
        lambda module, args, output: inputs.append(output.dtype)
    )
    exact = backbone(x, [7])[0].tokens
    backbone.autocast_on = ("cpu",)
    rounded = backbone(x, [7])[0].tokens
    assert inputs == [torch.float32, torch.bfloat16]
    assert rounded.dtype == torch.float32
    assert 1e-4 < (rounded - exact).abs().max() < 0.2  # bfloat16 keeps three digits


def test_precision_by_argument(golden_file):
    backbone = load_backbone(golden_file("backbone_s"), dtype=torch.bfloat16)
    assert {
        value.dtype for name, value in backbone.model.named_parameters() if not name.startswith("norm.")
    } == {torch.bfloat16}
    assert {value.dtype for value in backbone.norm.parameters()} == {torch.float32}
    assert backbone.model.rope_embeddings.inv_freq.dtype == torch.float32


@pytest.mark.parametrize("size", [(40, 64), (64, 40), (0, 16)])
def test_sides_that_are_no_multiples_of_the_patch_are_refused(size):
    backbone = Backbone(BackboneShape(1, 16, head_dim=8))
    with pytest.raises(GramLoopError, match="multiples of 16"):
        backbone(torch.zeros(1, 3, *size), [0])


@pytest.mark.parametrize("taps", [[], [1], [-1], [0, 0]])
def test_taps_that_do_not_exist_are_refused(taps):
    with pytest.raises(GramLoopError, match="between 0 and 0"):
        Backbone(BackboneShape(1, 16, head_dim=8))(torch.zeros(1, 3, 16, 16), taps)


@pytest.mark.parametrize(
    ("depth", "taps"),
    [(12, (2, 5, 8, 11)), (24, (4, 11, 17, 23)), (32, (7, 15, 23, 31)), (40, (9, 19, 29, 39))],
)
def test_default_taps(depth, taps):
    assert default_taps(depth) == taps


def test_an_impossible_shape_is_refused():
    with pytest.raises(GramLoopError, match="divides the width 64"):
        BackboneShape(2, 64, head_dim=24)
    with pytest.raises(GramLoopError, match="four taps"):
        default_taps(3)


def test_rotary_angles_turn_with_the_period(golden_file):
    """The first period is 1 and coordinates span [-1, 1]: the first of two rows lies at the angle -π."""
    rope = load_backbone(golden_file("backbone_s")).model.rope_embeddings
    cos, _ = rope(torch.zeros(1, 3, 32, 32))
    assert cos[0, 0].item() == pytest.approx(math.cos(2 * math.pi * -0.5), abs=1e-6)
