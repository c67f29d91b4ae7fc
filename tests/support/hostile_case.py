"""What a hostile input is: a command, what it may not touch, and what shows that its input was sound after all."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class World:
    """Good files, which every case copies what it breaks from."""

    folder: Path

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def scenes(self) -> Path:
        return self.folder / "scenes"


@dataclass(frozen=True)
class Case:
    """A command, the folders that it may not leave anything in, and what shows that its input was sound after all."""

    command: list[str]
    untouched: tuple[Path, ...]
    is_sound: Callable[[], bool]


def plan_of(world: World, data: Path, task: str, out: Path, *more: str) -> list[str]:
    model = "tiny" if task == "depth" else str(world.model)  # the embedded one alone has a depth head
    given = ["evaluate", "--suite", "mine", "--data", str(data), "--model", model, "--task", task]
    return [*given, "--out", str(out), "--dry-run", *more]


def copied(world: World, name: str, to: Path) -> Path:
    return Path(shutil.copytree(world.folder / name, to / name))
