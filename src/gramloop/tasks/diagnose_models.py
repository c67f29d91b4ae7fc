"""The models that ``gramloop diagnose`` can look into, each as a name and a function of pixels."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from gramloop.core.config import ReplayConfig, route
from gramloop.core.hosts import find_host
from gramloop.errors import GramLoopError
from gramloop.io.device import choose_device
from gramloop.tasks.diagnose import Diagnosis, diagnose, diagnose_prediction
from gramloop.tasks.images import SATELLITE, WEB, Normalisation, resize_short_side, to_tensor

Settings = Callable[..., ReplayConfig]  # the replay that the options describe, over a base
View = tuple[str, Callable[[np.ndarray], tuple[np.ndarray, Diagnosis]]]
SHORT_SIDE = 512  # enough patches to see something, and minutes less than the tasks' own sizes on a CPU


def load_tiny_view(args: argparse.Namespace, settings: Settings) -> View:
    """The embedded model, or one in its format, with the replay that was found for it."""
    from gramloop.demo.experiment import default_replay
    from gramloop.models.tiny import TINY_SHORT_SIDE, WEIGHTS, load_tiny

    embedded = args.model in (None, "tiny")
    model = load_tiny(WEIGHTS if embedded else args.model, choose_device(args.device))
    replay = settings(default_replay() if embedded else None)
    name = "tiny" if embedded else str(args.model)
    return name, _whole_image(model, _first(model), replay, WEB, args.short_side, TINY_SHORT_SIDE)


def load_backbone_view(args: argparse.Namespace, settings: Settings) -> View:
    """A backbone's file, or a folder that transformers can open."""
    path, device = Path(args.backbone), choose_device(args.device)
    normalisation = SATELLITE if "sat493m" in path.name else _stored_normalisation(path)
    if _is_foreign_folder(path):
        model = _open_with_transformers(path).to(device)
        run: Callable[[Any], Any] = lambda pixels: model(pixel_values=pixels)  # noqa: E731
    else:
        from gramloop.models.dinov2 import load_any_backbone

        model = load_any_backbone(path, device=device)
        run = _tapped(model)
    return path.name, _whole_image(model, run, settings(), normalisation, args.short_side, SHORT_SIDE)


def load_task_view(args: argparse.Namespace, settings: Settings) -> View:
    """A predictor with its head, which looks through its own windows."""
    device, replay = choose_device(args.device), settings()
    sizes = {} if args.short_side is None else {"short_side": args.short_side}
    predictor: Any
    if args.task == "detect":
        from gramloop.tasks.detect import DetectConfig, load_detector

        predictor = load_detector(args.backbone, args.head, config=DetectConfig(**sizes), device=device)
    else:
        from gramloop.tasks.segment import SegmentConfig, load_segmenter

        config = SegmentConfig(mode="whole", **sizes) if sizes else SegmentConfig()
        predictor = load_segmenter(args.backbone, args.head, config=config, device=device)
    depth = predictor.model.backbone.shape.depth
    place = route(replay, depth)
    placed = ReplayConfig.from_json({**replay.as_json(), "window": (place.start, place.end)})

    def look(pixels: np.ndarray) -> tuple[np.ndarray, Diagnosis]:
        return pixels, diagnose_prediction(predictor, pixels, placed, depth)

    return Path(args.head).name, look


def _whole_image(
    model: nn.Module,
    run: Callable[[Any], Any],
    replay: ReplayConfig,
    normalisation: Normalisation,
    asked: int | None,
    usual: int,
) -> Callable[[np.ndarray], tuple[np.ndarray, Diagnosis]]:
    """Look at the whole image at once, its short side as asked for, its long side rounded to patches."""
    host = find_host(model)
    route(replay, host.depth)
    patch = 16 if host.patch_embedding is None else int(host.patch_embedding.stride[0])
    short_side = asked if asked is not None else usual - usual % patch
    if short_side < patch or short_side % patch:
        raise GramLoopError(
            f"--short-side is {short_side}; it is a multiple of the patches' side, {patch}, such as {8 * patch}"
        )
    device = next(model.parameters()).device

    def look(pixels: np.ndarray) -> tuple[np.ndarray, Diagnosis]:
        seen = resize_short_side(pixels, short_side, multiple=patch)
        return seen, diagnose(model, to_tensor(seen, normalisation).to(device), replay, run=run)

    return look


def _first(model: Any) -> Callable[[Any], Any]:
    return lambda pixels: model.features(pixels)


def _tapped(backbone: Any) -> Callable[[Any], Any]:
    return lambda pixels: backbone(pixels, [backbone.shape.depth - 1])


def _is_foreign_folder(path: Path) -> bool:
    """A transformers folder of another family than DINOv3, which has a loader of its own."""
    config = path / "config.json"
    if not config.is_file():
        return False
    try:
        return bool(json.loads(config.read_text()).get("model_type") != "dinov3_vit")
    except (ValueError, AttributeError) as error:
        raise GramLoopError(f"{config} is not a configuration that transformers wrote: {error}") from error


def _open_with_transformers(path: Path) -> Any:
    from transformers import AutoModel

    try:
        model = AutoModel.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise GramLoopError(f"transformers cannot open {path}: {first}") from error
    model = getattr(model, "vision_model", model)  # the image half of a model of images and words
    return model.eval().requires_grad_(False)


def _stored_normalisation(path: Path) -> Normalisation:
    """What the folder's image processor says, otherwise what DINO models were trained with."""
    stored = path / "preprocessor_config.json"
    if not stored.is_file():
        return WEB
    try:
        content = json.loads(stored.read_text())
        mean, std = (tuple(float(value) for value in content[name]) for name in ("image_mean", "image_std"))
    except (ValueError, KeyError, TypeError):
        return WEB
    return Normalisation(mean, std) if len(mean) == len(std) == 3 else WEB
