"""A predictor turns an image into a prediction: of the baseline, replayed, or both for the price of the replay.

`Predictor` is all that evaluation, tuning and the command line know of a model. `ViTPredictor` holds what the
tasks here share: attaching the replay, keeping what the baseline needs, and counting.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, Literal, Protocol, Self, overload, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from gramloop.data.records import TaskName as Task
from gramloop.errors import GramLoopError
from gramloop.models.backbone import Backbone, Tap, refuse_many_tokens
from gramloop.replay.attach import Loop, attached
from gramloop.replay.config import Cost, ReplayConfig, Route, extra_blocks, route
from gramloop.replay.gram import Trace
from gramloop.replay.guards import check_reach
from gramloop.replay.vit import ViT, find_vit
from gramloop.tasks.class_names import Classes
from gramloop.tasks.images import RGB, WEB, ImageLike, Normalisation, read_image
from gramloop.tasks.prediction import Pair, Prediction, PredictionT, PredictionT_co, ReplayMaps

MaybeReplay = ReplayConfig | None  # None predicts with the model as it is
Tracing = bool | None  # whether to return drift and gate; None where the replay measures them anyway
_PLACEHOLDER = re.compile(r"label[_ ]?\d+|n/?a|-", re.IGNORECASE)  # what transformers writes for no name


@runtime_checkable
class Predictor(Protocol[PredictionT_co]):
    """What can be evaluated and tuned: ``predict``, and what there is to know about it.

    One that can be given several images of one size at once has ``predict_batch``, too, which takes a list of them and
    what ``predict`` takes.
    """

    @property
    def task(self) -> Task:
        """What is predicted."""

    @property
    def classes(self) -> Classes:
        """The numbers in its predictions."""

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """The transformer blocks, first to last, among which a replay's window lies; empty where it can have none."""

    @property
    def host(self) -> ViT | None:
        """The ViT whose blocks these are; None where it is not at hand."""

    @property
    def taps(self) -> tuple[int, ...]:
        """The blocks that the head reads; empty where that is not known."""

    def cost(self, replay: MaybeReplay = None, paired: bool = False) -> Cost:
        """Blocks executed per view of an image, at most; a model without blocks counts as one."""

    @overload
    def predict(
        self,
        image: ImageLike,
        replay: MaybeReplay = ...,
        paired: Literal[False] = ...,
        *,
        trace: Tracing = ...,
    ) -> PredictionT_co: ...

    @overload
    def predict(
        self, image: ImageLike, replay: MaybeReplay = ..., *, paired: Literal[True], trace: Tracing = ...
    ) -> Pair[PredictionT_co]: ...


AnyPredictor = Predictor[Prediction]


def name_of(predictor: object) -> str:
    """What messages call a predictor."""
    return str(getattr(predictor, "name", type(predictor).__name__))


def check_replay(predictor: AnyPredictor, replay: ReplayConfig) -> Route:
    """The replay's place among the predictor's blocks; refuses one that has none."""
    if not predictor.blocks:
        raise GramLoopError(
            f"{name_of(predictor)} has no transformer blocks that could be replayed; leave out the replay"
        )
    if predictor.host is not None:
        check_reach(predictor.host, replay)
    return route(replay, len(predictor.blocks))


def takes_batches(predictor: object) -> bool:
    """Whether a predictor takes several images at once."""
    return hasattr(predictor, "predict_batch") and bool(getattr(predictor, "batches", True))


def predict_each(
    predictor: AnyPredictor, images: Sequence[RGB], replay: MaybeReplay, paired: bool, trace: Tracing
) -> list[list[Prediction]]:
    """For each image of one size the baseline version, if paired, and the last one; several are predicted together."""
    found: Sequence[Any]
    if len(images) > 1 and takes_batches(predictor):
        found = predictor.predict_batch(images, replay, paired, trace=trace)  # type: ignore[attr-defined]
    else:
        pair: Any = paired
        found = [predictor.predict(each, replay, paired=pair, trace=trace) for each in images]
    return [[one.baseline, one.replayed] if paired else [one] for one in found]


def wants_trace(replay: ReplayConfig, trace: Tracing) -> bool:
    """Whether drift and gate are kept: as asked, or where the replay measures them anyway."""
    return replay.measures_drift and replay.replays > 0 if trace is None else trace


