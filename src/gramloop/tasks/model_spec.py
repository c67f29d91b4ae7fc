"""One way in: what ``--model`` takes, as the files of a model.

``tiny`` or a folder like it; ``hf:FOLDER`` or ``hf:NAME`` of the hub; ``FILE.py:make`` or ``package.module:make``;
and names that installed packages offer in the group ``gramloop.models``.
"""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import torch

from gramloop.data.records import Task
from gramloop.errors import GramLoopError
from gramloop.models.tiny import WEIGHTS
from gramloop.tasks.heads import Sizes
from gramloop.tasks.loading import load_predictor
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor

GROUP = "gramloop.models"
FORMS = (
    ("tiny", "the embedded model, or a folder like it"),
    ("hf:FOLDER", "any dense model that transformers saved; hf:NAME downloads it from the hub"),
    ("FILE.py:make", "a function of your own that returns a model"),
    ("package.module:make", "the same, in an installed package"),
)
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_FETCHED = ("*.json", "*.safetensors", "*.txt")


def open_model(
    spec: str, task: Task | None = None, sizes: Sizes | None = None, device: torch.device | str = "cpu"
) -> Predictor[Prediction]:
    """A predictor, frozen and in evaluation mode.

    Args:
        spec: "tiny", "hf:FOLDER", "my_models.py:make", "package.module:make", or a name of `offered`.
        task: what is predicted; needed only where a model has several tasks, as the embedded one.
        sizes: how images are shown to the model, where that can be chosen.
        device: where it runs.
    """
    return load_predictor(task, model_files(spec), sizes, device)


def model_files(spec: str) -> dict[str, str]:
    """The files of a model by what they are, as a plan keeps them; all paths are absolute."""
    if spec == "tiny":
        return {"folder": str(WEIGHTS)}
    if spec.startswith("hf:"):
        return {"hf": str(_transformers_folder(spec.removeprefix("hf:")))}
    if spec in offered():
        return {"make": offered()[spec].value}
    place, colon, name = spec.rpartition(":")
    if not colon:
        return {"folder": str(_tiny_folder(spec))}
    return {"make": f"{Path(place).expanduser().resolve()}:{name}" if place.endswith(".py") else spec}


def offered() -> dict[str, EntryPoint]:
    """Models that installed packages offer, by name."""
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _tiny_folder(spec: str) -> Path:
    if not Path(spec).exists() and "/" not in spec:
        named = ", ".join(["tiny", *offered()])
        raise GramLoopError(
            f"there is no model {spec!r}; there are {named}, folders, hf:FOLDER, FILE.py:make and package.module:make"
        )
    return Path(spec).resolve()


def _transformers_folder(name: str) -> Path:
    path = Path(name).expanduser()
    if path.is_dir():
        return path.resolve()
    if path.exists() or not _HUB_NAME.fullmatch(name):
        raise GramLoopError(
            f"{name} is no folder, and no name of the hub either, such as facebook/mask2former"
        )
    try:
        from huggingface_hub import snapshot_download

        fetched = Path(snapshot_download(name, allow_patterns=list(_FETCHED)))
        if not any(fetched.glob("*.safetensors")):
            fetched = Path(snapshot_download(name, allow_patterns=[*_FETCHED, "*.bin"]))
    except (OSError, ValueError, RuntimeError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise GramLoopError(f"{name} is no folder here, and the hub does not give it: {first}") from error
    return fetched.resolve()
