"""Files of weights: read without running their code, checked name by name, moved into a model piece by piece.

A model is built on the meta device, where it weighs nothing. A *plan* says, for each of its tensors, which
entries of the file it is made of. The plan is first compared with the file, names and shapes, and nothing is
loaded if they differ; then the tensors are assigned. Where neither precision nor device changes, a tensor
stays a view of the memory-mapped file, so that loading costs nothing and processes share the memory; such a
file may be deleted or replaced while the model lives, but not be written into.
Otherwise the file is mapped anew for every few tensors, which gives the pages already read back to the
system: the peak is the model plus one such group.
"""

from __future__ import annotations

import hashlib
import math
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from gramloop.errors import GramLoopError
from gramloop.models.soundness import refuse_infinite, refuse_kinds
from gramloop.util.json_files import read_checked
from gramloop.util.progress import tracked

Shape = tuple[int, ...]
Shapes = dict[str, Shape]

_BLOCK = 1 << 26  # bytes that are read at once
_GROUPS = 40  # a large file is converted in about this many groups
_SMALL = 1 << 23  # bytes; not worth a group of its own


@dataclass(frozen=True)
class Checkpoint:
    """The names and shapes in a file of weights; the tensors themselves are read on demand."""

    path: Path
    shapes: Shapes
    dtypes: dict[str, torch.dtype] = field(repr=False)
    open: Callable[[], Mapping[str, Tensor]] = field(repr=False)  # maps the file anew

    def require(self, names: Iterable[str], what: str, dimensions: int = 2) -> None:
        """Raise unless the file has all of these with so many dimensions; ``what`` it would be then."""
        for name in names:
            if name not in self.shapes:
                begins = ", ".join(list(self.shapes)[:3]) or "nothing"
                raise GramLoopError(f"{self.path} is not {what}: it lacks {name} and begins with {begins}")
            if len(self.shapes[name]) != dimensions:
                raise GramLoopError(
                    f"{self.path} is not {what}: {name} is {self.shapes[name]}, not of {dimensions} dimensions"
                )

    def under(self, prefix: str) -> Checkpoint:
        """The entries whose names begin with ``prefix``, which is taken off."""
        inside = [name for name in self.shapes if name.startswith(prefix)]
        return Checkpoint(
            self.path,
            {name[len(prefix) :]: self.shapes[name] for name in inside},
            {name[len(prefix) :]: self.dtypes[name] for name in inside},
            lambda: {
                name[len(prefix) :]: value for name, value in self.open().items() if name in set(inside)
            },
        )

    def renamed(self, rename: Callable[[str], str]) -> Checkpoint:
        """The same entries under other names, of which no two may be equal."""
        names = {name: rename(name) for name in self.shapes}
        if len(set(names.values())) < len(names):
            twice = next(new for new in names.values() if list(names.values()).count(new) > 1)
            raise GramLoopError(f"{self.path} holds {twice} under two names")
        return Checkpoint(
            self.path,
            {names[name]: shape for name, shape in self.shapes.items()},
            {names[name]: dtype for name, dtype in self.dtypes.items()},
            lambda: {names[name]: value for name, value in self.open().items()},
        )

    def without(self, drop: Callable[[str], bool]) -> Checkpoint:
        """The entries whose names ``drop`` does not pick."""
        kept = {name for name in self.shapes if not drop(name)}
        return Checkpoint(
            self.path,
            {name: shape for name, shape in self.shapes.items() if name in kept},
            {name: dtype for name, dtype in self.dtypes.items() if name in kept},
            lambda: {name: value for name, value in self.open().items() if name in kept},
        )


@dataclass(frozen=True)
class Source:
    """What one tensor of a model is made of: entries of a file with shapes, and how to combine them."""

    reads: Shapes
    make: Callable[[Mapping[str, Tensor]], Tensor]

    @classmethod
    def same(cls, name: str, shape: Iterable[int]) -> Source:
        """The entry ``name`` as it is."""
        return cls({name: tuple(shape)}, lambda tensors: tensors[name])

    @classmethod
    def part(cls, name: str, index: int, parts: int, shape: Iterable[int]) -> Source:
        """One of several equal groups of rows, each of this shape, that the file keeps in one entry."""
        rows, *rest = shape
        start = index * rows
        return cls({name: (parts * rows, *rest)}, lambda tensors: tensors[name][start : start + rows])