class BasePredictor(Generic[PredictionT]):
    """``predict`` and ``predict_batch`` of every predictor here: subclasses define ``_batch_versions``."""

    batches = True  # whether several images at once are faster

    @overload
    def predict(
        self,
        image: ImageLike,
        replay: MaybeReplay = ...,
        paired: Literal[False] = ...,
        *,
        trace: Tracing = ...,
    ) -> PredictionT: ...

    @overload
    def predict(
        self, image: ImageLike, replay: MaybeReplay = ..., *, paired: Literal[True], trace: Tracing = ...
    ) -> Pair[PredictionT]: ...

    @torch.no_grad()
    def predict(
        self, image: ImageLike, replay: MaybeReplay = None, paired: bool = False, *, trace: Tracing = None
    ) -> PredictionT | Pair[PredictionT]:
        """Predict an image.

        Args:
            image: a path, a PIL image or an array.
            replay: what to replay; None predicts with the model as it is.
            paired: also return the baseline prediction, which costs little or nothing in addition to a replay.
            trace: return drift and gate, whatever the gate; by default they come where the replay measures
                them anyway.
        """
        return self.predict_batch([image], replay, paired, trace=trace)[0]

    @torch.no_grad()
    def predict_batch(
        self,
        images: Sequence[ImageLike],
        replay: MaybeReplay = None,
        paired: bool = False,
        *,
        trace: Tracing = None,
    ) -> list[PredictionT] | list[Pair[PredictionT]]:
        """Predict several images of one size at once; as ``predict`` does, but for the order in which sums are made."""
        self._check_pair(replay, paired)
        pixels = [read_image(image) for image in images]
        sizes = {(each.shape[0], each.shape[1]) for each in pixels}
        if len(sizes) > 1:
            listed = " and ".join(f"{width} x {height}" for height, width in sorted(sizes)[:2])
            raise GramLoopError(f"images of a batch have one size, not {listed}")
        found = self._batch_versions(pixels, replay, paired, trace) if pixels else []
        return [Pair(*versions) for versions in found] if paired else [versions[-1] for versions in found]

    def _check_pair(self, replay: MaybeReplay, paired: bool) -> None:
        if paired and replay is None:
            raise GramLoopError("a paired prediction needs a replay, such as ReplayConfig()")

    def _batch_versions(
        self, pixels: Sequence[RGB], replay: MaybeReplay, paired: bool, trace: Tracing
    ) -> Sequence[Sequence[PredictionT]]:
        """For each image the baseline version, if paired, and the last one."""
        raise NotImplementedError


