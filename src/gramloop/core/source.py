"""Ordinary images in a few numbers: the mean of the patches at each tap, its spread, and the usual noise.

Nothing here needs a label. The numbers belong to one backbone, and their file says which.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from gramloop.core.hosts import Host
from gramloop.core.known import fingerprint
from gramloop.errors import GramLoopError
from gramloop.util.files import atomic_write
from gramloop.util.json_files import parse_json
from gramloop.util.table import Shown, ShownTable

Place = Literal["norm", "states"]
PLACES: tuple[Place, ...] = get_args(Place)
KIND = "gramloop source"
LEAST = 8  # images; a spread of fewer says nothing
QUANTILE = 0.99  # of ordinary images lie below what is called their noise


@dataclass(frozen=True)
class Source(Shown):
    """What ordinary images look like to one backbone.

    means, spreads: by tap, (C,): of all patches of all views, and the standard deviation of one view's mean.
    at: whether the patches were seen after the final norm, or in the states that the ViT returns.
    noise: the level below which 99 of 100 images lie, in grey levels; None where their pixels were not at hand.
    shown_noise: the same of what the patch embedding was given, in its units, as ``adaptive`` has them.
    backbone: its fingerprint, empty where it has none.
    pixels: how ordinary images look, by name, where their pixels were at hand.
    """

    means: Mapping[int, Tensor]
    spreads: Mapping[int, Tensor]
    noise: float | None
    images: int
    backbone: str = ""
    shown_noise: float | None = None
    pixels: Mapping[str, float] = field(default_factory=dict)
    at: Place = "norm"

    @classmethod
    def of_views(
        cls,
        views: Mapping[int, Sequence[Tensor]],
        images: int,
        host: Host | None,
        noise: Noise,
        shown: Noise,
        pixels: Mapping[str, float] | None = None,
        at: Place = "norm",
    ) -> Source:
        """The statistics of the means (B, C) of every tap's views; ``noise`` and ``shown`` are images' levels."""
        if images < LEAST:
            raise GramLoopError(
                f"calibration needs at least {LEAST} ordinary images, better a few dozen, not {images}"
            )
        joined = {tap: torch.cat(list(means)) for tap, means in views.items() if means}
        return cls(
            {tap: each.mean(0).float() for tap, each in joined.items()},
            {tap: each.std(0).float() for tap, each in joined.items()},
            _level(noise),
            images,
            "" if host is None else fingerprint(host),
            _level(shown),
            pixels or {},
            at,
        )

    def _shown(self) -> ShownTable:
        """Of each tap the length of its mean, and how far that of one view lies from it, both over channels."""
        rows = tuple(
            (tap, len(mean), float(mean.norm()), float(self.spreads[tap].norm()))
            for tap, mean in sorted(self.means.items())
        )
        seen = "after the final norm" if self.at == "norm" else "in the states that the ViT returns"
        levels = {"noise in grey levels": self.noise, "noise as the model is shown it": self.shown_noise}
        notes = [
            f"99 of 100 have {name} below {value:.4g}." for name, value in levels.items() if value is not None
        ]
        if self.pixels:
            notes.append(", ".join(f"{name} {value:.4g}" for name, value in self.pixels.items()) + ".")
        if self.backbone:
            notes.append(f"The backbone's fingerprint is {self.backbone}.")
        title = f"{self.images} ordinary images" + (f", their patches {seen}" if rows else "")
        return ShownTable(
            title, ("tap", "channels", "length of the mean", "spread of a view's mean"), rows, tuple(notes)
        )

    def check(self, host: Host, taps: Sequence[int], width: int | None) -> None:
        """Refuse statistics of another backbone or of other taps."""
        if lacking := [tap for tap in taps if tap not in self.means]:
            raise GramLoopError(
                f"the source statistics are of the taps {sorted(self.means)}, and the head reads tap {lacking[0]}; "
                "calibrate again with this model"
            )
        wrong = [each for each in self.means.values() if width is not None and each.shape != (width,)]
        found = fingerprint(host)
        if wrong or (found and self.backbone and found != self.backbone):
            raise GramLoopError(
                "the source statistics are of another backbone; calibrate again with this model"
            )


Noise = Sequence[float]


def _level(levels: Noise) -> float | None:
    return float(torch.tensor(levels, dtype=torch.float64).quantile(QUANTILE)) if levels else None


def write_source(path: str | Path, source: Source) -> None:
    """Store the statistics as safetensors, whole or not at all."""
    from safetensors.torch import save

    tensors = {f"mean.{tap}": value.contiguous() for tap, value in source.means.items()}
    tensors |= {f"spread.{tap}": value.contiguous() for tap, value in source.spreads.items()}
    about = {name: getattr(source, name) for name in ("noise", "images", "backbone", "shown_noise")}
    about |= {"pixels": dict(source.pixels)} if source.pixels else {}
    about |= {"at": source.at} if source.at != "norm" else {}
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
        raise GramLoopError(f"{path} holds no source statistics; gramloop calibrate writes them")
    try:
        about = parse_json(stored[KIND].encode(), str(path), "a file of source statistics")
        named = {
            kind: {int(name.split(".")[1]): value for name, value in parts.items() if name.startswith(kind)}
            for kind in ("mean.", "spread.")
        }
        levels = [
            None if about.get(name) is None else float(about[name]) for name in ("noise", "shown_noise")
        ]
        pixels = {str(name): float(value) for name, value in about.get("pixels", {}).items()}
        found = Source(
            named["mean."],
            named["spread."],
            levels[0],
            int(about["images"]),
            str(about["backbone"]),
            levels[1],
            pixels,
            PLACES[PLACES.index(about.get("at", "norm"))],
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise GramLoopError(
            f"{path} is no file of source statistics that gramloop wrote: {error!r}"
        ) from error
    if found.means.keys() != found.spreads.keys() or not (found.means or found.pixels):
        raise GramLoopError(f"{path} lacks the mean or the spread of a tap; calibrate again")
    return found


def sha256_of(path: Path) -> str:
    """The checksum of a file."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise GramLoopError(f"cannot read the source statistics {path}: {error.strerror}") from error


def checked_source(path: Path, entry: object) -> Path | None:
    """The file of statistics that a settings file at ``path`` names, if it is still the same."""
    if entry is None:
        return None
    if not isinstance(entry, dict) or not isinstance(entry.get("file"), str):
        raise GramLoopError(f'the source is given as {{"file": …, "sha256": …}}, not as {entry!r}')
    found = path.parent / str(entry["file"])
    if sha256_of(found) != entry.get("sha256"):
        raise GramLoopError(f"{found} is not the file that these mitigations were measured with")
    return found
