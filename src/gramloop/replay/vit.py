"""Find the ViT in a model, by its class or as its user describes it: blocks, final norm, and where patches are.

Families are known by the names of classes and never imported, so nothing here needs the library that a ViT
comes from. In every family all blocks are given the same arguments besides the state, and what differs from
block to block (relative position biases, windows) is inside the blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from gramloop.errors import GramLoopError

Grid = tuple[int, int]  # rows and columns of patches
Norm = nn.Module | Callable[[Tensor], Tensor]
Map = Literal["", "TBC", "TC", "BHWC", "BCHW"]  # (B, T, C) where empty
LAYOUTS = ("BTC", "TBC", "TC", "BHWC", "BCHW")  # images, tokens, channels, rows and columns of patches


@dataclass(frozen=True)
class TokenLayout:
    """How blocks carry tokens, or a map of the patches; all are worked on as (B, T, C).

    prefix, suffix: how many class, register and detection tokens come before and after the patches.
    map: the order of dimensions where it is another; blocks that carry a map may form windows inside themselves.
    """

    prefix: int = 0
    suffix: int = 0
    map: Map = ""

    def tokens(self, state: Tensor) -> Tensor:
        """A block's state as (B, T, C)."""
        if state.ndim != (len(self.map) or 3):
            raise GramLoopError(
                f"a block carries a state of shape {tuple(state.shape)}, which is not {self.map or 'BTC'}; describe the ViT "
                f"with blocks=, norm=, prefix= and layout=, one of {', '.join(LAYOUTS)}"
            )
        if not self.map:
            return state
        if self.map == "BCHW":
            return state.flatten(2).transpose(1, 2)
        if self.map == "BHWC":
            return state.flatten(1, 2)
        return state[None] if self.map == "TC" else state.transpose(0, 1)

    def state(self, tokens: Tensor, grid: Grid | None) -> Tensor:
        """Tokens as blocks carry them; ``grid`` is that of the map."""
        if not self.map:
            return tokens
        if grid is None:
            return tokens[0] if self.map == "TC" else tokens.transpose(0, 1).contiguous()
        batch, _, channels = tokens.shape
        if self.map == "BHWC":
            return tokens.reshape(batch, *grid, channels)
        return tokens.transpose(1, 2).reshape(batch, channels, *grid)

    def grid(self, state: Tensor) -> Grid | None:
        """The patch grid of a map; None for tokens, which do not show it."""
        if "H" not in self.map:
            return None
        rows = self.map.index("H")
        return state.shape[rows], state.shape[rows + 1]

    def patches(self, tokens: Tensor) -> Tensor:
        """The patches among an image's tokens, (B, T, C) -> (B, N, C)."""
        return tokens[:, self.prefix : -self.suffix or None]

    @property
    def others(self) -> int:
        """How many tokens are no patches."""
        return self.prefix + self.suffix


def state_of(output: Any) -> Tensor:
    """The hidden state in a block's output: a tensor, a tuple that begins with one, or a list of one resolution."""
    several = isinstance(output, list) and len(output) != 1
    found = output[0] if isinstance(output, tuple | list) and output else output
    if isinstance(found, Tensor) and not several:
        return found
    raise GramLoopError(
        f"a block's state is {f'a list of {len(output)}' if several else type(output).__name__}; a replay takes a tensor, "
        "a tuple that begins with one, and a list of one: run the model on each resolution"
    )


def with_state(output: Any, state: Tensor) -> Any:
    """The same kind of output with another hidden state."""
    if isinstance(output, tuple):
        return (state, *output[1:])
    return [state] if isinstance(output, list) else state


