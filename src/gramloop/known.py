"""Backbones on which a replay setting was measured: the default of `attach` where no setting is given.

A backbone is recognised by its weights, not by its name: depth, width and a checksum of its final norm, which
training, fine-tuning and distillation all change. The checksum is taken after rounding to bfloat16, so that a
model cast to half precision is still recognised.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import nn

from gramloop.config import ReplayConfig
from gramloop.hosts import Host


@dataclass(frozen=True)
class Known:
    """A setting and what it did, in points with a 95% interval over shift families."""

    backbone: str
    fingerprint: str
    replay: ReplayConfig
    measured_on: str
    gain: str
    clean: str
    date: str


KNOWN: tuple[Known, ...] = ()


def fingerprint(host: Host) -> str:
    """What tells one backbone's weights from another's, or an empty string where that cannot be told."""
    norm = host.norm
    weight = getattr(norm, "weight", None)
    if not isinstance(norm, nn.Module) or weight is None or weight.is_meta:
        return ""
    digest = hashlib.sha256(f"{host.depth} {weight.shape[-1]}".encode())
    for name, value in sorted(norm.state_dict().items()):
        rounded = value.detach().to("cpu", torch.bfloat16).view(torch.int16)
        digest.update(name.encode() + rounded.numpy().tobytes())
    return digest.hexdigest()[:16]


def known_setting(host: Host) -> Known | None:
    """The entry of this backbone, if it has one."""
    found = fingerprint(host)
    return next((entry for entry in KNOWN if found and entry.fingerprint == found), None)
