from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from golden import load_golden
from gramloop.errors import GramLoopError
from gramloop.models.backbone import BackboneShape
from gramloop.models.checkpoint import open_checkpoint
from gramloop.models.dino import dinov3_file_shapes, load_backbone, meta_backbone
from gramloop.models.tiny import WEIGHTS


def save(path, weights):
    torch.save(weights, path)
    return path


@pytest.fixture
def weights():
    return dict(load_golden("backbone_s").weights)


def test_a_missing_name_is_named(tmp_path, weights):
    del weights["blocks.3.norm2.bias"]
    with pytest.raises(GramLoopError, match=r"nothing was loaded: 1 missing \(blocks\.3\.norm2\.bias\)$"):
        load_backbone(save(tmp_path / "a.pth", weights))


def test_an_unknown_name_is_named(tmp_path, weights):
    weights["head.weight"] = torch.zeros(3)
    with pytest.raises(GramLoopError, match=r"1 unknown \(head\.weight\)$"):
        load_backbone(save(tmp_path / "a.pth", weights))


def test_another_shape_is_named(tmp_path, weights):
    weights["blocks.0.attn.proj.weight"] = torch.zeros(64, 60)
    with pytest.raises(GramLoopError, match=r"attn\.proj\.weight is \(64, 60\) instead of \(64, 64\)"):
        load_backbone(save(tmp_path / "a.pth", weights))


def test_only_the_first_differences_are_named(tmp_path, weights):
    for index in range(8):
        del weights[f"blocks.{index}.ls1.gamma"]
    with pytest.raises(GramLoopError, match="8 missing") as caught:
        load_backbone(save(tmp_path / "a.pth", weights))
    assert "blocks.2.ls1.gamma, …" in str(caught.value)
    assert "blocks.3.ls1.gamma" not in str(caught.value)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_truncated_file_is_refused(tmp_path, weights, suffix, share):
    path = tmp_path / f"a{suffix}"
    torch.save(weights, path) if suffix == ".pth" else save_file(weights, path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(GramLoopError, match=r"a\.\w+ cannot be read .* may be truncated"):
        load_backbone(path)


def test_a_file_that_runs_code_is_refused_and_does_not_run(tmp_path):
    class Harm:
        def __reduce__(self):
            return (open, (str(tmp_path / "harm"), "w"))

    with pytest.raises(GramLoopError, match="cannot be read"):
        load_backbone(save(tmp_path / "a.pth", {"cls_token": Harm()}))
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"weights": {"a": torch.zeros(1)}}, "holds dict under 'weights'"),
        ([torch.zeros(1)], "holds list instead of named tensors"),
        ({"segmentation_model.0.level_embed": torch.zeros(1)}, "not a DINOv3 backbone: it lacks cls_token"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path, content, words):
    with pytest.raises(GramLoopError, match=words):
        load_backbone(save(tmp_path / "a.pth", content))


def test_no_file_and_no_download(tmp_path):
    with pytest.raises(GramLoopError, match="does not exist; checkpoints are local"):
        load_backbone(tmp_path / "facebook" / "dinov3-vits16-pretrain-lvd1689m")
    with pytest.raises(GramLoopError, match=r"neither model\.safetensors nor"):
        load_backbone(tmp_path)


@pytest.mark.parametrize("value", [1.0, float("nan")])
def test_an_active_or_unfinished_key_bias_is_refused(tmp_path, weights, value):
    weights["blocks.5.attn.qkv.bias_mask"] = torch.full((192,), value)
    with pytest.raises(GramLoopError, match="keeps a bias of the keys"):
        load_backbone(save(tmp_path / "a.pth", weights))


def test_safetensors_in_the_released_naming(tmp_path, weights):
    save_file(weights, tmp_path / "a.safetensors")
    one, two = load_backbone(tmp_path / "a.safetensors"), load_backbone(save(tmp_path / "a.pth", weights))
    x = load_golden("backbone_s").values["x"]
    assert torch.equal(one(x, [7])[0].tokens, two(x, [7])[0].tokens)


def test_a_sharded_folder_and_its_lost_shard(tmp_path, weights):
    backbone = load_backbone(save(tmp_path / "a.pth", weights))
    folder = tmp_path / "folder"
    backbone.model.save_pretrained(folder, max_shard_size="500KB")
    shards = sorted(folder.glob("*-of-*.safetensors"))
    assert len(shards) > 1
    x = load_golden("backbone_s").values["x"]
    assert torch.allclose(load_backbone(folder)(x, [7])[0].tokens, backbone(x, [7])[0].tokens, atol=1e-5)
    shards[0].unlink()
    with pytest.raises(GramLoopError, match=rf"lacks {shards[0].name}"):
        load_backbone(folder)


def test_a_folder_with_a_config_of_something_else(tmp_path, weights):
    load_backbone(save(tmp_path / "a.pth", weights)).model.save_pretrained(tmp_path / "folder")
    (tmp_path / "folder" / "config.json").write_text(json.dumps({"model_type": "x"}))
    with pytest.raises(GramLoopError, match="num_attention_heads"):
        load_backbone(tmp_path / "folder")


def test_views_of_a_checkpoint(tmp_path):
    path = save(tmp_path / "a.pth", {"one.a": torch.ones(2), "one.b": torch.zeros(3), "two": torch.ones(1)})
    inside = open_checkpoint(path).under("one.")
    assert inside.shapes == {"a": (2,), "b": (3,)}
    assert set(inside.open()) == {"a", "b"}
    rest = open_checkpoint(path).without("one")
    assert (rest.shapes, set(rest.open())) == ({"two": (1,)}, {"two"})


