"""Files of weights: read without running their code, checked name by name, moved into a model piece by piece.

A model is built on the meta device, where it takes no memory. A *plan* names the entry of the file for each of its
tensors. Names and shapes are compared first, and nothing is loaded if they differ. Where neither precision nor device
changes, a tensor stays a view of the memory-mapped file: loading costs nothing and processes share the memory, but the
file must not be written into while the model lives. Otherwise the file is mapped again for every few tensors, so that the
peak is the model plus one such group.
"""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypedDict

import torch
from torch import Tensor, nn

from gramloop.errors import GramLoopError
from gramloop.util.json_files import read_checked
from gramloop.util.progress import tracked

Shape = tuple[int, ...]
Shapes = dict[str, Shape]

_INSIDE = ("model", "state_dict")  # keys under which a file of torch may keep its weights
_GROUPS = 40  # a large file is converted in so many groups
_SMALL = 1 << 23  # numbers; a file of fewer is read at once

HeadKind = Literal["mask2former", "plain-detr", "pmt", "depther", "linear"]
HEAD_NAMES: dict[HeadKind, str] = {
    "mask2former": "Meta's Mask2Former head",
    "plain-detr": "Meta's Plain-DETR head",
    "pmt": "a PMT head",
    "depther": "Meta's depth head",
    "linear": "a linear head",
}
PMT_QUERIES, PMT_CLASSES = "decoder.q.weight", "decoder.class_head.weight"
# a name, or the beginning of one, that only files of this kind have
_MARKS: dict[HeadKind, str] = {
    "mask2former": "segmentation_model.",
    "plain-detr": "transformer.decoder.",
    "pmt": PMT_QUERIES,
    "depther": "reassemble_blocks.",
    "linear": "conv.weight",
}


class LoadOptions(TypedDict, total=False):
    """How weights are loaded; all of it may be left out."""

    dtype: torch.dtype  # of a backbone's weights, float32 by default; heads are float32
    device: torch.device | str  # of all weights, the CPU by default; on "meta" files are checked and not kept


@dataclass(frozen=True)
class Checkpoint:
    """The names, shapes and types in a file of weights; the tensors themselves are read on demand."""

    path: Path
    shapes: Shapes
    dtypes: dict[str, torch.dtype] = field(repr=False)
    open: Callable[[], Mapping[str, Tensor]] = field(repr=False)  # maps the file again

    def sizes(self, what: str, **entries: tuple[str, int]) -> dict[str, int]:
        """Lengths of entries along an axis, by name; raise unless the file has them all, as ``what`` does."""
        lacking = {
            name if name not in self.shapes else f"dimension {axis} of {name}": None
            for name, axis in entries.values()
            if not -len(self.shapes.get(name, ())) <= axis < len(self.shapes.get(name, ()))
        }
        if lacking:
            first = ", ".join(list(self.shapes)[:3]) or "nothing"
            raise GramLoopError(
                f"{self.path} is not {what}: it lacks {', '.join(lacking)} and begins with {first}"
            )
        return {size: self.shapes[name][axis] for size, (name, axis) in entries.items()}

    def renamed(self, rename: Callable[[str], str | None]) -> Checkpoint:
        """The entries under other names, no two of which may be equal; None drops an entry."""
        names: dict[str, str] = {}
        for name in self.shapes:
            new = rename(name)
            if new in names.values():
                raise GramLoopError(f"{self.path} holds {new} under two names")
            if new is not None:
                names[name] = new
        return Checkpoint(
            self.path,
            {new: self.shapes[name] for name, new in names.items()},
            {new: self.dtypes[name] for name, new in names.items()},
            lambda: {names[name]: value for name, value in self.open().items() if name in names},
        )

    def under(self, prefix: str) -> Checkpoint:
        """The entries whose names begin with ``prefix``, which is removed."""
        return self.renamed(lambda name: name.removeprefix(prefix) if name.startswith(prefix) else None)

    def without(self, prefix: str) -> Checkpoint:
        """The entries whose names do not begin with ``prefix``."""
        return self.renamed(lambda name: None if name.startswith(prefix) else name)

    def count(self, pattern: str) -> int:
        """How many different numbers a pattern's group takes at the beginning of names, such as blocks."""
        return len({found[1] for name in self.shapes if (found := re.match(pattern, name))})


@dataclass(frozen=True)
class Entry:
    """Where a file keeps a tensor: an entry with its shape, and the rows if the entry holds several tensors."""

    name: str
    shape: Shape
    rows: slice | None = None


LoadPlan = Mapping[str, Entry]


