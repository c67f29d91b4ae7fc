"""What ordinary images look like to any host that `gramloop.attach` knows: watch its forwards, without labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

from gramloop.core.noise import noise, noise_response
from gramloop.core.recentring import patch_mean
from gramloop.core.source import PLACES, Place, Source
from gramloop.core.tapping import TAPPINGS, PerThread, taps_read
from gramloop.errors import GramLoopError
from gramloop.replay.vit import ViT, find_vit


class Calibration:
    """What was seen so far; `source` makes statistics of it."""

    def __init__(self, host: ViT, at: Place) -> None:
        self.host, self._at = host, at
        self._means: dict[int, list[Tensor]] = {}
        self._levels: list[float] = []

    @property
    def images(self) -> int:
        """How many were seen: as many as the tap seen most often has means."""
        return max((sum(map(len, each)) for each in self._means.values()), default=0)

    def source(self) -> Source:
        """The statistics of all images that the model was called with."""
        if not self._means:
            raise GramLoopError(
                f"{self.host.name} showed no block's patches while it was watched ({self._at}); call the model inside "
                "the with statement, in the way in which its head reads it"
            )
        return Source.of_views(self._means, self.images, self.host, (), self._levels, at=self._at)

    def _see(self, tap: int, patches: Tensor, valid: Tensor | None) -> None:
        self._means.setdefault(tap, []).append(patch_mean(patches.detach(), valid)[:, 0].cpu().double())

    def _embedded(self, embedding: nn.Module, args: tuple[Tensor, ...], output: object) -> None:
        self._levels += noise(noise_response(args[0])).tolist()


@contextmanager
def calibrating(
    model: nn.Module,
    *,
    at: Place = "norm",
    blocks: Sequence[nn.Module] | None = None,
    norm: nn.Module | Callable[[Tensor], Tensor] | None = None,
    prefix: int | None = None,
    which: str | None = None,
) -> Iterator[Calibration]:
    """Watch the calling thread's forwards of ordinary images; other arguments are those of `attach`.

    at: where a head reads: "norm", after the final norm, or "states", the hidden states or feature maps that the ViT
        returns, as they are. What is attached with these statistics acts in the same place.

    with gramloop.calibrating(model) as seen:
        for batch in ordinary_images:
            model(batch)
    gramloop.attach(model, recentre="c=1", source=seen.source())
    """
    host = find_vit(model, blocks, norm, prefix, which)
    if at not in PLACES:
        raise GramLoopError(f"at is {at!r}; it is one of {', '.join(PLACES)}")
    seen = Calibration(host, at)
    handles = TAPPINGS[at](host, PerThread.of_this(), taps_read(host), seen._see).register()
    if host.embedding is not None:
        handles.append(host.embedding.register_forward_hook(seen._embedded))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
