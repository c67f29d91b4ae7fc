"""Models that a diagnosis can look into: a predictor, or a vision transformer without a head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from gramloop.errors import GramLoopError
from gramloop.models.backbone import refuse_many_tokens
from gramloop.models.checkpoint import refuse_unsound
from gramloop.models.dinov2 import load_any_backbone
from gramloop.models.tiny import TINY_SHORT_SIDE, load_tiny
from gramloop.replay.config import ReplayConfig
from gramloop.replay.cost import route
from gramloop.replay.vit import find_vit
from gramloop.tasks.diagnosis import Diagnosis, diagnose, diagnose_prediction
from gramloop.tasks.images import (
    RGB,
    WEB,
    Normalisation,
    normalisation_of,
    resize_short_side,
    short_side_size,
    to_tensor,
)
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor, check_replay
from gramloop.tasks.transformers_models import read_config
from gramloop.util.json_files import read_checked

SHORT_SIDE = 512  # enough patches to see something, and minutes less than the tasks' own sizes on a CPU


@dataclass(frozen=True)
class View:
    """A model with a replay, ready for images: pixels (H, W, 3) → the image as it was seen, and its diagnosis."""

    name: str
    diagnose: Callable[[RGB], tuple[RGB, Diagnosis]]


def predictor_view(name: str, predictor: Predictor[Prediction], replay: ReplayConfig) -> View:
    """A predictor, which looks through its own windows."""
    check_replay(predictor, replay)
    return View(name, lambda pixels: (pixels, diagnose_prediction(predictor, pixels, replay)))


def tiny_view(
    name: str, folder: Path | str, replay: ReplayConfig, device: torch.device, short_side: int | None = None
) -> View:
    """The embedded model, or one in its format."""
    model = load_tiny(folder, device)
    return View(name, _whole_image(model, model.features, replay, WEB, short_side, TINY_SHORT_SIDE))


def backbone_view(
    path: Path, replay: ReplayConfig, device: torch.device, short_side: int | None = None
) -> View:
    """A backbone's file, or a folder that transformers can open."""
    run: Callable[[Tensor], object]
    if _is_foreign_folder(path):
        model = _open_with_transformers(path).to(device)
        run = lambda pixels: model(pixel_values=pixels)  # noqa: E731
    else:
        backbone = load_any_backbone(path, device=device)
        model, last = backbone, [backbone.shape.depth - 1]
        run = lambda pixels: backbone(pixels, last)  # noqa: E731
    normalisation = normalisation_of(path, _stored_normalisation(path))
    return View(path.name, _whole_image(model, run, replay, normalisation, short_side, SHORT_SIDE))


def _whole_image(
    model: nn.Module,
    run: Callable[[Tensor], object],
    replay: ReplayConfig,
    normalisation: Normalisation,
    asked: int | None,
    usual: int,
) -> Callable[[RGB], tuple[RGB, Diagnosis]]:
    """Look at the whole image at once, its short side as asked for, its long side rounded to patches."""
    host = find_vit(model)
    route(replay, host.depth)
    patch = 16 if host.patch_embedding is None else int(host.patch_embedding.stride[0])
    short_side = asked if asked is not None else usual - usual % patch
    if short_side < patch or short_side % patch:
        raise GramLoopError(
            f"the short side is {short_side}; it is a multiple of the patches' side, {patch}, such as {8 * patch}"
        )
    device = next(model.parameters()).device

    def look(pixels: RGB) -> tuple[RGB, Diagnosis]:
        height, width = pixels.shape[:2]
        rows, columns = (each // patch for each in short_side_size(height, width, short_side, multiple=patch))
        what = f"an image of {width} x {height} at a short side of {short_side}"
        refuse_many_tokens(rows, columns, what)
        seen = resize_short_side(pixels, short_side, multiple=patch)
        return seen, diagnose(model, to_tensor(seen, normalisation).to(device), replay, run=run)

    return look


def _is_foreign_folder(path: Path) -> bool:
    """A transformers folder of another family than DINOv3, which has a loader of its own."""
    return (path / "config.json").is_file() and read_config(path).get("model_type") != "dinov3_vit"


def _open_with_transformers(path: Path) -> nn.Module:
    from transformers import AutoModel

    try:
        model, told = AutoModel.from_pretrained(path, local_files_only=True, output_loading_info=True)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise GramLoopError(f"transformers cannot open {path}: {first}") from error
    if missing := sorted(name for name in told["missing_keys"] if "pooler" not in name):
        raise GramLoopError(f"{path} lacks {len(missing)} of the model's weights, such as {missing[0]}")
    refuse_unsound(model, path)
    vit: nn.Module = getattr(model, "vision_model", model)  # the image half of a model of images and words
    return vit.eval().requires_grad_(False)


def _stored_normalisation(path: Path) -> Normalisation:
    """What the folder's image processor says, otherwise what DINO models were trained with."""
    stored = path / "preprocessor_config.json"
    if not stored.is_file():
        return WEB
    found = read_checked(stored, _StoredProcessor, "the configuration of an image processor")
    return (
        WEB
        if found.image_mean is None or found.image_std is None
        else Normalisation(found.image_mean, found.image_std)
    )


@dataclass(frozen=True)
class _StoredProcessor:
    """What is read of preprocessor_config.json."""

    image_mean: tuple[float, float, float] | None = None
    image_std: tuple[float, float, float] | None = None