MEASURE = """
import gc, sys, torch
from gramloop.models.backbone import BackboneShape
from gramloop.models.dino import load_backbone
from gramloop.models.backbone import Backbone

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

# the imports and first calls that any use of the library pays for
Backbone(BackboneShape(1, 16, head_dim=8))(torch.zeros(1, 3, 16, 16), [0])
for path, dtype in zip(sys.argv[1::2], sys.argv[2::2]):
    gc.collect()
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")
    before = peak()
    backbone = load_backbone(path, dtype=getattr(torch, dtype))
    touched = sum(float(value.sum()) for value in backbone.parameters())
    size = sum(value.nbytes for value in backbone.parameters()) / 1024
    print((peak() - before) / size)
    del backbone
"""


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
def test_loading_needs_little_more_memory_than_the_model(tmp_path):
    # twelve blocks, as the smallest released models; 340 MB, so that small change does not count
    shapes = dinov3_file_shapes(meta_backbone(BackboneShape(12, 768)))
    weights = {name: torch.zeros(shape) for name, shape in shapes.items()}
    weights["rope_embed.periods"] += 1
    for name in weights:
        if name.endswith("bias_mask"):
            weights[name] = torch.tensor([1.0, 0.0, 1.0]).repeat_interleave(768)
    files = [tmp_path / "a.pth", tmp_path / "a.safetensors"]
    torch.save(weights, files[0])
    save_file(weights, files[1])
    del weights
    cases = [(str(file), dtype) for file in files for dtype in ("float32", "bfloat16")]
    arguments = [word for case in cases for word in case]
    done = subprocess.run([sys.executable, "-c", MEASURE, *arguments], capture_output=True, text=True)
    for file in files:
        file.unlink()  # pytest would keep them
    assert done.returncode == 0, done.stderr
    ratios = [float(line) for line in done.stdout.split()]
    print("peak / model", ratios)
    assert len(ratios) == len(cases)
    assert max(ratios) <= 1.15


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_a_number_that_is_not_finite_is_refused(tmp_path, weights, device, value, dtype):
    weights = {name: each.to(dtype, copy=True) for name, each in weights.items()}
    load_backbone(save(tmp_path / "a.pth", weights), device=device)
    weights["blocks.1.mlp.fc1.weight"][3, 2] = value
    with pytest.raises(
        GramLoopError, match=r"a\.pth is damaged or was never finished: model\.layer\.1\..* holds"
    ):
        load_backbone(save(tmp_path / "a.pth", weights), device=device)


def test_what_float32_cannot_hold_is_refused(tmp_path, weights):
    weights["norm.weight"] = weights["norm.weight"].double() * 1e200
    with pytest.raises(GramLoopError, match=r"norm\.weight holds an infinity"):
        load_backbone(save(tmp_path / "a.pth", weights))


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_periods_that_are_none(tmp_path, weights, value):
    weights["rope_embed.periods"] = weights["rope_embed.periods"].clone()
    weights["rope_embed.periods"][0] = value
    with pytest.raises(GramLoopError, match=r"rope_embed\.periods holds a number that is not above 0"):
        load_backbone(save(tmp_path / "a.pth", weights))


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8, torch.complex64])
@pytest.mark.parametrize("name", ["blocks.1.mlp.fc1.weight", "blocks.2.attn.qkv.weight", "cls_token"])
def test_numbers_of_another_kind_are_refused(tmp_path, weights, device, dtype, name):
    weights[name] = weights[name].to(dtype)
    with pytest.raises(GramLoopError, match=rf"a\.pth holds {name} as \w+; it must be floating-point"):
        load_backbone(save(tmp_path / "a.pth", weights), device=device)


def test_names_that_are_numbers(tmp_path, weights):
    with pytest.raises(GramLoopError, match=r"a\.pth holds Tensor under 3; a flat file of named tensors"):
        load_backbone(save(tmp_path / "a.pth", {**weights, 3: torch.zeros(2)}))


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        (
            "layer_norm_eps",
            0.1,
            "has layer_norm_eps 0.1, but the weights next to it are those of a DINOv3 with 1e-05",
        ),
        ("model_type", "bert", "has model_type 'bert', but"),
        (
            "num_hidden_layers",
            3,
            "has num_hidden_layers 3, but the weights next to it are those of a DINOv3 with 12",
        ),
        ("hidden_act", "relu", "has hidden_act 'relu', but"),
        ("num_attention_heads", "4", "num_attention_heads and rope_theta must be numbers above 0, not '4'"),
        ("num_attention_heads", 0, "num_attention_heads and rope_theta must be numbers above 0"),
        ("rope_theta", -5.0, "num_attention_heads and rope_theta must be numbers above 0"),
    ],
)
def test_a_config_that_contradicts_the_weights(tmp_path, name, value, sentence):
    shutil.copytree(WEIGHTS / "backbone", tmp_path / "backbone")
    config = tmp_path / "backbone" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), name: value}))
    with pytest.raises(GramLoopError) as caught:
        load_backbone(tmp_path / "backbone")
    assert sentence in str(caught.value)


def test_on_the_meta_device_a_file_is_checked_and_not_kept(tmp_path, weights):
    path = tmp_path / "backbone.pth"
    torch.save(weights, path)
    described, loaded = load_backbone(path, device="meta"), load_backbone(path)
    assert described.shape == loaded.shape
    assert {name: value.shape for name, value in described.state_dict().items()} == {
        name: value.shape for name, value in loaded.state_dict().items()
    }
    assert all(value.is_meta for name, value in described.state_dict().items() if "inv_freq" not in name)
    assert not any(value.requires_grad for value in described.parameters())
    del weights["norm.weight"]
    torch.save(weights, path)
    with pytest.raises(GramLoopError, match=r"1 missing \(norm\.weight\)"):
        load_backbone(path, device="meta")
