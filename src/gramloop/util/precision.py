"""Autocast off for a part of a model."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def without_autocast(kind: str) -> AbstractContextManager[object]:
    """Turn autocast off on devices of a kind; where it is off, nothing, for a mode would cut a traced graph into parts."""
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()