def hidden_states(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The hidden state that a block is called with, or a list of one; it comes first, or has a name."""
    return args[0] if args else kwargs[_hidden_name(kwargs)]


def with_hidden(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], hidden: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same arguments with another hidden state."""
    if args:
        return (hidden, *args[1:]), dict(kwargs)
    return (), {**kwargs, _hidden_name(kwargs): hidden}


def _hidden_name(kwargs: Mapping[str, Any]) -> str:
    for name in ("hidden_states", "x", "input"):
        if name in kwargs:
            return name
    raise GramLoopError(f"blocks are called with hidden states first; these are given {sorted(kwargs)}")


@dataclass(frozen=True)
class ViT:
    """A ViT that can be replayed.

    module: what blocks and norm were found in; ``paths`` are theirs in it, where its family is known.
    embedding: the module that cuts images into patches and so shows their grid.
    plain_depth: how many blocks, from the first, form a plain chain over the same tokens.
    why_not_plain: what the later ones do, for the error message.
    shuffles: the patches of an image come in an order of their own, so that they have no grid.
    """

    name: str
    module: nn.Module
    blocks: tuple[nn.Module, ...]
    final_norm: Norm | None
    layout: TokenLayout
    embedding: nn.Module | None
    plain_depth: int
    why_not_plain: str = ""
    shuffles: bool = False
    paths: tuple[str, str] | None = None

    @property
    def depth(self) -> int:
        """How many blocks there are."""
        return len(self.blocks)

    @property
    def patch_embedding(self) -> nn.Conv2d | None:
        """The convolution that cuts images into patches, where it is one."""
        return self.embedding if isinstance(self.embedding, nn.Conv2d) else None

    def patches(self, tokens: Tensor) -> Tensor:
        """Patch(LN(Y)): the final-normed patches of a state, (B, T, C) -> (B, N, C), as constants without gradient."""
        patches, norm = self.layout.patches(tokens).detach(), self.final_norm
        if norm is None:
            return patches
        weight = getattr(norm, "weight", None)
        if isinstance(weight, Tensor) and weight.dtype == torch.float32:  # around blocks in bfloat16
            patches = patches.to(torch.promote_types(patches.dtype, torch.float32))
        with torch.no_grad():
            # norm.forward, like block.forward: the hooks of others must not see probes
            normed: Tensor = norm.forward(patches) if isinstance(norm, nn.Module) else norm(patches)
        return normed

    def check_unchanged(self) -> None:
        """Refuse to run with blocks or a norm that are no longer the model's."""
        if self.paths is None:
            held = {each for each in (*self.blocks, self.final_norm) if isinstance(each, nn.Module)}
            same = held <= set(self.module.modules())
        else:
            same = (self.blocks, self.final_norm) == _blocks_and_norm(self.module, *self.paths)
        if not same:
            raise GramLoopError(f"blocks or norm of {self.name} were replaced; detach() and attach again")


@dataclass(frozen=True)
class Family:
    """How to read one family's model.

    blocks, norm: attribute paths; no norm where the blocks' last state is used as it is.
    layout: prefix tokens, or how to learn the layout from the ViT.
    plain_depth, why_not_plain, shuffles: as in `ViT`; the depth is learnt from the ViT and its number of blocks.
    embedding: the path of the module that cuts the image into patches where that is no convolution; it is called
        with the image and has a ``patch_size``.
    """

    blocks: str
    norm: str
    layout: int | TokenLayout | Callable[[Any], int | TokenLayout]
    plain_depth: Callable[[Any, int], int] = lambda vit, depth: depth
    why_not_plain: str = ""
    embedding: str = ""
    shuffles: bool = False


def _from_config(name: str, more: int = 0) -> Callable[[Any], int]:
    return lambda vit: more + int(getattr(vit.config, name, 0) or 0)


def _meta_prefix(vit: Any) -> int:
    return 1 + int(getattr(vit, "n_storage_tokens", getattr(vit, "num_register_tokens", 0)))


def _yolos_layout(vit: Any) -> TokenLayout:
    return TokenLayout(1, int(vit.config.num_detection_tokens))


def _timm_prefix(vit: Any) -> int:
    if not hasattr(vit, "num_prefix_tokens"):
        raise GramLoopError(f"{type(vit).__name__} has no num_prefix_tokens; pass blocks=, norm= and prefix=")
    return int(vit.num_prefix_tokens)


_BCHW, _BHWC = TokenLayout(map="BCHW"), TokenLayout(map="BHWC")
_REGISTERS, _CLASSES = _from_config("num_register_tokens", 1), _from_config("n_cls_tokens")
_QUERIES = (
    lambda vit, depth: depth - int(vit.config.num_blocks),
    "it inserts mask queries among the tokens there",
)
_WINDOWS = (
    lambda vit, depth: depth if int(vit.config.num_windows) == 1 else 0,
    "it regroups the tokens of one image into windows, so no block sees the whole image's patches",
)
_MIXED = (
    lambda vit, depth: 0 if getattr(vit, "rope_mixed", False) else depth,
    "every block has position tables of its own (mixed RoPE)",
)
_BETWEEN = (
    lambda vit, depth: 0 if vit.config.use_mid_position_embeddings else depth,
    "it adds position embeddings between its blocks (use_mid_position_embeddings)",
)
_FAMILIES: dict[str, Family] = {
    # Meta's own modules
    "DinoVisionTransformer": Family("blocks", "norm", _meta_prefix),
    "ImageEncoderViT": Family("blocks", "", _BHWC),
    # transformers, tokens
    "DINOv3ViTModel DINOv3ViTBackbone Sapiens2Model Sapiens2Backbone": Family(
        "model.layer", "norm", _REGISTERS
    ),
    "Dinov2Model Dinov2Backbone Data2VecVisionModel DPTModel": Family("encoder.layer", "layernorm", 1),
    "Dinov2WithRegistersModel Dinov2WithRegistersBackbone Tipsv2VisionModel Tipsv2VisionBackbone": Family(
        "encoder.layer", "layernorm", _REGISTERS
    ),
    "ViTModel ViTMSNModel BeitModel": Family("layers", "layernorm", 1),
    "ViTMAEModel": Family("layers", "layernorm", 1, shuffles=True),
    "DeiTModel": Family("layers", "layernorm", 2),
    "IJepaModel": Family("layers", "layernorm", 0),
    "CLIPVisionModel OwlViTVisionTransformer Owlv2VisionTransformer MLCDVisionModel BlipVisionModel "
    "Blip2VisionModel InstructBlipVisionModel": Family("encoder.layers", "post_layernorm", 1),
    "SiglipVisionModel Siglip2VisionModel Idefics2VisionTransformer Idefics3VisionTransformer "
    "SmolVLMVisionTransformer": Family("encoder.layers", "post_layernorm", 0),
    "InternVLVisionModel": Family("encoder.layer", "layernorm", 1),
    "Qwen2VisionTransformerPretrainedModel": Family(
        "blocks", "merger.ln_q", TokenLayout(map="TC"), shuffles=True
    ),
    "Aimv2VisionModel": Family("encoder.layers", "rms_norm", 0),
    "PixioModel": Family("layers", "layernorm", _CLASSES),
    "PixioBackbone": Family("pixio.layers", "layernorm", _CLASSES),
    "VitPoseBackbone": Family("encoder.layer", "layernorm", 0),
    "RadioModel": Family("encoder.layer", "", _from_config("num_summary_tokens"), embedding="embeddings"),
    "YolosModel": Family("encoder.layer", "layernorm", _yolos_layout, *_BETWEEN),
    "EomtForUniversalSegmentation EomtDinov3ForUniversalSegmentation": Family(
        "layers", "layernorm", _REGISTERS, *_QUERIES
    ),
    "RfDetrDinov2Backbone": Family("encoder.layer", "layernorm", 1, *_WINDOWS),
    "LwDetrViTBackbone": Family("encoder.layer", "", 0, *_WINDOWS),
    # transformers, maps
    "VitDetModel VitDetBackbone": Family("encoder.layer", "", _BCHW),
    "SamVisionEncoder SamHQVisionEncoder Sam3ViTModel": Family("layers", "", _BHWC),
    # timm
    "VisionTransformer": Family("blocks", "norm", _timm_prefix),
    "Eva": Family("blocks", "norm", _timm_prefix, *_MIXED),
}
FAMILIES = {name: family for names, family in _FAMILIES.items() for name in names.split()}


def find_vit(
    model: nn.Module,
    blocks: Sequence[nn.Module] | None = None,
    norm: Norm | None = None,
    prefix: int | None = None,
    which: str | None = None,
    layout: str = "BTC",
) -> ViT:
    """The one ViT in a model.

    Args:
        model: a ViT, or a model that contains one.
        blocks, norm, prefix: describe a ViT of an unknown family: its blocks in order, its final norm, and how many
            class and register tokens come before the patches.
        layout: the order of dimensions of the states that such blocks carry: BTC (images, tokens, channels), TBC, TC for
            one image, BHWC or BCHW.
        which: the path of the ViT, or of a part that contains it, where a model holds several.
    """
    if not isinstance(model, nn.Module):
        raise GramLoopError(f"attach takes a torch.nn.Module, not {type(model).__name__}")
    if which is not None and blocks is not None:
        raise GramLoopError(f"which={which!r} names a known ViT and blocks= describes one; give one of them")
    if which is not None:
        parts, known = dict(model.named_modules()), _names(_known_vits(model)) or "none"
        if which not in parts:
            raise GramLoopError(f"{type(model).__name__} has no module {which!r}; its ViTs are at: {known}")
        model = parts[which]
    if blocks is not None:
        return _described(model, tuple(blocks), norm, prefix, layout)
    if norm is not None or prefix is not None or layout != "BTC":
        raise GramLoopError("norm, prefix and layout describe a ViT together with blocks; blocks is missing")
    found = list(_known_vits(model))
    if any(type(module).__name__ == "FeatureGetterNet" for module in model.modules()):
        raise GramLoopError(
            "timm's features_only removes blocks and the final norm, with which drift is measured; take the model without it "
            "(forward_intermediates gives the same features), or describe what is left: blocks=, norm= and prefix="
        )
    if len(found) == 1:
        return _known(*found[0])
    if found:
        raise GramLoopError(
            f"{type(model).__name__} contains {len(found)} ViTs ({_names(found)}); name one: which="
        )
    raise GramLoopError(
        f"no ViT found in {type(model).__name__}: looked at its {sum(1 for _ in model.modules())} modules for "
        f"{', '.join(FAMILIES)}; for another ViT pass blocks=, norm= and prefix="
    )


def _known_vits(model: nn.Module) -> Iterator[tuple[str, nn.Module, Family]]:
    """Every module of a known family that does not lie inside another one."""
    inside: set[nn.Module] = set()
    for path, module in model.named_modules():
        if module in inside:
            continue
        family = next((FAMILIES[c.__name__] for c in type(module).__mro__ if c.__name__ in FAMILIES), None)
        if family is not None and _reach(module, family.blocks) is not None:
            inside.update(module.modules())
            yield path, module, family


def _names(found: Any) -> str:
    return ", ".join(path or "the model itself" for path, _, _ in found)


def _known(path: str, module: nn.Module, family: Family) -> ViT:
    blocks, norm = _blocks_and_norm(module, family.blocks, family.norm)
    layout = family.layout(module) if callable(family.layout) else family.layout
    embedding = _reach(module, family.embedding) if family.embedding else _patch_embedding(module, blocks)
    return ViT(
        name=f"{type(module).__name__} at {path}" if path else type(module).__name__,
        module=module, blocks=blocks, final_norm=norm,
        layout=TokenLayout(layout) if isinstance(layout, int) else layout,
        embedding=None if family.shuffles else embedding,
        plain_depth=family.plain_depth(module, len(blocks)), why_not_plain=family.why_not_plain,
        shuffles=family.shuffles, paths=(family.blocks, family.norm),
    )  # fmt: skip


def _described(
    model: nn.Module,
    blocks: tuple[nn.Module, ...],
    norm: Norm | None,
    prefix: int | None,
    layout: str,
) -> ViT:
    name = type(model).__name__
    if not blocks or not set(blocks) <= set(model.modules()) or len(set(blocks)) < len(blocks):
        raise GramLoopError(f"blocks must be different modules of {name}, in the order in which they run")
    if layout not in LAYOUTS:
        raise GramLoopError(f"layout is {layout!r}; it is one of {', '.join(LAYOUTS)}")
    if not isinstance(prefix, int) or prefix < 0 or (prefix and "H" in layout):
        raise GramLoopError(
            f"prefix is {prefix!r}; with blocks= it is the number of tokens before the patches, 0 where blocks carry maps"
        )
    embedding, carried = _patch_embedding(model, blocks), cast(Map, layout.removeprefix("BTC"))
    return ViT(name, model, blocks, norm, TokenLayout(prefix, map=carried), embedding, len(blocks))


def _blocks_and_norm(module: nn.Module, blocks: str, norm: str) -> tuple[tuple[nn.Module, ...], Any]:
    """Blocks in order and norm; DINOv2 can keep blocks in chunks that are padded with identities."""
    chunks = [each if isinstance(each, nn.ModuleList) else [each] for each in _reach(module, blocks)]
    flat = tuple(block for chunk in chunks for block in chunk if not isinstance(block, nn.Identity))
    return flat, _reach(module, norm) if norm else None


def _reach(module: Any, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name, None)
        if module is None:
            return None
    return module


def _patch_embedding(model: nn.Module, blocks: tuple[nn.Module, ...]) -> nn.Conv2d | None:
    """The convolution that cuts the image into patches, if there is exactly one."""
    in_blocks = {module for block in blocks for module in block.modules()}
    outside = [each for each in model.modules() if isinstance(each, nn.Conv2d) and each not in in_blocks]
    cutting = [conv for conv in outside if conv.kernel_size == conv.stride and conv.kernel_size[0] > 1]
    return cutting[0] if len(cutting) == 1 else None
