"""A predictor turns an image into a prediction, as the model is, replayed, or both for the price of the replay.

`Predictor` is all that evaluation, tuning and the command line know of a model. `ViTPredictor` holds what the
tasks here share: attaching the replay, keeping what the ordinary version needs, and counting.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, Literal, Protocol, overload, runtime_checkable

import torch
from torch import Tensor, nn

from gramloop.data.records import TaskName as Task
from gramloop.errors import GramLoopError
from gramloop.models.backbone import Tap, TappedViT, refuse_many_tokens
from gramloop.replay.attach import Loop, attached
from gramloop.replay.blocks import check_reach
from gramloop.replay.config import ReplayConfig, Route, route
from gramloop.replay.cost import Cost, extra_blocks
from gramloop.replay.vit import ViT, find_vit
from gramloop.tasks.class_names import Classes
from gramloop.tasks.images import RGB, WEB, ImageLike, Normalisation, read_image
from gramloop.tasks.prediction import P, P_co, Pair, Prediction

Replay = ReplayConfig | None  # None predicts with the model as it is
Tracing = bool | None  # whether to return drift and gate; None where the replay measures them anyway


@runtime_checkable
class Predictor(Protocol[P_co]):
    """What can be evaluated and tuned: ``predict``, and what there is to know about it."""

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
        """The ViT whose blocks these are, to observe it; None where it is not at hand."""

    @property
    def taps(self) -> tuple[int, ...]:
        """The blocks that the head reads; empty where that is not known."""

    def cost(self, replay: Replay = None, paired: bool = False) -> Cost:
        """Blocks executed per view of an image, at most; a model without blocks counts as one."""

    @overload
    def predict(
        self, image: ImageLike, replay: Replay = ..., paired: Literal[False] = ..., *, trace: Tracing = ...
    ) -> P_co: ...

    @overload
    def predict(
        self, image: ImageLike, replay: Replay = ..., *, paired: Literal[True], trace: Tracing = ...
    ) -> Pair[P_co]: ...


def check_predictor(given: object) -> None:
    """Refuse what is no `Predictor`, and say what it lacks."""
    if not isinstance(given, Predictor):
        parts = ("predict", "task", "classes", "blocks", "host", "taps", "cost")
        lacking = ", ".join(name for name in parts if not hasattr(given, name))
        raise GramLoopError(
            f"{type(given).__name__} is no predictor as gramloop.tasks.Predictor says; it lacks {lacking}"
        )


def check_replay(predictor: Predictor[Prediction], replay: ReplayConfig) -> Route:
    """The replay's place among the predictor's blocks, or a sentence about why it has none."""
    if not predictor.blocks:
        name = getattr(predictor, "name", type(predictor).__name__)
        raise GramLoopError(f"{name} has no transformer blocks that could be replayed; leave out the replay")
    if predictor.host is not None:
        check_reach(predictor.host, replay)
    return route(replay, len(predictor.blocks))


def check_pair(replay: Replay, paired: bool) -> None:
    """Refuse a pair of one."""
    if paired and replay is None:
        raise GramLoopError("a paired prediction needs a replay, such as ReplayConfig()")


def wants_trace(replay: ReplayConfig, trace: Tracing) -> bool:
    """Whether drift and gate are kept: as asked, or where the replay measures them anyway."""
    return replay.measures_drift and replay.replays > 0 if trace is None else trace


class ImagePredictor(Generic[P]):
    """What predicts one image at a time: how is said in ``_versions``."""

    @overload
    def predict(
        self, image: ImageLike, replay: Replay = ..., paired: Literal[False] = ..., *, trace: Tracing = ...
    ) -> P: ...

    @overload
    def predict(
        self, image: ImageLike, replay: Replay = ..., *, paired: Literal[True], trace: Tracing = ...
    ) -> Pair[P]: ...

    @torch.no_grad()
    def predict(
        self, image: ImageLike, replay: Replay = None, paired: bool = False, *, trace: Tracing = None
    ) -> P | Pair[P]:
        """Predict an image.

        Args:
            image: a path, a PIL image or an array.
            replay: what to replay; None predicts with the model as it is.
            paired: also return the ordinary prediction, which costs little or nothing beside a replay.
            trace: return drift and gate, whatever the gate; by default they come where the replay measures
                them anyway.
        """
        pixels = read_image(image)
        check_pair(replay, paired)
        versions = self._versions(pixels, replay, paired, trace)
        return Pair(*versions) if paired else versions[-1]

    def _versions(self, pixels: RGB, replay: Replay, paired: bool, trace: Tracing) -> Sequence[P]:
        """The ordinary version, if paired, and the last one."""
        raise NotImplementedError


class ViTPredictor(ImagePredictor[P]):
    """A head on taps of a frozen ViT. A task says how it looks at images of one size, in ``_look_at``, or at one, in ``_look``."""

    task: Task
    batches = False  # whether it can look at several images at once
    pads = False  # whether those may be of several sizes

    def __init__(
        self, backbone: TappedViT, taps: Sequence[int], classes: Classes, normalisation: Normalisation = WEB
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

    def cost(self, replay: Replay = None, paired: bool = False) -> Cost:
        """Blocks executed per view of an image; an adaptive replay may pass over some."""
        depth = self.backbone.shape.depth
        extra = 0 if replay is None else extra_blocks(replay, depth, self._kept(replay, paired))
        return Cost(depth + extra, depth)

    @torch.no_grad()
    def predict_batch(
        self,
        images: Sequence[ImageLike],
        replay: Replay = None,
        paired: bool = False,
        *,
        trace: Tracing = None,
    ) -> list[P] | list[Pair[P]]:
        """Predict several images at once; as ``predict`` does, but for the order in which sums are made.

        They have one size, but for predictors that pad.
        """
        if not images:
            return []
        self.check_batch()
        check_pair(replay, paired)
        pixels = [read_image(image) for image in images]
        sizes = {(each.shape[0], each.shape[1]) for each in pixels}
        if len(sizes) > 1 and not self.pads:
            listed = " and ".join(f"{width} x {height}" for height, width in sorted(sizes)[:2])
            raise GramLoopError(f"images of a batch have one size, not {listed}")
        for height, width in sizes:
            self.check_size(height, width)
        with self._attached(replay, paired, trace) as loop:
            versions = self._look_at(pixels, loop, paired)
        return [Pair(*both) for both in zip(*versions, strict=True)] if paired else list(versions[-1])

    def check_batch(self) -> None:
        """Refuse to look at several images at once, where this model cannot."""
        if not self.batches:
            raise GramLoopError(f"{type(self).__name__} predicts one image at a time; leave out the batch")

    def check_size(self, height: int, width: int) -> None:
        """Refuse an image whose largest view has more tokens than can be worked on; nothing is computed."""
        rows, columns = (side // self.backbone.shape.patch for side in self._largest_view(height, width))
        advice = "show it smaller (--short-side, --crop or --side), or cut it into pieces"
        refuse_many_tokens(rows, columns, f"an image of {width} x {height}", advice)

    def _largest_view(self, height: int, width: int) -> tuple[int, int]:
        """Height and width, in pixels, of the largest part of an image that the model sees at once; 0 if not known."""
        return 0, 0

    def _versions(self, pixels: RGB, replay: Replay, paired: bool, trace: Tracing) -> Sequence[P]:
        self.check_size(pixels.shape[0], pixels.shape[1])
        with self._attached(replay, paired, trace) as loop:
            return self._look(pixels, loop, paired)

    def _look(self, pixels: RGB, loop: Loop | None, paired: bool) -> Sequence[P]:
        """The ordinary version, if paired, and the last one."""
        return [images[0] for images in self._look_at([pixels], loop, paired)]

    def _look_at(self, pixels: Sequence[RGB], loop: Loop | None, paired: bool) -> Sequence[Sequence[P]]:
        """The same of images of one size, in one forward of the model: per version, then per image."""
        raise NotImplementedError

    def _attached(self, replay: Replay, paired: bool, trace: Tracing) -> AbstractContextManager[Loop | None]:
        """The replay for a ``with`` block of this thread, with the taps kept that a pair needs."""
        if replay is None:
            return nullcontext()
        keep = self._kept(replay, paired)
        wanted = wants_trace(replay, trace)
        return attached(self.backbone.model, replay, keep=keep, trace=wanted, this_thread=True)

    def _kept(self, replay: ReplayConfig, paired: bool) -> tuple[int, ...]:
        """Taps whose ordinary output has to be kept; those before the window's end are ordinary anyway."""
        end = route(replay, self.backbone.shape.depth).end
        return tuple(tap for tap in self.taps if paired and tap >= end)

    def _runs(
        self, shown: Tensor, loop: Loop | None, paired: bool
    ) -> list[tuple[list[Tap], int, Loop | None]]:
        """Of the baseline, if paired, and the last version: taps, blocks executed, and the replay that measured."""
        taps, depth = self.backbone(shown, self.taps), self.backbone.shape.depth
        if loop is None:
            return [(taps, depth, None)]
        last = (taps, loop.blocks_executed, loop)
        return [(self._baseline(loop, taps), depth, None), last] if paired else [last]

    def _baseline(self, loop: Loop, taps: Sequence[Tap]) -> list[Tap]:
        """The taps of the latest forward without the replay."""
        kept = loop.baseline
        return [
            self.backbone.tap(kept[index], tap.grid, index) if index in kept else tap
            for index, tap in zip(self.taps, taps, strict=True)
        ]
