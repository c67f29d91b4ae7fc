"""How a model is run while it is checked: where, with which weights, in which precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from gramloop.models.dinov3 import Backbone


@dataclass(frozen=True)
class Way:
    """A device, the type of the backbone's weights, and whether its blocks run under bfloat16 autocast."""

    device: torch.device
    dtype: torch.dtype = torch.float32
    autocast: bool = False

    @property
    def exact(self) -> bool:
        """Whether everything is float32."""
        return self.dtype == torch.float32 and not self.autocast

    @property
    def words(self) -> str:
        """The precision as people say it."""
        if self.dtype != torch.float32:
            return f"{str(self.dtype).removeprefix('torch.')} weights"
        return "bfloat16 autocast" if self.autocast else "float32"

    def settle(self, backbone: Backbone) -> Backbone:
        """The backbone on the device, in this precision; its final norm stays float32."""
        backbone.autocast = torch.bfloat16 if self.autocast else None
        backbone.autocast_on = (self.device.type,)
        if self.dtype != torch.float32:
            backbone.model.to(self.dtype)
            backbone.norm.float()
        return backbone.to(self.device)


@contextmanager
def true_float32() -> Iterator[None]:
    """Products and convolutions in float32 itself: by default PyTorch lets a GPU round convolutions to TF32."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
