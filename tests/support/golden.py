"""The weights behind tests/golden: they follow from their names, so no file of weights is stored."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from gramloop.models.checkpoint import Shapes, planned_shapes, renamed_plan
from gramloop.models.detector import DETECTOR_BACKBONE, WindowedDetector
from gramloop.models.dino import dinov3_file_shapes
from gramloop.models.mask2former import SEGMENTOR_BACKBONE, SEGMENTOR_PREFIX, Mask2FormerSegmentor

FOLDER = Path(__file__).parents[1] / "golden"
STATE_DICTS = Path(__file__).parents[1] / "state_dicts"


@dataclass(frozen=True)
class Golden:
    config: dict[str, Any]
    values: dict[str, Tensor]  # inputs and expected outputs
    weights: dict[str, Tensor]  # in the released naming
    backbone: dict[str, Tensor] = field(default_factory=dict)  # where it lies in a file of its own


@cache
def load_golden(name: str) -> Golden:
    config = json.loads((FOLDER / f"{name}.json").read_text())
    entries = config.pop("state_dict")
    head_dim = config["embed_dim"] // config["heads"] if "heads" in config else 0
    weights, backbone = (
        {key: make_weight(key, shape, config["seed"], head_dim) for key, (shape, _) in part.items()}
        for part in (entries, config.pop("backbone_state_dict", {}))
    )
    return Golden(config, load_file(FOLDER / f"{name}.safetensors"), weights, backbone)


def make_weight(name: str, shape: list[int], seed: int, head_dim: int) -> Tensor:
    leaf = name.rpartition(".")[2]
    if leaf == "num_batches_tracked":
        return torch.zeros(shape, dtype=torch.int64)
    if leaf == "bias_mask":
        return torch.tensor([1.0, 0.0, 1.0]).repeat_interleave(shape[0] // 3)
    if leaf == "periods":
        return torch.from_numpy(100 ** (np.arange(shape[0]) / (head_dim / 4))).float()
    if leaf == "attn_mask_probs":
        return torch.ones(shape)
    for alias in ("class_embed", "bbox_embed"):
        name = name.replace(f"transformer.decoder.{alias}", alias)
    generator = np.random.Generator(np.random.PCG64(zlib.crc32(f"{seed}:{name}".encode())))
    return torch.from_numpy(
        np.asarray(_scaled("scaler" if ".scalers." in name else leaf, generator.standard_normal(shape)))
    ).float()


def _scaled(leaf: str, r: np.ndarray) -> np.ndarray:
    if leaf in ("gamma", "lambda1"):
        return 0.3 + 0.1 * r
    if leaf == "running_mean":
        return 0.1 * r
    if leaf == "running_var":
        return 1 + 0.2 * np.abs(r)
    if leaf == "scaler" or (leaf == "weight" and r.ndim == 1):
        return 1 + 0.1 * r
    if r.ndim <= 1:
        return 0.05 * r
    return r / np.sqrt(np.prod(r.shape[1:]))


def write_golden_pmt(folder: Path) -> tuple[Path, Path]:
    """A backbone as Meta releases it and a PMT head, in files: their paths, the backbone first."""
    golden = load_golden("pmt")
    backbone, head = folder / "backbone.pth", folder / "pytorch_model.bin"
    torch.save(golden.backbone, backbone)
    torch.save(golden.weights, head)
    return backbone, head


def write_golden_depther(folder: Path) -> tuple[Path, Path]:
    """Meta's depth model in files as it is released: the backbone and the head."""
    golden = load_golden("depther")
    paths = []
    for name, prefix in golden.config["prefixes"].items():
        part = {key: value for key, value in golden.weights.items() if key.startswith(prefix)}
        paths.append(folder / f"{name}.pth")
        torch.save({key.removeprefix(prefix): value for key, value in part.items()}, paths[-1])
    return paths[0], paths[1]


def released_shapes(name: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a released file."""
    return {
        key: tuple(entry[0]) for key, entry in json.loads((STATE_DICTS / f"{name}.json").read_text()).items()
    }


def detector_shapes(detector: WindowedDetector) -> Shapes:
    """Every name with its shape in a released file of the detector that repeats its backbone."""
    head = {name: tuple(value.shape) for name, value in detector.head.state_dict().items()}
    inner = dinov3_file_shapes(detector.backbone)
    return head | {DETECTOR_BACKBONE + name: shape for name, shape in inner.items()}


def segmentor_shapes(segmentor: Mask2FormerSegmentor) -> Shapes:
    """The same of the segmentor."""
    head = planned_shapes(renamed_plan(segmentor.head))
    inner = dinov3_file_shapes(segmentor.backbone)
    shapes = {SEGMENTOR_PREFIX + name: shape for name, shape in head.items()}
    return shapes | {SEGMENTOR_BACKBONE + name: shape for name, shape in inner.items()}
