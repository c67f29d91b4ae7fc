"""What the app is started with: models to choose from, result folders, an address, and limits."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gramloop.data.records import TaskName as Task
from gramloop.errors import GramLoopError

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Limits:
    """What one visitor may ask for."""

    upload_bytes: int = 20_000_000
    upload_pixels: int = 50_000_000
    longest_side: int = 1024  # larger images are shrunk to this, and the page says so
    cache_bytes: int = 256 << 20
    work: float = 50.0  # most work of a mitigation, in baseline passes


@dataclass(frozen=True)
class ModelSource:
    """A model in the list: its name, and what `gramloop.tasks.load_predictor` takes."""

    name: str
    files: Mapping[str, str]
    task: Task | None = None  # the first one to show; None for the model's default
    sizes: Mapping[str, object] = field(default_factory=dict)
    calibration: Path | None = None  # statistics of in-distribution images, a file of `gramloop calibrate`


@dataclass(frozen=True)
class AppSettings:
    """Everything that the page is built from."""

    models: tuple[ModelSource, ...]
    results: tuple[Path, ...] = ()
    host: str = LOOPBACK
    device: str | None = None
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        names = [model.name for model in self.models]
        if not names:
            raise GramLoopError("the app needs at least one model, such as tiny")
        if twice := [name for name in names if names.count(name) > 1]:
            raise GramLoopError(f"the model {twice[0]} is given twice")
        for folder in self.results:
            if not folder.is_dir():
                raise GramLoopError(f"--results {folder} is no folder")

    @property
    def local(self) -> bool:
        """Whether the page can be reached from this machine alone."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