class ViTPredictor(BasePredictor[PredictionT]):
    """A head on taps of a frozen ViT: a subclass says how an image is prepared and how the head's outputs are read."""

    task: Task
    config: Any = None  # how images are given to the model
    size_setting = "short_side"  # of the configuration; empty where the size of the input cannot be set

    def __init__(
        self, backbone: Backbone, taps: Sequence[int], classes: Classes, normalisation: Normalisation = WEB
    ) -> None:
        self.backbone, self.taps, self.classes = backbone, tuple(taps), classes
        self.normalisation = normalisation

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """The transformer blocks, first to last."""
        return tuple(self.backbone.blocks)

    @property
    def host(self) -> ViT:
        """The ViT that a replay is attached to."""
        return find_vit(self.backbone.model)

    def cost(self, replay: MaybeReplay = None, paired: bool = False) -> Cost:
        """Blocks executed per view of an image; an adaptive replay may pass over some."""
        depth = self.backbone.shape.depth
        extra = 0 if replay is None else extra_blocks(replay, depth, self._kept(replay, paired))
        return Cost(depth + extra, depth)

    @property
    def multiple(self) -> int:
        """What the sides of an input are multiples of."""
        return int(getattr(getattr(self, "model", None), "granularity", self.backbone.shape.patch))

    @property
    def has_size(self) -> bool:
        """Whether the size of the input can be set."""
        return bool(self.size_setting) and self.config is not None

    def scaled(self, factor: float) -> Self:
        """The same model with an input ``factor`` times as large, in whole patches; itself if that rounds to the same."""
        usual, multiple = getattr(self.config, self.size_setting), self.multiple
        side = max(1, int(usual * factor / multiple + 0.5)) * multiple
        return self if side == usual else self._configured(**self._resized(side))

    def _resized(self, side: int) -> dict[str, Any]:
        """The settings that change with the side of the input."""
        return {self.size_setting: side}

    def _configured(self, **settings: Any) -> Self:
        """A copy with other settings; the model is shared."""
        changed = copy.copy(self)
        vars(changed)["config"] = replace(self.config, **settings)
        return changed

    def check_size(self, height: int, width: int) -> None:
        """Refuse an image whose largest view has more tokens than can be worked on; nothing is computed."""
        rows, columns = (side // self.backbone.shape.patch for side in self._largest_view(height, width))
        advice = "show it smaller (--short-side, --crop or --side), or cut it into pieces"
        refuse_many_tokens(rows, columns, f"an image of {width} x {height}", advice)

    def _largest_view(self, height: int, width: int) -> tuple[int, int]:
        """Height and width, in pixels, of the largest part of an image that the model sees at once; 0 if not known."""
        return 0, 0

    def _batch_versions(
        self, pixels: Sequence[RGB], replay: MaybeReplay, paired: bool, trace: Tracing
    ) -> Sequence[Sequence[PredictionT]]:
        for each in pixels:
            self.check_size(each.shape[0], each.shape[1])
        if replay is None:
            return list(zip(*self._forward(pixels, None, False), strict=True))
        keep, wanted = self._kept(replay, paired), wants_trace(replay, trace)
        with attached(self.backbone.model, replay, keep=keep, trace=wanted, this_thread=True) as loop:
            return list(zip(*self._forward(pixels, loop, paired), strict=True))

    def prepare(self, pixels: RGB) -> Tensor:  # → (1, 3, h, w), or several views of the image
        """The image as the model takes it."""
        raise NotImplementedError

    def read(
        self, taps: Sequence[Tap], input_size: tuple[int, int], size: tuple[int, int]
    ) -> list[PredictionT]:
        """The predictions of a batch from the taps of the prepared images; sizes are height and width."""
        raise NotImplementedError

    def maps(
        self, loop: Loop | None, views: int, input_size: tuple[int, int], size: tuple[int, int]
    ) -> list[ReplayMaps | None]:
        """What the replay measured in each prepared image, in the size that was prepared."""
        return replay_maps(loop, views, input_size, self.backbone.shape.patch)

    def _forward(
        self, pixels: Sequence[RGB], loop: Loop | None, paired: bool
    ) -> Sequence[Sequence[PredictionT]]:
        """Predict images of one size in one forward: per version, the baseline first if paired, then per image."""
        size = (pixels[0].shape[0], pixels[0].shape[1])
        batch = torch.cat([self.prepare(each) for each in pixels]).to(self.backbone.device)
        input_size, views = (batch.shape[-2], batch.shape[-1]), len(batch)
        taps, depth = self.backbone(batch, self.taps), self.backbone.shape.depth
        found = []
        if loop is not None and paired:
            baseline = self.read(self._baseline(loop, taps), input_size, size)
            found.append([replace(one, blocks=depth) for one in baseline])
        blocks = depth if loop is None else loop.blocks_executed
        maps = self.maps(loop, views, input_size, size)[:: views // len(pixels)]
        pairs = zip(self.read(taps, input_size, size), maps, strict=True)
        return [*found, [replace(one, blocks=blocks, trace=trace) for one, trace in pairs]]

    def _kept(self, replay: ReplayConfig, paired: bool) -> tuple[int, ...]:
        """Taps whose baseline output has to be kept; a replay does not reach those before the window's end."""
        end = route(replay, self.backbone.shape.depth).end
        return tuple(tap for tap in self.taps if paired and tap >= end)

    def _baseline(self, loop: Loop, taps: Sequence[Tap]) -> list[Tap]:
        """The taps of the latest forward without the replay."""
        kept = loop.baseline
        return [
            self.backbone.tap(kept[index], tap.grid, index) if index in kept else tap
            for index, tap in zip(self.taps, taps, strict=True)
        ]


def class_numbers(classes: Classes, categories: Mapping[int, str]) -> dict[int, int]:
    """The numbers that a data set has for a model's classes of the same names; nothing where they are the same.

    Where no name is known to both, numbers are taken as they are.
    """
    known = {
        _plain(name): number for number, name in classes.items() if name and not _PLACEHOLDER.fullmatch(name)
    }
    listed = {_plain(name): number for number, name in categories.items()}
    shared = [name for name in listed if name in known]
    if all(known[name] == listed[name] for name in shared):
        return {}
    if missing := [name for name in listed if name not in known]:
        raise GramLoopError(
            f"the set lists {missing[0]!r}, which the model has no class for, although it knows {shared[0]!r} by another "
            f"number, {known[shared[0]]}; name the classes of both alike"
        )
    return {known[name]: listed[name] for name in shared}


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name.strip().casefold())


def stacked_maps(trace: Trace) -> Tensor:
    """The maps of a forward in the order of `ReplayMaps`, (B, 2K or 2K + 1, h, w)."""
    accepted = [] if trace.post_drift is None else [trace.post_drift]
    return torch.stack([*trace.drift, *trace.gate, *accepted], dim=1).float().cpu()


def replay_maps(
    loop: Loop | None, images: int = 1, size: Sequence[int] = (), cell: int = 1
) -> list[ReplayMaps | None]:
    """What a replay measured in every image of a batch: an entry per patch, or maps of ``size`` with ``cell`` entries each."""
    if loop is None or loop.trace is None or not loop.trace.drift:
        return [None] * images
    maps = stacked_maps(loop.trace)
    if size:
        maps = F.interpolate(maps, (size[0], size[1]))
    return [ReplayMaps(each.numpy(), cell) for each in maps]


def per_patch(
    maps: NDArray[np.float32], cell: int, longest: int | None = None
) -> NDArray[np.float32]:  # (n, H, W) → (n, h, w)
    """Means over patches of ``cell`` entries a side, or over larger cells where a side has more than ``longest``."""
    patches = [max(1, round(side / cell)) for side in maps.shape[1:]]
    share = 1.0 if longest is None else min(1.0, longest / max(patches))
    rows, columns = (max(1, round(count * share)) for count in patches)
    pooled = F.adaptive_avg_pool2d(torch.from_numpy(maps).double(), (rows, columns))
    means: NDArray[np.float32] = pooled.float().numpy()
    return means
