"""Find the ViT in a model, by its class or as its user describes it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gramloop.core.families import FAMILIES, Family
from gramloop.core.layout import Layout
from gramloop.core.trace import Grid
from gramloop.errors import GramLoopError, GramLoopWarning


@dataclass(frozen=True)
class Host:
    """A ViT that can be replayed.

    plain_depth: how many blocks, from the first, form a plain chain over the same tokens.
    why_not_plain: what the later ones do, for the refusal.
    vit: the module that these blocks and norm were found in; ``paths`` are theirs in it, where it is a known one.
    embedding: the module that cuts images into patches and so shows their grid.
    shuffles: the patches of an image come in an order of their own.
    """

    name: str
    blocks: tuple[nn.Module, ...]
    final_norm: nn.Module | Callable[[Tensor], Tensor] | None
    layout: Layout
    vit: nn.Module
    embedding: nn.Module | None
    plain_depth: int
    why_not_plain: str = ""
    shuffles: bool = False
    paths: tuple[str, str] | None = None

    def norm(self, patches: Tensor) -> Tensor:
        """The final norm, where there is one."""
        if self.final_norm is None:
            return patches
        # norm.forward, like block.forward: the host's own hooks must not see probes
        norm = self.final_norm.forward if isinstance(self.final_norm, nn.Module) else self.final_norm
        weight = getattr(self.final_norm, "weight", None)
        if (
            isinstance(weight, Tensor) and weight.dtype == torch.float32
        ):  # of a model whose blocks are bfloat16
            patches = patches.to(torch.promote_types(patches.dtype, torch.float32))
        normed: Tensor = norm(patches)
        return normed

    def check_same(self) -> None:
        """Refuse to go on with blocks or a norm that the model has no longer."""
        if self.paths is None:
            inside = set(self.vit.modules())
            held = (*self.blocks, self.final_norm)
            same = all(module in inside for module in held if isinstance(module, nn.Module))
        else:
            blocks, norm = _blocks_and_norm(self.vit, *self.paths)
            same = norm is self.final_norm and len(blocks) == self.depth
            same = same and all(now is then for now, then in zip(blocks, self.blocks, strict=True))
        if not same:
            raise GramLoopError(
                f"blocks or norm of {self.name} were replaced with a replay attached; detach() and attach again"
            )

    @property
    def patch_embedding(self) -> nn.Conv2d | None:
        """The convolution that cuts images into patches, where it is one."""
        return self.embedding if isinstance(self.embedding, nn.Conv2d) else None

    @property
    def prefix(self) -> int:
        """How many class and register tokens stand before the patches."""
        return self.layout.prefix

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


def find_host(
    model: nn.Module,
    blocks: Sequence[nn.Module] | None = None,
    norm: nn.Module | Callable[[Tensor], Tensor] | None = None,
    prefix: int | None = None,
    which: str | None = None,
) -> Host:
    """The one ViT in ``model``, or in its submodule ``which``, or the one that blocks, norm and prefix describe."""
    if not isinstance(model, nn.Module):
        raise GramLoopError(f"attach takes a torch.nn.Module, not {type(model).__name__}")
    if which is not None:
        if blocks is not None:
            raise GramLoopError(
                f"which={which!r} names a known ViT and blocks= describes one; give one of them"
            )
        model = _part(model, which)
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
            f"{type(model).__name__} contains {len(found)} ViTs ({names}); say which= to name one of them"
        )
    raise GramLoopError(
        f"no ViT found in {type(model).__name__}: looked at its {sum(1 for _ in model.modules())} modules for "
        f"{', '.join(FAMILIES)}; for another ViT pass blocks=, norm= and prefix="
    )


def _part(model: nn.Module, which: str) -> nn.Module:
    part: nn.Module | None = dict(model.named_modules()).get(which)
    if part is None:
        names = ", ".join(path or "the model itself" for path, _, _ in _known_hosts(model)) or "none"
        raise GramLoopError(
            f"{type(model).__name__} has no module {which!r}; its ViTs are at: {names}; which= is such a path, or "
            "that of a part that contains one"
        )
    return part


def _known_hosts(model: nn.Module) -> Iterator[tuple[str, nn.Module, Family]]:
    """Every module of a known family that does not lie inside another one."""
    inside: set[nn.Module] = set()
    for path, module in model.named_modules():
        if module in inside:
            continue
        family = next((FAMILIES[c.__name__] for c in type(module).__mro__ if c.__name__ in FAMILIES), None)
        if family is not None and _reach(module, family.blocks) is not None:
            inside.update(module.modules())
            yield path, module, family


def _known_host(path: str, vit: nn.Module, family: Family) -> Host:
    paths = family.blocks, family.norm
    blocks, norm = _blocks_and_norm(vit, *paths)
    return Host(
        name=f"{type(vit).__name__} at {path}" if path else type(vit).__name__,
        blocks=blocks,
        final_norm=norm,
        vit=vit,
        paths=paths,
        layout=family.layout(vit),
        embedding=_embedding(vit, blocks, family),
        plain_depth=family.plain_depth(vit, len(blocks)),
        why_not_plain=family.why_not_plain,
        shuffles=family.shuffles,
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
    if len(set(chain)) < len(chain):
        raise GramLoopError(
            f"blocks lists {len(chain)} modules of which {len(set(chain))} differ; one that runs several times in a "
            "forward cannot be told from a replay"
        )
    if not isinstance(prefix, int) or prefix < 0:
        raise GramLoopError(
            f"prefix is {prefix!r}; with blocks= it says how many class and register tokens stand before the patches"
        )
    return Host(
        name=type(model).__name__,
        blocks=chain,
        final_norm=norm,
        vit=model,
        layout=Layout(prefix),
        embedding=_patch_embedding(model, chain),
        plain_depth=len(chain),
    )


def _blocks_and_norm(vit: nn.Module, blocks: str, norm: str) -> tuple[tuple[nn.Module, ...], Any]:
    return _flat(_reach(vit, blocks)), _reach(vit, norm) if norm else None


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


def _embedding(vit: nn.Module, blocks: tuple[nn.Module, ...], family: Family) -> nn.Module | None:
    if family.shuffles:
        return None
    own = _reach(vit, family.embedding) if family.embedding else None
    return own if isinstance(own, nn.Module) else _patch_embedding(vit, blocks)


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


def grid_shown(embedding: nn.Module, image: Tensor, output: Tensor) -> Grid:
    """The patch grid of one embedded input, with a warning if the host drops a margin of it."""
    if image.ndim != 4:
        raise GramLoopError(
            f"the input has shape {tuple(image.shape)}: images packed into one sequence are not replayed; give them "
            "one by one, as (B, C, H, W)"
        )
    height, width = image.shape[-2:]
    conv = embedding if isinstance(embedding, nn.Conv2d) else None
    down, across = conv.stride if conv else _patch_size(embedding)
    if (conv is None or conv.padding == (0, 0)) and (height % down or width % across):
        warnings.warn(
            f"the input is {height} x {width}, not a multiple of the patch size {down}: the host drops "
            f"the last {height % down} rows and {width % across} columns",
            GramLoopWarning,
            stacklevel=3,
        )
    return (output.shape[-2], output.shape[-1]) if conv else (height // down, width // across)


def _patch_size(embedding: nn.Module) -> tuple[int, int]:
    size: object = embedding.patch_size
    assert isinstance(size, int)
    return size, size


def grids_of(shown: Sequence[Grid], states: Sequence[Tensor], layout: Layout) -> list[Grid | None]:
    """The grids behind these states, of those that were shown; each None where it is not known."""
    for tokens in states:
        if tokens.shape[1] <= layout.others:
            raise GramLoopError(
                f"a block returned {tokens.shape[1]} tokens of which {layout.others} are no patches; no patch is left "
                "to measure, so prefix must be smaller"
            )
    recent = shown[-len(states) :]
    if len(recent) != len(states):
        return [None] * len(states)
    for (height, width), tokens in zip(recent, states, strict=True):
        if tokens.shape[1] != layout.others + height * width:
            behind = f" and {layout.suffix} after the patches" if layout.suffix else ""
            raise GramLoopError(
                f"a block returned {tokens.shape[1]} tokens where {layout.prefix} prefix tokens{behind} and a patch "
                f"grid of {height} x {width} make {layout.others + height * width}; if the prefix is another, pass "
                "prefix="
            )
    return list(recent)
