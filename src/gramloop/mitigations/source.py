"""Ordinary images in a few numbers: the mean of the patches at each tap, its spread, and the usual noise.

Nothing here needs a label. `calibrate` looks at a few dozen ordinary images as the predictor does; the file keeps
the numbers for one backbone, and says which.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from gramloop.core.known import fingerprint
from gramloop.errors import GramLoopError
from gramloop.io.atomic import atomic_write
from gramloop.models.taps import Tap, TappedViT
from gramloop.tasks.images import ImageLike, read_image
from gramloop.tasks.prediction import P, Prediction
from gramloop.tasks.predictor import Predictor, ViTPredictor

TapChange = Callable[[int, Tap], Tap]  # block and its tap → what the head sees

KIND = "gramloop source"
LEAST = 8  # images; a spread of fewer says nothing


@dataclass(frozen=True)
class Source:
    """What ordinary images look like to one backbone."""

    means: Mapping[int, Tensor]  # tap: (C,), over all patches of all views
    spreads: Mapping[int, Tensor]  # tap: (C,), standard deviation of one view's mean
    noise: float  # the level below which 99 of 100 images lie
    images: int
    backbone: str = ""  # its fingerprint

    def check(self, predictor: ViTPredictor[Prediction]) -> None:
        """Refuse statistics of another backbone or of other taps."""
        width = predictor.backbone.shape.width
        if lacking := [tap for tap in predictor.taps if tap not in self.means]:
            raise GramLoopError(
                f"the source statistics are of the taps {sorted(self.means)}, and the head reads tap {lacking[0]}; "
                "calibrate again with this model"
            )
        wrong = [each for each in self.means.values() if each.shape != (width,)]
        found = fingerprint(predictor.host)
        if wrong or (found and self.backbone and found != self.backbone):
            raise GramLoopError(
                "the source statistics are of another backbone; calibrate again with this model"
            )


def calibrate(predictor: Predictor[Prediction], images: Iterable[ImageLike]) -> Source:
    """The statistics of ordinary images, a few dozen of them; labels are not needed.

    Args:
        predictor: a head on a ViT; it looks at the images in its usual way.
        images: ordinary images, such as the model was trained for.
    """
    from gramloop.mitigations.denoise import noise_level

    vit = check_taps(predictor, "calibrate")
    seen: dict[int, list[Tensor]] = {tap: [] for tap in vit.taps}

    def record(block: int, tap: Tap) -> Tap:
        seen[block].append(tap.patches.detach().double().mean(1).cpu())  # (B, C)
        return tap

    watched, levels = with_taps(vit, record), []
    for image in images:
        pixels = read_image(image)
        watched.predict(pixels)
        levels.append(noise_level(pixels))
    if len(levels) < LEAST:
        raise GramLoopError(
            f"calibration needs at least {LEAST} ordinary images, better a few dozen, not {len(levels)}"
        )
    views = {tap: torch.cat(means) for tap, means in seen.items()}
    return Source(
        {tap: each.mean(0).float() for tap, each in views.items()},
        {tap: each.std(0).float() for tap, each in views.items()},
        float(np.quantile(levels, 0.99)),
        len(levels),
        fingerprint(vit.host),
    )


def check_taps(predictor: Predictor[Prediction], wanting: str) -> ViTPredictor[Prediction]:
    """The predictor, where it is a head on taps of a ViT."""
    if not isinstance(predictor, ViTPredictor):
        raise GramLoopError(
            f"{wanting} acts on the features that a head reads from a ViT, which {type(predictor).__name__} does "
            "not show"
        )
    return predictor


def with_taps(predictor: ViTPredictor[P], adjust: TapChange) -> ViTPredictor[P]:
    """A predictor of the same weights whose head sees the adjusted taps; the given one stays as it is."""
    backbone = copy.copy(predictor.backbone)
    before = backbone.adjust
    backbone.adjust = adjust if before is None else lambda block, tap: adjust(block, before(block, tap))
    changed = copy.copy(predictor)
    changed.backbone = backbone
    model = getattr(predictor, "model", None)
    if isinstance(model, nn.Module) and isinstance(getattr(model, "backbone", None), TappedViT):
        twin = copy.copy(model)
        twin._modules = {**model._modules, "backbone": backbone}
        vars(changed)["model"] = twin
    return changed


def write_source(path: str | Path, source: Source) -> None:
    """Store the statistics as safetensors, whole or not at all."""
    from safetensors.torch import save

    tensors = {f"mean.{tap}": value.contiguous() for tap, value in source.means.items()}
    tensors |= {f"spread.{tap}": value.contiguous() for tap, value in source.spreads.items()}
    about = {"noise": source.noise, "images": source.images, "backbone": source.backbone}
    # one entry: safetensors writes several in any order, and the file's checksum should follow from its content
    atomic_write(Path(path), save(tensors, metadata={KIND: json.dumps(about)}))


def read_source(path: str | Path) -> Source:
    """The statistics of a file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as opened:
            stored = opened.metadata() or {}
            parts = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - no mapping
    except (OSError, SafetensorError) as error:
        raise GramLoopError(f"cannot read the source statistics {path}: {error}") from error
    if KIND not in stored:
        raise GramLoopError(f"{path} holds no source statistics; gramloop.mitigations.calibrate makes them")
    about = json.loads(stored[KIND])
    named = {
        kind: {int(name.split(".")[1]): value for name, value in parts.items() if name.startswith(kind)}
        for kind in ("mean.", "spread.")
    }
    return Source(
        named["mean."], named["spread."], float(about["noise"]), int(about["images"]), str(about["backbone"])
    )
