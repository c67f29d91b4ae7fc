"""Where each ViT family keeps its blocks, its final norm and its prefix tokens.

Families are recognised by the names of classes and never imported, so nothing here needs the library that
a host comes from.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from gramloop.core.trace import Grid
from gramloop.errors import GramLoopError, GramLoopWarning


@dataclass(frozen=True)
class Host:
    """A ViT that can be replayed.

    plain_depth: how many blocks, from the first, form a plain chain over the same tokens.
    why_not_plain: what the later ones do, for the refusal.
    """

    name: str
    blocks: tuple[nn.Module, ...]
    norm: Callable[[Tensor], Tensor]
    prefix: int
    patch_embedding: nn.Conv2d | None
    plain_depth: int
    why_not_plain: str = ""

    @property
    def depth(self) -> int:
        """How many blocks there are."""
        return len(self.blocks)

    def check_plain_chain(self, reach: int) -> None:
        """Refuse a replay whose window or probe reaches into blocks that are no plain chain."""
        if reach >= self.plain_depth:
            raise GramLoopError(
                f"{self.name} cannot be replayed as far as block {reach}: {self.why_not_plain}; window and "
                f'gate_at must lie below block {self.plain_depth} (for example gate_at="end")'
                if self.plain_depth
                else f"{self.name} cannot be replayed: {self.why_not_plain}"
            )


@dataclass(frozen=True)
class _Family:
    """How to read one family's model: attribute paths, and the number of prefix tokens."""

    blocks: str
    norm: str
    prefix: Callable[[Any], int]
    plain_depth: Callable[[Any, int], int] = lambda vit, depth: depth
    why_not_plain: str = ""


def _fixed(count: int) -> Callable[[Any], int]:
    return lambda vit: count


def _class_and_registers(vit: Any) -> int:
    return 1 + int(getattr(vit.config, "num_register_tokens", 0) or 0)


def _meta_prefix(vit: Any) -> int:
    return 1 + int(getattr(vit, "n_storage_tokens", getattr(vit, "num_register_tokens", 0)))


def _before_queries(vit: Any, depth: int) -> int:
    return depth - int(vit.config.num_blocks)


def _if_one_window(vit: Any, depth: int) -> int:
    return depth if int(vit.config.num_windows) == 1 else 0


def _unless_mixed_rope(vit: Any, depth: int) -> int:
    return 0 if getattr(vit, "rope_mixed", False) else depth


_QUERIES = "it inserts mask queries among the tokens there"
_WINDOWS = "it regroups the tokens of one image into windows, so no block sees the whole image's patches"
_MIXED = "every block has position tables of its own (mixed RoPE)"

_FAMILIES: dict[str, _Family] = {
    # Meta's own modules
    "DinoVisionTransformer": _Family("blocks", "norm", _meta_prefix),
    # transformers
    "DINOv3ViTModel": _Family("model.layer", "norm", _class_and_registers),
    "DINOv3ViTBackbone": _Family("model.layer", "norm", _class_and_registers),
    "Dinov2Model": _Family("encoder.layer", "layernorm", _fixed(1)),
    "Dinov2Backbone": _Family("encoder.layer", "layernorm", _fixed(1)),
    "Dinov2WithRegistersModel": _Family("encoder.layer", "layernorm", _class_and_registers),
    "Dinov2WithRegistersBackbone": _Family("encoder.layer", "layernorm", _class_and_registers),
    "ViTModel": _Family("layers", "layernorm", _fixed(1)),
    "DeiTModel": _Family("layers", "layernorm", _fixed(2)),
    "IJepaModel": _Family("layers", "layernorm", _fixed(0)),
    "DPTModel": _Family("encoder.layer", "layernorm", _fixed(1)),
    "CLIPVisionModel": _Family("encoder.layers", "post_layernorm", _fixed(1)),
    "SiglipVisionModel": _Family("encoder.layers", "post_layernorm", _fixed(0)),
    "Siglip2VisionModel": _Family("encoder.layers", "post_layernorm", _fixed(0)),
    "EomtForUniversalSegmentation": _Family(
        "layers", "layernorm", _class_and_registers, _before_queries, _QUERIES
    ),
    "EomtDinov3ForUniversalSegmentation": _Family(
        "layers", "layernorm", _class_and_registers, _before_queries, _QUERIES
    ),
    "RfDetrDinov2Backbone": _Family("encoder.layer", "layernorm", _fixed(1), _if_one_window, _WINDOWS),
    "LwDetrViTBackbone": _Family("encoder.layer", "", _fixed(0), _if_one_window, _WINDOWS),
    # timm
    "VisionTransformer": _Family("blocks", "norm", lambda vit: int(vit.num_prefix_tokens)),
    "Eva": _Family("blocks", "norm", lambda vit: int(vit.num_prefix_tokens), _unless_mixed_rope, _MIXED),
}


