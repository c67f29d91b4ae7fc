"""What identifies a model of one's own: the code that makes it, the version of its package, and its weights."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path

import torch
from torch import nn

from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor
from gramloop.tasks.user_models import FunctionPredictor, find_make


def user_fingerprints(spec: str, predictor: Predictor[Prediction]) -> dict[str, str]:
    """Checksums of the code of ``make`` and of the weights it loaded, and the version of its package."""
    make = find_make(spec)
    source = inspect.getsourcefile(inspect.unwrap(make))
    found = {}
    if source is not None:
        found["make"] = hashlib.sha256(Path(source).read_bytes()).hexdigest()
    place = spec.rpartition(":")[0]
    if not place.endswith(".py"):
        root = place.split(".")[0]
        for distribution in sorted(set(packages_distributions().get(root, ()))):
            try:
                found[f"version of {distribution}"] = version(distribution)
            except PackageNotFoundError:
                continue
    return found | _weights(predictor)


def object_fingerprints(predictor: Predictor[Prediction]) -> dict[str, str]:
    """Checksums of the weights of a model in memory, and of the code of its class or function."""
    model = getattr(predictor, "function", getattr(predictor, "model", predictor))
    kind = model if inspect.isroutine(model) else type(model)
    try:
        code = inspect.getsource(kind)
    except (OSError, TypeError):  # typed at a prompt, or not written in Python
        code = repr(kind)
    return {"code": hashlib.sha256(code.encode()).hexdigest()} | _weights(predictor)


def _weights(predictor: Predictor[Prediction]) -> dict[str, str]:
    return {f"weights{name and ' of '}{name}": _digest(module) for name, module in modules_inside(predictor)}


def modules_inside(holder: object) -> Iterator[tuple[str, nn.Module]]:
    """Torch modules that a predictor, or the function behind it, holds: by the name that it has for them."""
    if isinstance(holder, FunctionPredictor):
        holder = holder.function
    if isinstance(holder, nn.Module):
        yield "", holder
        return
    held: dict[str, object] = dict(vars(holder)) if hasattr(holder, "__dict__") else {}
    if inspect.isfunction(holder):
        held |= inspect.getclosurevars(holder).nonlocals
        held |= inspect.getclosurevars(holder).globals
    if inspect.ismethod(holder):
        held |= {"self": holder.__self__}
    yield from sorted((name, value) for name, value in held.items() if isinstance(value, nn.Module))


def _digest(module: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