def fused_names(entry: str) -> dict[str, str]:
    """Renames of the projections of queries, keys and values to a third of an entry such as ``qkv.``."""
    return {rf"\.{part}_proj\.(\w+)$": rf".{entry}\1[{i}/3]" for i, part in enumerate("qkv")}


def renamed_plan(module: nn.Module, renames: Mapping[str, str] | None = None) -> dict[str, Entry]:
    """The plan of a module whose names become those of the file by regular expressions, applied in order.

    Without ``renames`` these are the module's ``released_names``, if it has any. A new name that ends in ``[1/3]`` stands
    for the second of three equal groups of rows that the file keeps in one entry.
    """
    plan: dict[str, Entry] = {}
    for target, value in module.state_dict().items():
        name, shape, rows = target, tuple(value.shape), None
        for pattern, new in (getattr(module, "released_names", {}) if renames is None else renames).items():
            name = re.sub(pattern, new, name)
        if part := re.fullmatch(r"(.*)\[(\d)/(\d)\]", name):
            name, first, height = part[1], int(part[2]) * shape[0], int(part[3]) * shape[0]
            rows, shape = slice(first, first + shape[0]), (height, *shape[1:])
        plan[target] = Entry(name, shape, rows)
    return plan


def planned_shapes(plan: LoadPlan) -> Shapes:
    """Every entry that a plan reads."""
    return {entry.name: entry.shape for entry in plan.values()}


def open_checkpoint(path: str | Path | Checkpoint) -> Checkpoint:
    """Open a local file or folder of weights without reading its tensors.

    Args:
        path: a ``.pth``, whose weights may lie under "model" or "state_dict", a ``.safetensors`` or a transformers folder;
            an opened checkpoint is returned as it is.
    """
    if isinstance(path, Checkpoint):
        return path
    path = Path(path)
    if not path.exists():
        raise GramLoopError(f"{path} does not exist; checkpoints are local files and nothing is downloaded")

    def read() -> Mapping[str, Tensor]:
        if path.is_dir():
            return _read_safetensors(_files_of_folder(path))
        return _read_safetensors([path]) if path.suffix == ".safetensors" else _read_torch(path)

    tensors = read()
    shapes = {name: tuple(value.shape) for name, value in tensors.items()}
    return Checkpoint(path, shapes, {name: value.dtype for name, value in tensors.items()}, read)


def strip_wrappers(checkpoint: Checkpoint) -> Checkpoint:
    """The entries without the prefixes of torch.compile and of PMT's trainer."""
    plain = checkpoint.renamed(lambda name: re.sub(r"(^|\.)_orig_mod(?=\.)", "", name).lstrip("."))
    return plain.renamed(lambda name: name.removeprefix("network."))


def head_kind(path: str | Path) -> HeadKind:
    """The kind of head that a file holds; no tensor is read."""
    names = list(strip_wrappers(open_checkpoint(path)).shapes)
    for kind, mark in _MARKS.items():
        if any(name.startswith(mark) for name in names):
            return kind
    raise GramLoopError(
        f"{path} holds none of the supported heads ({', '.join(HEAD_NAMES.values())}): its names begin with "
        f"{', '.join(names[:3])}"
    )


def head_classes(path: str | Path) -> int:
    """How many classes a PMT head distinguishes."""
    checkpoint = strip_wrappers(open_checkpoint(path))
    return checkpoint.sizes(HEAD_NAMES["pmt"], classes=(PMT_CLASSES, 0))["classes"] - 1


