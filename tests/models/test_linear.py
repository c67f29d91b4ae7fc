from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

from golden import load_golden
from gramloop.errors import GramLoopError
from gramloop.models.backbone import LinearHead, LinearSegmentor
from gramloop.models.dino import load_backbone


def trained_head(width=64, classes=5, taps=(1, 3, 5, 7)):
    """A head whose batch norm has seen something."""
    torch.manual_seed(3)
    head = LinearHead(width, classes, taps)
    head.train()([2 + 3 * torch.randn(4, width, 6, 6) for _ in taps])
    return head.eval()


@pytest.mark.parametrize("taps", [(7,), (1, 3, 5, 7)], ids=["one tap", "four taps"])
def test_a_head_is_an_affine_map_of_each_patch(taps):
    head = trained_head(taps=taps)
    maps = [torch.randn(2, 64, 4, 6) for _ in taps]
    with torch.no_grad():
        logits = head(maps)
        patch = torch.cat([each[1, :, 2, 3] for each in maps])
        normed = (patch - head.bn.running_mean) / (head.bn.running_var + 1e-5).sqrt()
        expected = head.conv.weight[:, :, 0, 0] @ (normed * head.bn.weight + head.bn.bias) + head.conv.bias
    assert logits.shape == (2, 5, 4, 6)
    assert torch.allclose(logits[1, :, 2, 3], expected, atol=1e-5)


@pytest.mark.parametrize("taps", [(7,), (1, 3, 5, 7)], ids=["one tap", "four taps"])
def test_saving_and_loading_gives_the_same_head(tmp_path, taps):
    head = trained_head(taps=taps)
    head.save(tmp_path / "head.safetensors")
    norm = {f"bn.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}
    assert set(load_file(tmp_path / "head.safetensors")) == norm | {"conv.weight", "conv.bias"}
    again = LinearHead.load(tmp_path / "head.safetensors")
    maps = [torch.randn(2, 64, 4, 6) for _ in taps]
    assert again.taps == taps
    assert torch.equal(again(maps), head(maps))
    assert [path.name for path in tmp_path.iterdir()] == ["head.safetensors"]


def test_a_failed_save_leaves_the_old_file(tmp_path):
    trained_head().save(tmp_path / "head.safetensors")
    before = (tmp_path / "head.safetensors").read_bytes()
    broken = trained_head()
    broken.bn.register_buffer("same", broken.conv.weight.data)  # safetensors refuses shared memory
    with pytest.raises(RuntimeError):
        broken.save(tmp_path / "head.safetensors")
    assert (tmp_path / "head.safetensors").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_that_does_not_know_its_taps(tmp_path):
    head = trained_head(taps=(7,))
    save_file(head.state_dict(), tmp_path / "head.safetensors")
    torch.save(head.state_dict(), tmp_path / "head.pth")
    for name in ("head.safetensors", "head.pth"):
        with pytest.raises(GramLoopError, match="does not hold the taps"):
            LinearHead.load(tmp_path / name)
        assert LinearHead.load(tmp_path / name, taps=[7]).taps == (7,)
    with pytest.raises(GramLoopError, match="is not a linear head on 3 taps"):
        LinearHead.load(tmp_path / "head.pth", taps=[1, 2, 3])


def test_a_file_of_something_else(tmp_path):
    torch.save(load_golden("backbone_s").weights, tmp_path / "a.pth")
    with pytest.raises(GramLoopError, match=r"its conv\.weight is missing"):
        LinearHead.load(tmp_path / "a.pth", taps=[7])


def test_a_segmentor_reads_its_taps(golden_file):
    backbone = load_backbone(golden_file("backbone_s"))
    head = trained_head(taps=(3, 7))
    segmentor = LinearSegmentor(backbone, head)
    x = load_golden("backbone_s").values
    with torch.no_grad():
        expected = head([x[f"plain.tap.{i}"].transpose(1, 2).reshape(2, 64, 4, 6) for i in (3, 7)])
        found = segmentor(x["x"])
        scores = segmentor.scores([], backbone(x["x"], (3, 7)), (64, 96))
    assert torch.allclose(found, expected, atol=1e-4)
    assert torch.equal(scores, torch.nn.functional.interpolate(found, (64, 96), mode="bilinear"))


def test_a_head_that_does_not_fit_its_backbone(golden_file):
    backbone = load_backbone(golden_file("backbone_s"))
    with pytest.raises(GramLoopError, match="width 32, this one has 64"):
        LinearSegmentor(backbone, LinearHead(32, 5, [7]))
    with pytest.raises(GramLoopError, match="between 0 and 7"):
        LinearSegmentor(backbone, LinearHead(64, 5, [8]))