LoadPlan = Mapping[str, Source]


@dataclass(frozen=True)
class _Index:
    """Which file holds each tensor of a model that is stored in several."""

    weight_map: dict[str, str]


def identity_plan(module: nn.Module) -> dict[str, Source]:
    """The plan of a module whose own names are those of the file."""
    return {name: Source.same(name, value.shape) for name, value in module.state_dict().items()}


def planned_shapes(plan: LoadPlan) -> Shapes:
    """Every entry that a plan reads."""
    return {name: shape for source in plan.values() for name, shape in source.reads.items()}


def open_checkpoint(
    path: str | Path, *, inside: str | tuple[str, ...] = (), verify: bool = False
) -> Checkpoint:
    """Open a local ``.pth``, ``.safetensors`` or transformers folder without reading its tensors.

    ``inside`` names the key, or several, under which a ``.pth`` may keep its weights, when they are not at the top.
    ``verify`` compares the file with the sha256 prefix in its name, as in ``…-a955f4ea.pth``.
    """
    path = Path(path)
    if not path.exists():
        raise GramLoopError(
            f"{path} does not exist; checkpoints are local files and nothing is downloaded by itself"
        )
    if verify:
        verify_digest(path)
    if path.is_dir():
        return _describe(path, lambda: _read_safetensors(_files_of_folder(path)))
    if path.suffix == ".safetensors":
        return _describe(path, lambda: _read_safetensors([path]))
    return _describe(path, lambda: _read_torch(path, (inside,) if isinstance(inside, str) else inside))