def load_weights(
    module: nn.Module,
    checkpoint: Checkpoint,
    plan: LoadPlan | None = None,
    *,
    unused: Mapping[str, Shape] | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> None:
    """Fill a meta-device module from a file that holds exactly what the plan reads, and freeze its parameters.

    Names, shapes and types are checked before a tensor is read, and every number then: none may be NaN or infinite. On
    the device "meta" tensors are checked and not kept: the module then has all names and shapes but cannot run.

    Args:
        module: built on the meta device.
        checkpoint: the file.
        plan: without one, that of the module's ``released_names``.
        unused: entries that the file must have and that no tensor of the module is made of.
        dtype: of the parameters.
        device: of the parameters.
    """
    plan, state, device = plan or renamed_plan(module), module.state_dict(), torch.device(device)
    check_names(checkpoint, planned_shapes(plan) | dict(unused or {}))
    for target, value in state.items():
        stored = checkpoint.dtypes[plan[target].name]
        if value.is_floating_point() and not stored.is_floating_point:
            raise GramLoopError(
                f"{checkpoint.path} holds {plan[target].name} as {str(stored).removeprefix('torch.')}; it must be "
                "floating-point, such as float32"
            )
    kinds = {kind for kind in checkpoint.dtypes.values() if kind.is_floating_point}
    converted = device.type != "meta" and (device.type != "cpu" or not kinds <= {dtype})
    for group in _groups(checkpoint, list(plan), converted):
        tensors, loaded = checkpoint.open(), {}
        for target in group:
            entry = plan[target]
            value = tensors[entry.name] if entry.rows is None else tensors[entry.name][entry.rows]
            refuse_infinite(target, value, checkpoint.path)
            if device.type != "meta":
                value = value.view_as(state[target])
                loaded[target] = value.to(device, dtype if value.is_floating_point() else None)
        module.load_state_dict(loaded, strict=False, assign=True)
        del tensors, loaded
    if device.type == "meta":
        module.to(dtype)
    module.requires_grad_(False)


def check_names(checkpoint: Checkpoint, expected: Mapping[str, Shape]) -> None:
    """Raise, naming the first differences, unless a file holds exactly these names with these shapes."""
    found = checkpoint.shapes
    kinds = {
        "missing": [name for name in expected if name not in found],
        "unknown": [name for name in found if name not in expected],
        "of another shape": [
            f"{name} is {found[name]} instead of {shape}"
            for name, shape in expected.items()
            if found.get(name, shape) != shape
        ],
    }
    listed = [
        f"{len(names)} {kind} ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"
        for kind, names in kinds.items()
        if names
    ]
    if listed:
        raise GramLoopError(f"{checkpoint.path} does not fit, nothing was loaded: {'; '.join(listed)}")


def refuse_infinite(name: str, value: Tensor, path: Path) -> None:
    """Raise if a tensor of a file holds NaN or an infinity."""
    if value.is_meta or not value.is_floating_point() or not value.numel():
        return
    # numbers of eight bits have no order here, and those of 64 may be too large for the model's
    wide = value.detach() if value.element_size() in (2, 4) else value.detach().float()
    low, high = torch.aminmax(wide)
    if not (low.isfinite() and high.isfinite()):
        worst = "NaN" if low.isnan() else "an infinity"
        raise GramLoopError(f"{path} is damaged or was never finished: {name} holds {worst}")


def refuse_unsound(model: nn.Module, path: Path) -> None:
    """Raise if a model that another library read from ``path`` holds a number that is not finite."""
    for name, value in model.state_dict().items():
        refuse_infinite(name, value, path)


def _groups(checkpoint: Checkpoint, targets: list[str], converted: bool) -> Iterable[list[str]]:
    """The tensors of a large file that is converted in groups, with a progress bar: the file is mapped again for each."""
    if not converted or sum(math.prod(shape) for shape in checkpoint.shapes.values()) < _SMALL:
        return [targets]
    step = -(-len(targets) // _GROUPS)
    groups = [targets[start : start + step] for start in range(0, len(targets), step)]
    return tracked(groups, f"loading {checkpoint.path.name}", len(groups))


def _read_torch(path: Path) -> Mapping[str, Tensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, OSError, ValueError, KeyError) as error:
        raise GramLoopError(
            f"{path} cannot be read as a PyTorch checkpoint, it may be truncated ({_first_line(error)})"
        ) from error
    if isinstance(content, dict):
        content = next((content[key] for key in _INSIDE if isinstance(content.get(key), dict)), content)
    if not isinstance(content, dict) or not content:
        raise GramLoopError(f"{path} holds {type(content).__name__} instead of named tensors")
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise GramLoopError(
                f"{path} holds {type(value).__name__} under {name!r}; a flat file of named tensors is expected"
            )
    return content


def _read_safetensors(files: list[Path]) -> Mapping[str, Tensor]:
    from safetensors import SafetensorError, safe_open

    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt", device="cpu") as opened:
                tensors |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise GramLoopError(
                f"{file} cannot be read as safetensors, it may be truncated ({_first_line(error)})"
            ) from error
    return tensors


@dataclass(frozen=True)
class _Index:
    """Which file holds each tensor of a model that is stored in several."""

    weight_map: dict[str, str]


def _files_of_folder(folder: Path) -> list[Path]:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.exists():
        return [single]
    if not index.exists():
        raise GramLoopError(f"{folder} has neither model.safetensors nor model.safetensors.index.json")
    stored = read_checked(index, _Index, "the index of a model's safetensors")
    names = sorted({Path(name).name for name in stored.weight_map.values()})
    if missing := [name for name in names if not (folder / name).exists()]:
        raise GramLoopError(f"{folder} lacks {missing[0]}, which its index names")
    return [folder / name for name in names]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]