def find_host(
    model: nn.Module,
    blocks: Sequence[nn.Module] | None = None,
    norm: nn.Module | Callable[[Tensor], Tensor] | None = None,
    prefix: int | None = None,
) -> Host:
    """The one ViT in ``model``, or the one described by ``blocks``, ``norm`` and ``prefix``."""
    if not isinstance(model, nn.Module):
        raise GramLoopError(f"attach takes a torch.nn.Module, not {type(model).__name__}")
    if blocks is not None:
        return _described_host(model, blocks, norm, prefix)
    if norm is not None or prefix is not None:
        raise GramLoopError("norm and prefix describe a ViT together with blocks; blocks is missing")
    found = list(_known_hosts(model))
    if len(found) == 1:
        return _known_host(*found[0])
    if found:
        names = ", ".join(path or "the model itself" for path, _, _ in found)
        raise GramLoopError(
            f"{type(model).__name__} contains {len(found)} ViTs ({names}); attach to the one you mean"
        )
    raise GramLoopError(
        f"no ViT found in {type(model).__name__}: looked at its {sum(1 for _ in model.modules())} modules for "
        f"{', '.join(_FAMILIES)}; for another ViT pass blocks=, norm= and prefix="
    )


def _known_hosts(model: nn.Module) -> Iterator[tuple[str, nn.Module, _Family]]:
    """Every module of a known family that does not lie inside another one."""
    inside: set[nn.Module] = set()
    for path, module in model.named_modules():
        if module in inside:
            continue
        family = next((_FAMILIES[c.__name__] for c in type(module).__mro__ if c.__name__ in _FAMILIES), None)
        if family is not None and _reach(module, family.blocks) is not None:
            inside.update(module.modules())
            yield path, module, family


def _known_host(path: str, vit: nn.Module, family: _Family) -> Host:
    blocks = _flat(_reach(vit, family.blocks))
    norm = _reach(vit, family.norm) if family.norm else None
    return Host(
        name=f"{type(vit).__name__} at {path}" if path else type(vit).__name__,
        blocks=blocks,
        norm=_applied(norm),
        prefix=family.prefix(vit),
        patch_embedding=_patch_embedding(vit, blocks),
        plain_depth=family.plain_depth(vit, len(blocks)),
        why_not_plain=family.why_not_plain,
    )


def _described_host(
    model: nn.Module,
    blocks: Sequence[nn.Module],
    norm: nn.Module | Callable[[Tensor], Tensor] | None,
    prefix: int | None,
) -> Host:
    chain = tuple(blocks)
    inside = set(model.modules())
    if not chain or not all(block in inside for block in chain):
        raise GramLoopError(
            f"blocks must be modules of {type(model).__name__}, in the order in which they run"
        )
    if not isinstance(prefix, int) or prefix < 0:
        raise GramLoopError(
            f"prefix is {prefix!r}; with blocks= it says how many class and register tokens stand before the patches"
        )
    return Host(
        name=type(model).__name__,
        blocks=chain,
        norm=_applied(norm),
        prefix=prefix,
        patch_embedding=_patch_embedding(model, chain),
        plain_depth=len(chain),
    )


def _reach(module: Any, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name, None)
        if module is None:
            return None
    return module


def _flat(blocks: Any) -> tuple[nn.Module, ...]:
    """Blocks in order; DINOv2 can keep them in chunks that are padded with identities."""
    flat: list[nn.Module] = []
    for block in blocks:
        if isinstance(block, nn.ModuleList):
            flat.extend(inner for inner in block if not isinstance(inner, nn.Identity))
        else:
            flat.append(block)
    return tuple(flat)


def _applied(norm: nn.Module | Callable[[Tensor], Tensor] | None) -> Callable[[Tensor], Tensor]:
    if norm is None:
        return lambda tokens: tokens
    # norm.forward, like block.forward: the host's own hooks must not see probes
    return norm.forward if isinstance(norm, nn.Module) else norm


def _patch_embedding(model: nn.Module, blocks: tuple[nn.Module, ...]) -> nn.Conv2d | None:
    """The convolution that cuts the image into patches, if there is exactly one."""
    in_blocks = {module for block in blocks for module in block.modules()}
    cutting = [
        module
        for module in model.modules()
        if isinstance(module, nn.Conv2d)
        and module not in in_blocks
        and module.kernel_size == module.stride
        and module.kernel_size[0] > 1
    ]
    return cutting[0] if len(cutting) == 1 else None


def grid_shown(conv: nn.Module, image: Tensor, output: Tensor) -> Grid:
    """The patch grid of one embedded input, with a warning if the host drops a margin of it."""
    assert isinstance(conv, nn.Conv2d)
    height, width = image.shape[-2:]
    down, across = conv.stride
    if conv.padding == (0, 0) and (height % down or width % across):
        warnings.warn(
            f"the input is {height} x {width}, not a multiple of the patch size {down}: the host drops "
            f"the last {height % down} rows and {width % across} columns",
            GramLoopWarning,
            stacklevel=3,
        )
    return output.shape[-2], output.shape[-1]


def grids_of(shown: Sequence[Grid], states: Sequence[Tensor], prefix: int) -> list[Grid | None]:
    """The grids behind these states, of those that were shown; each None where it is not known."""
    recent = shown[-len(states) :]
    if len(recent) != len(states):
        return [None] * len(states)
    for (height, width), tokens in zip(recent, states, strict=True):
        if tokens.shape[1] != prefix + height * width:
            raise GramLoopError(
                f"a block returned {tokens.shape[1]} tokens where {prefix} prefix tokens and a patch grid of "
                f"{height} x {width} make {prefix + height * width}; if the prefix is another, pass prefix="
            )
    return list(recent)
