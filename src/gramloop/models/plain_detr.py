"""The Plain-DETR head: a feature map of stride 16 in, scored boxes out, with the released names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gramloop.errors import GramLoopError
from gramloop.models.plain_detr_boxes import box_positions, centre_to_corners, map_positions, refine
from gramloop.models.plain_detr_decoder import Decoder
from gramloop.models.plain_detr_encoder import Encoder
from gramloop.models.plain_detr_proposals import propose, stride_projections


@dataclass(frozen=True)
class PlainDetrConfig:
    """Sizes of a head; the defaults are those of the released COCO head of the 7B backbone."""

    channels: int = 32768  # of the feature map: windows and global view, four taps each
    width: int = 768
    heads: int = 8
    encoder_layers: int = 6
    encoder_feedforward: int = 2048
    decoder_layers: int = 6
    decoder_feedforward: int = 2048
    rpe_hidden: int = 512
    queries: int = 1500  # used at inference; a file stores as many again for training
    classes: int = 91
    smallest_proposal: float = 50.0  # pixels

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) <= 0:
                raise GramLoopError(f"{field.name} is {getattr(self, field.name)}; it must be positive")
        if self.width % (4 * self.heads) or self.width % 32:
            raise GramLoopError(f"width is {self.width}; it must divide by 32 and by 4 x {self.heads} heads")


class BoxMlp(nn.Module):
    """Three layers from a query to its four box deltas."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 4)])

    def forward(self, content: Tensor) -> Tensor:
        """(B, n, C) → (B, n, 4)."""
        first, second, last = self.layers
        return last(F.relu(second(F.relu(first(content)))))  # type: ignore[no-any-return]


class _Transformer(nn.Module):
    """Everything the released files keep under ``transformer``."""

    def __init__(self, config: PlainDetrConfig, classify: nn.ModuleList, locate: nn.ModuleList) -> None:
        super().__init__()
        width = config.width
        self.level_embed = nn.Parameter(torch.zeros(1, width))
        self.encoder = Encoder(config.encoder_layers, width, config.heads, config.encoder_feedforward)
        self.decoder = Decoder(
            config.decoder_layers,
            width,
            config.heads,
            config.decoder_feedforward,
            config.rpe_hidden,
            classify,
            locate,
        )
        self.enc_output = nn.Linear(width, width)
        self.enc_output_norm = nn.LayerNorm(width)
        self.enc_output_proj = stride_projections(width)
        self.pos_trans = nn.Linear(2 * width, 2 * width)
        self.pos_trans_norm = nn.LayerNorm(2 * width)


class PlainDetr(nn.Module):
    """Plain-DETR without its backbone; its state dict has the names of a released head, aliases included."""

    def __init__(self, config: PlainDetrConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or PlainDetrConfig()
        heads = config.decoder_layers + 1  # the last one scores the proposals
        self.class_embed = nn.ModuleList(nn.Linear(config.width, config.classes) for _ in range(heads))
        self.bbox_embed = nn.ModuleList(BoxMlp(config.width) for _ in range(heads))
        self.transformer = _Transformer(config, self.class_embed, self.bbox_embed)
        self.query_embed = nn.Embedding(2 * config.queries, config.width)
        project = nn.Sequential(nn.Conv2d(config.channels, config.width, 1), nn.GroupNorm(32, config.width))
        self.input_proj = nn.ModuleList([project])

    def forward(self, features: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (B, n, classes) and boxes (B, n, 4; cxcywh in pixels of the padded input).

        ``features`` is (B, channels, h, w) of stride 16, ``padding`` (B, h, w) is True on padding. n is the
        number of queries, or of proposals when a small image (under about 290 patches) offers fewer.
        """
        maps = self.input_proj[0](features)
        positions = map_positions(padding, self.config.width) + self.transformer.level_embed
        # a traced graph cannot ask; a mask that hides nothing changes nothing
        hidden = padding.flatten(1) if torch.compiler.is_compiling() or bool(padding.any()) else None
        memory = self.transformer.encoder(maps.flatten(2).transpose(1, 2), positions, hidden)
        boxes, valid_size = self._best_proposals(memory.transpose(1, 2).reshape_as(maps), padding)
        content = self.query_embed.weight[: boxes.shape[1]].expand(len(boxes), -1, -1)
        code = self.transformer.pos_trans(box_positions(boxes, self.config.width // 2))
        where = self.transformer.pos_trans_norm(code)[..., : self.config.width]
        logits, boxes = self.transformer.decoder(
            content, where, boxes, memory, positions, padding, valid_size
        )
        return logits, boxes

    def _best_proposals(self, memory: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
        """The boxes (B, n, 4) that class 0 of the last head ranks highest, and the valid size (B, 2)."""
        parts = self.transformer
        found = propose(memory, padding, parts.enc_output_proj, self.config.smallest_proposal)
        content = parts.enc_output_norm(parts.enc_output(found.memory))
        boxes = refine(found.boxes, self.bbox_embed[-1](content), found.valid_size)
        ranks = self.class_embed[-1](content)[..., 0]
        best = ranks.topk(min(self.config.queries, ranks.shape[1]), dim=1).indices
        return boxes.gather(1, best[..., None].expand(-1, -1, 4)), found.valid_size


def infer_config(shapes: Mapping[str, tuple[int, ...]]) -> PlainDetrConfig:
    """The sizes that a head's names and shapes imply; a missing name is an error that says which."""

    def shape(name: str) -> tuple[int, ...]:
        if name not in shapes:
            raise GramLoopError(f"is no Plain-DETR head: it has no {name}")
        return shapes[name]

    def depth(prefix: str) -> int:
        return len({name[len(prefix) :].split(".")[0] for name in shapes if name.startswith(prefix)})

    queries, width = shape("query_embed.weight")
    layer = "transformer.decoder.layers.0."
    return PlainDetrConfig(
        channels=shape("input_proj.0.0.weight")[1],
        width=width,
        heads=shape(layer + "cross_attn.cpb_mlp1.2.weight")[0],
        encoder_layers=depth("transformer.encoder.layers."),
        encoder_feedforward=shape("transformer.encoder.layers.0.linear1.weight")[0],
        decoder_layers=depth("transformer.decoder.layers."),
        decoder_feedforward=shape(layer + "linear1.weight")[0],
        rpe_hidden=shape(layer + "cross_attn.cpb_mlp1.0.weight")[0],
        queries=queries // 2,
        classes=shape("class_embed.0.weight")[0],
    )


def best_detections(
    logits: Tensor, boxes: Tensor, size: tuple[float, float], original: tuple[float, float], keep: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The ``keep`` highest (query, class) scores of one image: boxes (n, 4) xyxy, scores (n,), labels (n,).

    ``logits`` is (q, classes), ``boxes`` (q, 4; cxcywh) in pixels of an input whose ``size`` (height, width)
    excludes padding; the result is in pixels of ``original`` (height, width). No threshold, no suppression.
    """
    scores = logits.sigmoid().flatten()
    scores, index = scores.topk(min(keep, scores.numel()))
    classes = logits.shape[-1]
    height, width = size
    limit = boxes.new_tensor([width, height, width, height])
    scale = boxes.new_tensor([original[1] / width, original[0] / height] * 2)
    corners = torch.minimum(centre_to_corners(boxes[index // classes]).clamp(min=0), limit) * scale
    return corners, scores, index % classes
