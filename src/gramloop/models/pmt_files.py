"""PMT's head files: read in every form in which they were written, then checked as strictly as any other.

The weights lie flat or under ``state_dict``; names may begin with ``network.`` and carry ``_orig_mod``, which
torch.compile writes; queries, keys and values may be fused; and a trainer leaves entries of its own. What a file does
not say is which blocks the head reads and in which size it was trained.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch

from gramloop.errors import GramLoopError
from gramloop.models.backbone import fitting, load_backbone
from gramloop.models.checkpoint import Checkpoint, Shapes, Source, identity_plan, load, open_checkpoint
from gramloop.models.pmt import PMT, PMTHead, PMTShape
from gramloop.models.taps import TappedViT

INSIDE = "state_dict"  # the key under which a file may keep its weights
PREFIX = "network."
UNUSED = "decoder.attn_mask_probs"  # of training; every file has it
QUERIES, CLASSES = "decoder.q.weight", "decoder.class_head.weight"
# what a trainer leaves in its own checkpoints, and inference does not need
_LEFTOVERS = re.compile(
    r"criterion\.|encoder\.|decoder\.pe\.|bn_prefix\.|bn_patch\.|_attn_mask_probs_fallback$|rope\."
)
_TRAINED_AT = re.compile(r"pmt_[a-z]+_(\d+)_dinov3")


def load_pmt(
    head: str | Path,
    backbone: TappedViT | str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    verify: bool = False,
) -> PMT:
    """A PMT head on its backbone, which is a transformers folder, Meta's file, or loaded already.

    Rotary periods are exact, as the heads were trained with them, also where Meta's file has rounded ones. ``dtype`` is
    that of the backbone's weights; the head is float32.
    """
    checkpoint = open_pmt(head, verify=verify)
    if isinstance(backbone, str | Path):
        if "sat493m" in str(backbone):
            raise GramLoopError(
                f"{checkpoint.path} was trained on a DINOv3 of web images (lvd1689m), but {backbone} is one of satellite "
                "images"
            )
        backbone = load_backbone(backbone, dtype=dtype, device=device, verify=verify, exact_periods=True)
    checkpoint.require([QUERIES], "a PMT head")
    backbone = fitting(backbone, checkpoint.shapes[QUERIES][1], checkpoint.path)
    shape = infer_pmt_shape(checkpoint, backbone.shape.head_dim)
    if torch.device(device).type != "meta" and backbone.rounded_periods:
        raise GramLoopError(
            f"{checkpoint.path} was trained with exact rotary periods, but those of the backbone given are rounded; "
            "load_backbone(path, exact_periods=True) has the others"
        )
    with torch.device("meta"):
        made = PMTHead(shape)
    load(made, checkpoint, released_plan(made, checkpoint), also={UNUSED: (shape.layers,)}, device=device)
    if torch.device(device).type != "meta":
        _check_fused_biases(checkpoint)
    return PMT(backbone, made.requires_grad_(False))


def open_pmt(path: str | Path, *, verify: bool = False) -> Checkpoint:
    """A head's file under the names of `PMTHead`, without what inference does not need."""
    found = open_checkpoint(path, inside=INSIDE, verify=verify)
    return clean_names(found).without(lambda name: _LEFTOVERS.match(name) is not None)


def clean_names(checkpoint: Checkpoint) -> Checkpoint:
    """The entries without prefixes of wrappers."""
    return checkpoint.renamed(lambda name: re.sub(r"(^|\.)_orig_mod(?=\.)", "", name).lstrip(".")).renamed(
        lambda name: name.removeprefix(PREFIX)
    )


def infer_pmt_shape(checkpoint: Checkpoint, head_dim: int) -> PMTShape:
    """The sizes of a head; that of its attention's heads is the backbone's, and not in the file."""
    shapes = checkpoint.shapes
    needed = {
        "queries": QUERIES,
        "classes": CLASSES,
        "hidden": "decoder.blocks.0.mlp.up_proj.weight",
    }
    checkpoint.require(needed.values(), "a PMT head")
    checkpoint.require(["bn.0.weight"], "a PMT head", dimensions=1)
    queries, channels = shapes[QUERIES]
    return PMTShape(
        channels=channels,
        head_dim=head_dim,
        queries=queries,
        classes=shapes[needed["classes"]][0] - 1,
        hidden=shapes[needed["hidden"]][0],
        layers=_count(shapes, r"decoder\.blocks\.(\d+)\."),
        taps=_count(shapes, r"bn\.(\d+)\."),
    )


def trained_side(path: str | Path) -> int | None:
    """The size in which a released head was trained, by the name of its repository in the path; None without it."""
    found = _TRAINED_AT.search(str(Path(path).absolute()))
    return int(found[1]) if found else None


def released_plan(head: PMTHead, checkpoint: Checkpoint) -> dict[str, Source]:
    """What each tensor is made of; fused projections are taken apart."""
    plan = identity_plan(head)
    for name, value in head.state_dict().items():
        part = re.search(r"\.([qkv])_proj\.", name)
        fused = "" if part is None else name.replace(part[0], ".qkv_proj.")
        if part is not None and fused in checkpoint.shapes:
            plan[name] = Source.part(fused, "qkv".index(part[1]), 3, value.shape)
    return plan


def _check_fused_biases(checkpoint: Checkpoint) -> None:
    """A head has no bias on its keys; a file that fuses it in has zeros there."""
    tensors = checkpoint.open()
    for name, value in tensors.items():
        if name.endswith(".qkv_proj.bias") and bool(value.chunk(3)[1].any()):
            raise GramLoopError(
                f"{checkpoint.path} has a bias on the keys in {name}, which a PMT head does not have"
            )


def _count(shapes: Shapes, pattern: str) -> int:
    return len({found[1] for name in shapes if (found := re.match(pattern, name))})
