"""PMT's head and its files, against numbers of PMT's own modules."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from golden import load_golden, released_shapes, write_golden_pmt
from gramloop import GramLoopError, ReplayConfig, attached
from gramloop.models import load_backbone, load_pmt
from gramloop.models.backbone import BackboneShape
from gramloop.models.dino import SHAPES, dinov2, meta_backbone
from gramloop.models.pmt import PMT, PMTHead, PMTShape, trained_side
from gramloop.tasks.images import WEB

TAPS, TOKENS, MASKS, CLASSES = (
    1e-5,
    5e-5,
    1e-4,
    2e-5,
)  # suggested with the numbers: five times a second port's error
HEADS = {
    "pmt_small_coco_panoptic": ("vits16", 7_692_038),
    "pmt_base_coco_panoptic": ("vitb16", 30_424_454),
    "pmt_large_coco_panoptic": ("vitl16", 53_935_238),
    "pmt_large_coco_instance": ("vitl16", 53_880_913),
    "pmt_large_ade20k_semantic": ("vitl16", 53_850_263),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pmt")
    write_golden_pmt(folder)
    return folder


@pytest.fixture(scope="module")
def model(files):
    return load_pmt(files / "pytorch_model.bin", files / "backbone.pth")


@pytest.fixture(scope="module")
def pixels():
    mean, std = (torch.tensor(each)[:, None, None] for each in (WEB.mean, WEB.std))
    return (load_golden("pmt").values["x"].float() / 255 - mean) / std


def near(found, name, tolerance):
    expected = load_golden("pmt").values[name]
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= tolerance, name


@torch.no_grad()
def test_every_step_is_the_reference(model, pixels):
    taps = model.backbone(pixels, model.taps)
    head, decoder, rotary = model.head, model.head.decoder, model.backbone.rotary((4, 6))
    for index, (block, tap) in enumerate(zip(model.taps, taps, strict=True)):
        near(tap.tokens, f"tap.{block}", TAPS)
        normed = head.normed(index, tap.tokens)
        near(normed, f"bn.{index}", TAPS)
        near(decoder.lateral(index, normed), f"lateral.{index}", TOKENS)
    tokens = head.begin(taps)
    near(tokens, "tokens.0", TOKENS)
    for index, block in enumerate(decoder.blocks, start=1):
        tokens = block(tokens, position_embeddings=rotary)
        near(tokens[:, :20], f"queries.{index}", TOKENS)
        if index in (1, 3):
            near(tokens, f"tokens.{index}", TOKENS)
    normed = decoder.decoder_norm(tokens)
    near(normed, "decoder_norm", TOKENS)
    near(decoder.upscale[0](normed[:, 25:].transpose(1, 2).reshape(2, 64, 4, 6)), "upscale.0", TOKENS)
    near(decoder.pixels(normed, (4, 6)), "pixel", TOKENS)
    near(decoder.mask_head(normed[:, :20]), "mask_embed", TOKENS)
    classes, masks = model(pixels)
    near(classes, "class_logits", CLASSES)
    near(masks, "mask_logits", MASKS)


@torch.no_grad()
def test_predictions_before_every_block_are_the_reference_under_the_masks_of_training(model, pixels):
    taps = model.backbone(pixels, model.taps)
    decoder, tokens = model.head.decoder, model.head.begin(taps)
    for index, block in enumerate([*decoder.blocks, None]):
        classes, masks = decoder.predict(tokens, (4, 6))
        near(classes, f"masked.class_logits.{index}", CLASSES)
        near(masks, f"masked.mask_logits.{index}", MASKS)
        if block is not None:
            seen = F.interpolate(masks, (4, 6), mode="bilinear", align_corners=False).flatten(2) > 0
            allowed = torch.ones(2, 1, tokens.shape[1], tokens.shape[1], dtype=torch.bool)
            allowed[:, 0, :20, 25:] = seen
            tokens = block(tokens, attention_mask=allowed, position_embeddings=model.backbone.rotary((4, 6)))


@pytest.mark.parametrize("name", HEADS)
def test_names_shapes_and_parameters_of_the_released_heads(name, tmp_path):
    backbone, parameters = HEADS[name]
    shapes = released_shapes(name)
    file = tmp_path / "pytorch_model.bin"
    # a single zero, seen as every entry of the file, so that it weighs nothing
    torch.save({key: torch.zeros(()).expand(shape) for key, shape in shapes.items()}, file)
    model = load_pmt(file, meta_backbone(SHAPES[backbone]), device="meta")
    assert sum(value.numel() for value in model.head.parameters()) == parameters
    own = {f"network.{key}": tuple(value.shape) for key, value in model.head.state_dict().items()}
    assert shapes == own | {"network.decoder.attn_mask_probs": (6,)}
    assert model.taps == ((2, 5, 8, 11) if backbone != "vitl16" else (5, 11, 17, 23))


def fused(weights):
    found = {
        name: value for name, value in weights.items() if "_proj." not in name or "attention" not in name
    }
    for name, value in weights.items():
        if "attention.o_proj" in name:
            found[name] = value
        elif "attention.q_proj" in name:
            keys = weights.get(name.replace("q_proj", "k_proj"), torch.zeros_like(value))
            parts = [value, keys, weights[name.replace("q_proj", "v_proj")]]
            found[name.replace("q_proj", "qkv_proj")] = torch.cat(parts)
    return found


def of_a_trainer(weights):
    extra = {
        "criterion.empty_weight": torch.ones(8),
        "network.encoder.pixel_mean": torch.zeros(1, 3, 1, 1),
        "network.decoder.pe.weight": torch.zeros(2),
        "network.bn_prefix.0.weight": torch.zeros(2),
        "network.bn_patch.0.weight": torch.zeros(2),
        "network._attn_mask_probs_fallback": torch.zeros(3),
        "network.rope.periods": torch.zeros(4),
    }
    return {"state_dict": weights | extra}


LAYOUTS = {
    "under state_dict": lambda weights: {"state_dict": weights},
    "compiled": lambda weights: {
        name.replace("decoder.", "decoder._orig_mod."): each for name, each in weights.items()
    },
    "compiled whole": lambda weights: {f"_orig_mod.{name}": each for name, each in weights.items()},
    "without the prefix": lambda weights: {
        name.removeprefix("network."): each for name, each in weights.items()
    },
    "fused": fused,
    "of a trainer": of_a_trainer,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_file_is_read_in_every_form(layout, files, model, tmp_path):
    written = LAYOUTS[layout](load_golden("pmt").weights)
    torch.save(written, tmp_path / "head.bin")
    found = load_pmt(tmp_path / "head.bin", model.backbone).head.state_dict()
    expected = model.head.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_safetensors_are_read_too(model, tmp_path):
    from safetensors.torch import save_file

    save_file(load_golden("pmt").weights, tmp_path / "model.safetensors")
    found = load_pmt(tmp_path / "model.safetensors", model.backbone).head.state_dict()
    assert all(torch.equal(found[name], value) for name, value in model.head.state_dict().items())


def changed(weights, change):
    found = dict(weights)
    change(found)
    return found


WRONG = {
    "no queries": (lambda w: w.pop("network.decoder.q.weight"), "is not a PMT head: it lacks decoder.q.weight"),
    "queries without a width": (
        lambda w: w.update({"network.decoder.q.weight": torch.zeros(20)}),
        "is not a PMT head: it lacks dimension 1 of decoder.q.weight",
    ),
    "no batch norms": (
        lambda w: [w.pop(name) for name in list(w) if name.startswith("network.bn.")],
        "is not a PMT head: it lacks bn.0.weight",
    ),
    "one name twice": (
        lambda w: w.update({"network._orig_mod.decoder.q.weight": torch.zeros(20, 64)}),
        "holds network.decoder.q.weight under two names",
    ),
    "keys with a bias": (
        lambda w: (
            w.update(fused(w)),
            [w.pop(name) for name in list(w) if "attention" in name and "qkv" not in name and "o_proj" not in name],
            w.update({"network.decoder.blocks.1.attention.qkv_proj.bias": torch.ones(192)}),
        ),
        "has a bias on the keys in decoder.blocks.1.attention.qkv_proj.bias",
    ),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_a_file_that_does_not_fit_is_told_in_one_sentence(wrong, model, tmp_path):
    change, said = WRONG[wrong]
    torch.save(changed(load_golden("pmt").weights, change), tmp_path / "head.bin")
    with pytest.raises(GramLoopError, match=said):
        load_pmt(tmp_path / "head.bin", model.backbone)


def test_a_head_that_does_not_fit_its_backbone_is_told_in_one_sentence(files, model, tmp_path):
    with pytest.raises(GramLoopError, match=r"for a backbone of width 64, the backbone given has 384"):
        load_pmt(files / "pytorch_model.bin", meta_backbone(SHAPES["vits16"]), device="meta")
    with torch.device("meta"):
        other = dinov2(BackboneShape(12, 64, patch=14), 4)
    with pytest.raises(GramLoopError, match="needs a DINOv3 backbone, not a Dinov2WithRegistersModel"):
        load_pmt(files / "pytorch_model.bin", other, device="meta")
    with pytest.raises(GramLoopError, match="trained on a DINOv3 of web images"):
        load_pmt(files / "pytorch_model.bin", tmp_path / "dinov3_vitl16_pretrain_sat493m-eadcf0ff.pth")
    with torch.device("meta"):
        head = PMTHead(PMTShape(64, 32, queries=3, classes=2))
    with pytest.raises(
        GramLoopError, match="heads of 32 and 4 taps, not for those of this backbone, 16 and 4"
    ):
        PMT(model.backbone, head)


def test_periods_are_exact_where_a_released_file_has_rounded_ones(files, model, pixels, tmp_path):
    rounded = dict(load_golden("pmt").backbone)
    rounded["rope_embed.periods"] = rounded["rope_embed.periods"].bfloat16()
    torch.save(rounded, tmp_path / "rounded.pth")
    own = load_backbone(tmp_path / "rounded.pth")
    with pytest.raises(GramLoopError, match="those of the backbone given are rounded"):
        load_pmt(files / "pytorch_model.bin", own)
    found = load_pmt(files / "pytorch_model.bin", tmp_path / "rounded.pth")
    with torch.no_grad():
        near(found(pixels)[1], "mask_logits", MASKS)
        moved = PMT(own, model.head)(pixels)[1]
    assert (moved - load_golden("pmt").values["mask_logits"]).abs().max() > 1e-2  # what rounding would cost


def test_a_transformers_folder_is_a_backbone_too(files, model, pixels, tmp_path):
    model.backbone.model.save_pretrained(tmp_path / "vit")
    with torch.no_grad():
        near(load_pmt(files / "pytorch_model.bin", tmp_path / "vit")(pixels)[1], "mask_logits", MASKS)


def test_a_replay_moves_class_and_register_tokens_too(model, pixels):
    replay = ReplayConfig(window=(3, 4))
    with torch.no_grad():
        plain = model.backbone(pixels, model.taps)
        with attached(model.backbone.model, replay) as loop:
            taps = model.backbone(pixels, model.taps)
        expected = load_golden("backbone_s")
        assert loop.blocks_executed == 8 + 2 * (2 + 3) + 3
        assert not torch.equal(taps[-1].tokens[:, :5], plain[-1].tokens[:, :5])
        kept = [
            type(tap)(torch.cat([old.tokens[:, :5], tap.patches], 1), tap.grid)
            for tap, old in zip(taps, plain, strict=True)
        ]
        assert (model.predict(taps)[1] - model.predict(kept)[1]).abs().max() > MASKS  # the head reads them
        with attached(model.backbone.model, replay):
            found = model.backbone(expected.values["x"], [7])[0]
    assert (found.cls - expected.values["gramloop.cls.7"]).abs().max() <= TAPS
    assert (found.tokens[:, 1 : found.prefix] - expected.values["gramloop.reg.7"]).abs().max() <= TAPS


def test_the_size_of_training_is_read_off_the_name(tmp_path):
    assert trained_side(tmp_path / "coco_panoptic_pmt_large_1280_dinov3" / "pytorch_model.bin") == 1280
    assert trained_side(tmp_path / "ade20k_semantic_pmt_large_512_dinov3.bin") == 512
    assert trained_side(tmp_path / "pytorch_model.bin") is None
