"""A host whose heads read recentred patches: `attach(model, recentre=…, source=…)`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from torch import Tensor

from gramloop.core.recentring import Recentring, patch_mean
from gramloop.core.source import Source, checked_source, read_source
from gramloop.core.tapping import TAPPINGS, PerThread, Tapping, taps_read
from gramloop.errors import GramLoopError
from gramloop.replay.config import MITIGATIONS_KIND, ReplayConfig, read_content, read_replay
from gramloop.replay.vit import ViT

Recentre = Recentring | float | str | None
SourceLike = Source | str | Path | None
Move = tuple[Recentring, Source]


def read_move(recentre: Recentre, source: SourceLike) -> Move | None:
    """How, and towards what, to recentre; None where that is not asked for."""
    if recentre is None:
        if source is not None:
            raise GramLoopError("source= says what recentre= moves towards; give both, or neither")
        return None
    moving = Recentring.of(recentre)
    if source is None:
        raise GramLoopError(
            "recentre= needs the statistics of ordinary images: source=, a file that gramloop calibrate writes, or "
            "what gramloop.calibrating(model) saw"
        )
    return moving, source if isinstance(source, Source) else read_source(source)


def read_attached(path: str | Path) -> tuple[ReplayConfig, Move | None]:
    """The replay of a settings file, and its recentring: of all that a file may hold, what can be attached."""
    content = read_content(path)
    name, _, arguments = str(content.get("mitigations")).partition(":")
    if content["kind"] != MITIGATIONS_KIND or name != "recentre" or "+" in arguments or "stream" in arguments:
        return read_replay(path), None
    try:
        moving, file = Recentring.parse(arguments), checked_source(Path(path), content.get("source"))
        if file is None or moving.beyond is None:
            raise GramLoopError(
                f"recentre:{arguments} leans on the head's own batch norm; gramloop.mitigations.apply takes this file, "
                "and attach a recentre= and a source="
            )
        replay = content.get("replay")
        config = ReplayConfig(replays=0) if replay is None else ReplayConfig.from_json(replay)
    except GramLoopError as error:
        raise GramLoopError(f"{path}: {error}") from error
    return config, (moving, read_source(file))


def recentred_taps(host: ViT, here: PerThread, moving: Recentring, source: Source) -> Tapping | None:
    """What recentres the taps that the source knows; None where a weight of 0 leaves them as they are."""
    known = [tap for tap in taps_read(host) if tap in source.means]
    tapping = TAPPINGS[source.at](host, here, known or source.means, partial(_moved, moving, source))
    weight = getattr(host.final_norm, "weight", None)
    source.check(host, (), weight.shape[-1] if isinstance(weight, Tensor) else None)
    return tapping if moving.weight > 0 else None


def _moved(moving: Recentring, source: Source, tap: int, patches: Tensor, valid: Tensor | None) -> Tensor:
    away = patch_mean(patches, valid) - source.means[tap].to(patches.device)
    return moving.moved(patches, away, source.spreads[tap])
