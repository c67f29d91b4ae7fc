"""Calibration: features and pixels of in-distribution images, learnt without labels.

The statistics are the mean of the patches that the head reads and its spread from image to image, the usual noise and
the usual appearance. They belong to one backbone, and their file names it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gramloop.errors import GramLoopError
from gramloop.mitigations.feature_hooks import (
    FeatureHooks,
    FeatureSource,
    Place,
    feature_source,
)
from gramloop.mitigations.features import patch_mean
from gramloop.replay.adaptive import image_noise, noise_response
from gramloop.replay.vit import ViT
from gramloop.util.files import atomic_write
from gramloop.util.json_files import checked, parse_json

if TYPE_CHECKING:
    from gramloop.tasks.predictor import AnyPredictor

_KIND = "gramloop calibration"
MIN_IMAGES = 8  # a spread over fewer means nothing
SPLIT_IMAGES = 32  # taken from a data set to calibrate on
QUANTILE = 0.99  # of in-distribution images have less noise than the level that is kept
Candidate = tuple[Place, tuple[int, ...]]
_watch = partial(FeatureHooks, this_thread=True, required=False)  # a place may be none that the head reads


@dataclass(frozen=True)
class CalibrationStats:
    """Statistics of in-distribution images.

    means, spreads: by block, (C,): of all patches, and the standard deviation of one view's mean; empty without a ViT.
    noise: the level that 99 of 100 images stay below, in grey levels; None if only tensors were seen.
    images: how many were seen.
    backbone: the fingerprint of the ViT, empty if it has none.
    input_noise: like noise, of what the patch embedding is given, in its units.
    pixels: the range of brightness, contrast and sharpness; empty if only tensors were seen.
    at: where the head reads these patches, as `gramloop.mitigations.feature_hooks` has it.
    """

    means: Mapping[int, Tensor] = field(repr=False)
    spreads: Mapping[int, Tensor] = field(repr=False)
    noise: float | None
    images: int
    backbone: str = ""
    input_noise: float | None = None
    pixels: Mapping[str, float] = field(default_factory=dict)
    at: Place = "norm"

    def check(self, source: FeatureSource) -> None:
        """Refuse statistics of another backbone or of other blocks than the head reads."""
        if not self.means:
            return
        own, known = backbone_fingerprint(source.vit), self.backbone
        if max(self.means) >= source.vit.depth or (own and known and own != known):
            raise GramLoopError(
                "the calibration statistics are of another backbone; calibrate again with this model"
            )
        lacking = [tap for tap in source.taps if tap not in self.means]
        if lacking or (source.taps and self.at != "norm"):
            raise GramLoopError(
                f"the calibration statistics are of blocks {sorted(self.means)} ({self.at}), and the head reads blocks "
                f"{list(source.taps)} (norm); calibrate again with this model"
            )

    def save(self, path: str | Path) -> None:
        """Write a safetensors file, whole or not at all."""
        from safetensors.torch import save

        tensors = {f"mean.{tap}": value.contiguous() for tap, value in self.means.items()}
        tensors |= {f"spread.{tap}": value.contiguous() for tap, value in self.spreads.items()}
        about = {name: getattr(self, name) for name in ("noise", "images", "backbone", "input_noise", "at")}
        about["pixels"] = dict(self.pixels)
        # one entry: safetensors writes several in any order, and equal statistics should make equal files
        atomic_write(Path(path), save(tensors, metadata={_KIND: json.dumps(about)}))

    @classmethod
    def read(cls, path: str | Path) -> CalibrationStats:
        """Read a file of `save`."""
        from safetensors import SafetensorError, safe_open

        what = "a file of calibration statistics"
        try:
            with safe_open(path, framework="pt") as opened:
                stored = opened.metadata() or {}
                tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - no mapping
        except (OSError, SafetensorError) as error:
            raise GramLoopError(f"cannot read the calibration statistics {path}: {error}") from error
        if _KIND not in stored:
            raise GramLoopError(f"{path} holds no calibration statistics; gramloop calibrate writes them")
        about = parse_json(stored[_KIND].encode(), str(path), what)
        stats = cls(
            _by_block(tensors, "mean"),
            _by_block(tensors, "spread"),
            **vars(checked(about, _Numbers, str(path), what)),
        )
        if stats.means.keys() != stats.spreads.keys() or not (stats.means or stats.pixels):
            raise GramLoopError(f"{path} lacks the mean or the spread of a block; calibrate again")
        return stats


def _by_block(tensors: Mapping[str, Tensor], kind: str) -> dict[int, Tensor]:
    named = {name.removeprefix(f"{kind}."): value for name, value in tensors.items()}
    return {int(name): value for name, value in named.items() if name.isdecimal()}


def read_stats(given: CalibrationStats | str | Path | None) -> CalibrationStats | None:
    """Statistics, or those of a file."""
    return CalibrationStats.read(given) if isinstance(given, str | Path) else given


@dataclass(frozen=True)
class _Numbers:
    """What the metadata of a file hold of `CalibrationStats`."""

    noise: float | None
    images: int
    backbone: str
    input_noise: float | None
    pixels: dict[str, float]
    at: Place


def calibrate(model: AnyPredictor | nn.Module, images: Iterable[Any], **description: Any) -> CalibrationStats:
    """Statistics of in-distribution images, at least 8, better a few dozen; labels are not needed.

    Args:
        model: any predictor; without a ViT inside, only pixels are measured. Or a torch module with one ViT inside.
        images: for a predictor paths, PIL images or arrays; for a module what it is called with: a batch, a tuple of
            arguments, or a dict of keyword arguments.
        description: of a module's ViT: ``blocks``, ``norm``, ``prefix``, ``which`` as `gramloop.attach` takes them.
    """
    if isinstance(model, nn.Module) and not callable(getattr(model, "predict", None)):
        return _calibrate_module(model, images, description)
    from gramloop.mitigations.filters import appearance, appearance_range, noise_level
    from gramloop.tasks.images import read_image

    predictor: AnyPredictor = model  # type: ignore[assignment]
    levels, appearances = [], []

    def predicted() -> Iterator[Callable[[], object]]:
        for image in images:
            pixels = read_image(image)
            levels.append(noise_level(pixels))
            appearances.append(appearance(pixels))
            yield partial(predictor.predict, pixels)

    seen = FeatureRecorder(None if predictor.host is None else feature_source(predictor, "calibrate"))
    seen.run(predicted())
    return seen.stats(len(levels), _level(levels), appearance_range(appearances))


def _calibrate_module(
    model: nn.Module, batches: Iterable[Any], description: Mapping[str, Any]
) -> CalibrationStats:
    if model.training:
        raise GramLoopError(f"{type(model).__name__} is in training mode; call model.eval() first")

    def call(batch: Any) -> object:
        if isinstance(batch, Mapping):
            return model(**batch)
        return model(*batch) if isinstance(batch, tuple | list) else model(batch)

    seen = FeatureRecorder(feature_source(model, "calibrate", **description))
    seen.run(partial(call, batch) for batch in batches)
    return seen.stats(seen.views, None, {})


class FeatureRecorder:
    """The means of patches in every place where the head of a model may read them."""

    def __init__(self, source: FeatureSource | None) -> None:
        self.source = source
        self.means: dict[Candidate, dict[int, list[Tensor]]] = {}
        self.levels: list[float] = []
        self.place: Candidate | None = None

    @property
    def views(self) -> int:
        """How many images were seen: as many as the block seen most often has means."""
        return max((sum(map(len, each)) for taps in self.means.values() for each in taps.values()), default=0)

    def run(self, calls: Iterable[Callable[[], object]]) -> None:
        """Call the model for every image while hooks watch, and find out where its head reads."""
        if self.source is None:
            for _ in calls:  # the caller that gives them measures pixels
                pass
            return
        call = None
        with ExitStack() as hooks, torch.no_grad():
            for candidate in self.source.places():
                hooks.enter_context(_watch(self.source, *candidate, partial(self._record, candidate)))
            if self.source.vit.embedding is not None:
                hooks.enter_context(self.source.vit.embedding.register_forward_hook(self._embedded))
            for call in calls:
                call()
        if call is not None:
            met = [candidate for candidate in self.source.places() if candidate in self.means]
            self.place = _place_read(self.source, met, call)

    def stats(self, images: int, level: float | None, pixels: Mapping[str, float]) -> CalibrationStats:
        """The statistics of what was seen."""
        if images < MIN_IMAGES:
            raise GramLoopError(
                f"calibration needs at least {MIN_IMAGES} in-distribution images, better a few dozen, not {images}"
            )
        seen = {} if self.place is None else self.means[self.place]
        joined = {tap: torch.cat(means) for tap, means in sorted(seen.items())}
        return CalibrationStats(
            {tap: each.mean(0).float() for tap, each in joined.items()},
            {tap: each.std(0).float() for tap, each in joined.items()},
            level,
            images,
            "" if self.source is None else backbone_fingerprint(self.source.vit),
            _level(self.levels),
            pixels,
            "norm" if self.place is None else self.place[0],
        )

    def _record(self, candidate: Candidate, tap: int, patches: Tensor, valid: Tensor | None) -> None:
        means = patch_mean(patches.detach(), valid)[:, 0].cpu().double()  # (B, C)
        self.means.setdefault(candidate, {}).setdefault(tap, []).append(means)

    def _embedded(self, embedding: nn.Module, args: tuple[Any, ...], output: object) -> None:
        if args and isinstance(args[0], Tensor) and args[0].ndim == 4:
            self.levels += image_noise(noise_response(args[0])).tolist()


def _place_read(
    source: FeatureSource, candidates: Sequence[Candidate], call: Callable[[], object]
) -> Candidate | None:
    """The first place where a change of patches changes what the model returns; None if it never does."""
    if len(candidates) < 2 and source.taps:
        return candidates[0] if candidates else None
    returned: list[dict[str, Tensor]] = []

    def keep(module: nn.Module, args: object, output: object) -> None:
        returned.append(head_outputs(output))

    with torch.no_grad(), source.model.register_forward_hook(keep):
        call()
        baseline = list(returned)
        for candidate in candidates:
            returned.clear()
            # no norm, which removes shifts and scales, undoes an exchange of channels
            with _watch(source, *candidate, lambda tap, patches, valid: patches.flip(-1)):
                call()
            if not any(baseline) or not all(map(_equal, baseline, returned)):
                return candidate
    return None


def _equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def head_outputs(output: object) -> dict[str, Tensor]:
    """The tensors that a model returned, by name, without those of its ViT where there are others."""
    tensors = dict(_named_tensors(output, "output"))
    internal = ("hidden_state", "pooler", "attentions")
    return {n: value for n, value in tensors.items() if not any(word in n for word in internal)} or tensors


def _named_tensors(output: object, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(output, Tensor):
        yield name, output
    elif isinstance(output, Mapping):
        for key, value in output.items():
            yield from _named_tensors(value, str(key) if name == "output" else f"{name}.{key}")
    elif isinstance(output, tuple | list):
        for place, value in enumerate(output):
            yield from _named_tensors(value, f"{name}_{place}")


def _level(levels: Sequence[float]) -> float | None:
    return float(torch.tensor(levels, dtype=torch.float64).quantile(QUANTILE)) if levels else None


def split_for_calibration(
    ids: Sequence[object], count: int = SPLIT_IMAGES, share: float = 0.5
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Divide images into those to calibrate on and those to judge: always the same ones, whatever their order.

    Args:
        ids: what names each image.
        count: images to calibrate on, at most.
        share: of all images, at most.

    Returns:
        The positions of either, in rising order.
    """
    count = min(count, int(len(ids) * share))
    if count < MIN_IMAGES:
        raise GramLoopError(
            f"{len(ids)} images are too few to calibrate on some and judge the others: at least {2 * MIN_IMAGES} are "
            "needed; give calibration statistics of other images (gramloop calibrate)"
        )
    hashed = [hashlib.sha256(f"calibration {name}".encode()).digest() for name in ids]
    ranked = sorted(range(len(ids)), key=lambda place: (hashed[place], str(ids[place])))
    return tuple(sorted(ranked[:count])), tuple(sorted(ranked[count:]))


def backbone_fingerprint(vit: ViT) -> str:
    """Depth, width and a checksum of the final norm, which any training changes; empty where there is no norm.

    It is rounded to bfloat16, so that a model cast to half precision is still recognised.
    """
    norm = vit.final_norm
    weight = getattr(norm, "weight", None)
    if not isinstance(norm, nn.Module) or weight is None or weight.is_meta:
        return ""
    digest = hashlib.sha256(f"{vit.depth} {weight.shape[-1]}".encode())
    for name, value in sorted(norm.state_dict().items()):
        rounded = value.detach().to("cpu", torch.bfloat16).view(torch.int16)
        digest.update(name.encode() + rounded.numpy().tobytes())
    return digest.hexdigest()[:16]