def verify_digest(path: Path) -> None:
    """Raise unless the file's sha256 begins with the eight digits at the end of its name."""
    named = re.search(r"-([0-9a-f]{8,64})\.[a-z]+$", path.name)
    if path.is_dir() or named is None:
        raise GramLoopError(
            f"{path} cannot be verified: its name does not end in a sha256 prefix, as in model-a955f4ea.pth"
        )
    digest = hashlib.sha256()
    blocks = -(-path.stat().st_size // _BLOCK)
    with path.open("rb") as stream:
        for _ in tracked(range(blocks), f"verifying {path.name}", blocks):
            digest.update(stream.read(_BLOCK))
    if not digest.hexdigest().startswith(named[1]):
        raise GramLoopError(
            f"{path} is damaged or renamed: its sha256 begins with {digest.hexdigest()[:8]}, "
            f"its name says {named[1]}"
        )


def load(
    module: nn.Module,
    checkpoint: Checkpoint,
    plan: LoadPlan,
    *,
    also: Mapping[str, Shape] | None = None,
    dtype: torch.dtype | None = torch.float32,
    device: torch.device | str = "cpu",
) -> None:
    """Fill a meta-device module from a file that holds exactly what the plan reads.

    ``also`` names entries that the file must have and that no tensor of the module is made of. The parameters
    are frozen. ``dtype`` None keeps the precision of the file. Names, shapes and types are checked before a tensor is
    read, and every number then: none may be NaN or infinite. On the device "meta" tensors are looked at and not
    kept: the module then tells everything about itself but cannot run.
    """
    check(checkpoint, planned_shapes(plan) | dict(also or {}))
    kinds = {name: value.dtype for name, value in module.state_dict().items()}
    refuse_kinds(
        kinds, {name: source.reads for name, source in plan.items()}, checkpoint.dtypes, checkpoint.path
    )
    device = torch.device(device)
    described = device.type == "meta"
    for group in [list(plan)] if described or _fits(checkpoint, dtype, device) else _groups(checkpoint, plan):
        tensors = checkpoint.open()
        for target in group:
            value = plan[target].make(tensors)
            refuse_infinite(target, value, checkpoint.path)
            if not described:
                _assign(module, target, _convert(value, dtype, device))
        del tensors
    if described:
        module.to(dtype).requires_grad_(False)
        return
    left = [name for name, value in module.state_dict().items() if value.is_meta]
    if left:
        raise AssertionError(f"the plan forgot {left[:3]}")


def check(checkpoint: Checkpoint, expected: Mapping[str, Shape]) -> None:
    """Raise, naming the first differences, unless a file holds exactly these names with these shapes."""
    found = checkpoint.shapes
    missing = [name for name in expected if name not in found]
    unknown = [name for name in found if name not in expected]
    differ = [
        f"{name} is {found[name]} instead of {tuple(expected[name])}"
        for name in expected
        if name in found and tuple(found[name]) != tuple(expected[name])
    ]
    said = [
        f"{len(names)} {kind} ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"
        for kind, names in (("missing", missing), ("unknown", unknown), ("of another shape", differ))
        if names
    ]
    if said:
        raise GramLoopError(
            f"{checkpoint.path} does not fit this model, nothing was loaded: {'; '.join(said)}"
        )


def _convert(value: Tensor, dtype: torch.dtype | None, device: torch.device) -> Tensor:
    return value.to(device, dtype if value.is_floating_point() else None)


def _fits(checkpoint: Checkpoint, dtype: torch.dtype | None, device: torch.device) -> bool:
    """Whether the tensors can be used as the file has them."""
    kinds = {kind for kind in checkpoint.dtypes.values() if kind.is_floating_point}
    return device.type == "cpu" and (dtype is None or kinds <= {dtype})


def _assign(module: nn.Module, name: str, value: Tensor) -> None:
    parent, _, leaf = name.rpartition(".")
    owner = module.get_submodule(parent)
    is_parameter = leaf in owner._parameters
    setattr(owner, leaf, nn.Parameter(value, requires_grad=False) if is_parameter else value)


def _groups(checkpoint: Checkpoint, plan: LoadPlan) -> Iterator[list[str]]:
    """The targets of a plan in groups of about a fortieth of the file, with a progress bar."""
    sizes = {
        name: math.prod(checkpoint.shapes[name]) * kind.itemsize for name, kind in checkpoint.dtypes.items()
    }
    total = sum(sizes.values())
    groups: list[list[str]] = [[]]
    gathered: set[str] = set()
    for target, source in plan.items():
        new = set(source.reads) - gathered
        size = sum(sizes[name] for name in gathered | new)
        if gathered and new and size > max(total / _GROUPS, _SMALL):
            groups.append([])
            gathered = set()
        groups[-1].append(target)
        gathered |= set(source.reads)
    return tracked(groups, f"loading {checkpoint.path.name}", len(groups))


def _describe(path: Path, reader: Callable[[], Mapping[str, Tensor]]) -> Checkpoint:
    tensors = reader()
    return Checkpoint(
        path,
        {name: tuple(value.shape) for name, value in tensors.items()},
        {name: value.dtype for name, value in tensors.items()},
        reader,
    )


def _read_torch(path: Path, inside: tuple[str, ...]) -> Mapping[str, Tensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, OSError, ValueError, KeyError) as error:
        raise GramLoopError(
            f"{path} cannot be read as a PyTorch checkpoint, it may be truncated ({_first_line(error)})"
        ) from error
    if isinstance(content, dict):
        content = next((content[key] for key in inside if isinstance(content.get(key), dict)), content)
    if not isinstance(content, dict) or not content:
        raise GramLoopError(f"{path} holds {type(content).__name__} instead of named tensors")
    for name, value in content.items():
        if not isinstance(name, str):
            raise GramLoopError(
                f"{path} holds a tensor under {name!r}, which is no name; a file of weights has names"
            )
        if not isinstance(value, Tensor):
            raise GramLoopError(
                f"{path} holds {type(value).__name__} under {name!r} instead of a tensor; "
                "a flat file of weights is expected"
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


def _files_of_folder(folder: Path) -> list[Path]:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.exists():
        return [single]
    if not index.exists():
        raise GramLoopError(f"{folder} has neither model.safetensors nor model.safetensors.index.json")
    stored = read_checked(index, _Index, "the index of a model's safetensors")
    names = sorted(set(stored.weight_map.values()))
    if strange := [name for name in names if Path(name).name != name]:
        raise GramLoopError(f"{index} names {strange[0]!r}, which is no file beside it")
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        raise GramLoopError(f"{folder} lacks {missing[0]}, which its index names")
    return [folder / name for name in names]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]
