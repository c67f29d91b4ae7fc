"""Calibration: a predictor looks at ordinary images, and what its head reads is kept in a few numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

from torch import Tensor, nn

from gramloop.core.recentring import patch_mean
from gramloop.core.signals import observing
from gramloop.core.source import Source as Source
from gramloop.core.source import read_source as read_source
from gramloop.core.source import write_source as write_source
from gramloop.errors import GramLoopError
from gramloop.models.backbone import Tap, TappedViT
from gramloop.tasks.images import ImageLike, read_image
from gramloop.tasks.prediction import P, Prediction
from gramloop.tasks.predictor import Predictor, ViTPredictor
from gramloop.tasks.renumbering import before_renumbering

TapChange = Callable[[int, Tap], Tap]  # block and its tap → what the head sees


def calibrate(predictor: Predictor[Prediction], images: Iterable[ImageLike]) -> Source:
    """The statistics of ordinary images, a few dozen of them; labels are not needed.

    Args:
        predictor: a head on a ViT; it looks at the images in its usual way.
        images: ordinary images, such as the model was trained for.
    """
    from gramloop.mitigations.appearance import appearance, ordinary
    from gramloop.mitigations.denoise import noise_level

    vit = check_taps(predictor, "calibrate")
    seen: dict[int, list[Tensor]] = {tap: [] for tap in vit.taps}

    def record(block: int, tap: Tap) -> Tap:
        seen[block].append(patch_mean(tap.patches.detach())[:, 0].cpu().double())  # (B, C)
        return tap

    watched, levels, looks = with_taps(vit, record), [], []
    with observing(vit.host) as observed:
        for image in images:
            pixels = read_image(image)
            watched.predict(pixels)
            levels.append(noise_level(pixels))
            looks.append(appearance(pixels))
    return Source.of_views(seen, len(levels), vit.host, levels, observed.noise[0], ordinary(looks))


def calibrate_pixels(images: Iterable[ImageLike]) -> Source:
    """What ordinary images look like without a model: the usual noise, brightness, contrast and sharpness."""
    from gramloop.mitigations.appearance import appearance, ordinary
    from gramloop.mitigations.denoise import noise_level

    shown = [read_image(image) for image in images]
    levels, looks = [noise_level(pixels) for pixels in shown], [appearance(pixels) for pixels in shown]
    return Source.of_views({}, len(shown), None, levels, (), ordinary(looks))


def check_source(source: Source, predictor: ViTPredictor[Prediction]) -> None:
    """Refuse statistics of another backbone or of other taps."""
    if source.at != "norm":
        raise GramLoopError(
            f"the source statistics are of {source.at} before the final norm, and this head reads its taps after it; "
            "calibrate again with this model"
        )
    source.check(predictor.host, predictor.taps, predictor.backbone.shape.width)


def check_taps(predictor: Predictor[Prediction], wanting: str) -> ViTPredictor[Prediction]:
    """The predictor, where it is a head on taps of a ViT."""
    predictor = before_renumbering(predictor)
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
