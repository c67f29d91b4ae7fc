"""Backbones and modules of one's own: exported with what is attached, or refused in a sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gramloop
from exported import read_export
from gramloop import ReplayConfig
from library_models import build

REPLAY = ReplayConfig(window=(2, 3), replays=1)


class Features(nn.Module):
    def __init__(self, vit: nn.Module) -> None:
        super().__init__()
        self.vit = vit

    def forward(self, pixels: Tensor) -> Tensor:
        return self.vit(pixels).last_hidden_state


@pytest.fixture(scope="module")
def small() -> tuple[Features, Tensor]:
    vit, x = build("DINOv3ViTModel")
    return Features(vit).eval(), x[:1]


def test_a_random_dinov3_backbone_replayed_in_onnxruntime(
    small: tuple[Features, Tensor], tmp_path: Path
) -> None:
    model, x = small
    high, wide = x.shape[-2:]
    out = gramloop.export(model, tmp_path / "x.onnx", mitigations=REPLAY, height=high, width=wide)
    assert out.about.input["pixels"].startswith(f"float32 images (1, 3, {high}, {wide})")
    with (
        torch.no_grad(),
        gramloop.attached(model, REPLAY),
    ):  # which would refuse, had anything stayed attached
        expected = model(x).numpy()
    found = read_export(out.path)(x.numpy())["output"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)  # features have scale 4


def test_what_is_attached_already_is_exported_and_named(
    small: tuple[Features, Tensor], tmp_path: Path
) -> None:
    model, x = small
    with gramloop.attached(model, REPLAY):
        out = gramloop.export(model, tmp_path / "x.pt2", height=x.shape[-2], width=x.shape[-1])
        with torch.no_grad():
            expected = model(x).numpy()
    assert out.about.mitigations == "replay:window=2-3,replays=1"
    np.testing.assert_allclose(read_export(out.path)(x.numpy())["output"], expected, rtol=0, atol=1e-5)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3, 4096), 0.5))

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        return pixels.mean((2, 3)) @ self.weight, pixels.amax((2, 3))


class Dice(nn.Module):
    def forward(self, pixels: Tensor) -> Tensor:
        return pixels + torch.rand_like(pixels)


class Branches(nn.Module):
    def forward(self, pixels: Tensor) -> Tensor:
        return pixels + 1 if pixels.sum() > 0 else pixels


def test_large_weights_are_a_second_file_and_old_ones_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gramloop.export import formats

    monkeypatch.setattr(formats, "ONE_FILE", 1000)
    path = tmp_path / "model.onnx"
    first = gramloop.export(Two().eval(), path, height=4, width=4)
    (data,) = first.companions
    assert data.stat().st_size >= 4 * 4096
    assert path.stat().st_size < 4 * 4096
    x = np.ones((1, 3, 4, 4), np.float32)
    np.testing.assert_allclose(read_export(path)(x)["output_0"], 1.5, rtol=1e-6)
    other = Two().eval()
    with torch.no_grad():
        other.weight.mul_(2)
    second = gramloop.export(other, path, height=4, width=4)
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([path.name, second.companions[0].name])
    assert second.companions[0] != data, "a reader of the old file never saw weights of the new one"
    np.testing.assert_allclose(read_export(path)(x)["output_0"], 3.0, rtol=1e-6)
    assert str(path.name) in str(second)


def test_the_same_export_says_the_same(tmp_path: Path) -> None:
    texts = [
        gramloop.export(Two().eval(), tmp_path / name, height=4, width=4).about.to_json()
        for name in ("a.pt2", "b.onnx")
    ]
    assert texts[0] == texts[1]
    assert str(tmp_path) not in texts[0]


@pytest.mark.parametrize("kind", ["onnx", "pt2"])
def test_a_file_that_does_not_agree_is_not_written(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"x.{kind}"
    path.write_bytes(b"an older file")
    with pytest.raises(
        gramloop.GramLoopError, match=rf"x.{kind} was not written: .* differs from the model in torch by"
    ):
        gramloop.export(Dice().eval(), path, height=4, width=4)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == b"an older file"


def test_a_model_that_cannot_be_traced_is_a_sentence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(gramloop.GramLoopError, match="torch cannot trace Branches as one program: "):
        gramloop.export(Branches().eval(), tmp_path / "x.pt2", height=4, width=4)
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr() == ("", ""), "torch prints the whole graph"
