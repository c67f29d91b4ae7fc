"""Finding weights and data by their released names, and a list of what is missing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gramloop.data.coco import coco_root, find_annotation_file
from gramloop.data.scenes import SceneFiles, draw_scenes
from gramloop.errors import GramLoopError
from gramloop.reproduce.recipe import DataEntry, EvaluationEntry, ModelEntry, Recipe
from gramloop.tasks.loading import model_files
from gramloop.util.files import atomic_write
from gramloop.util.json_files import read_json

SCENES, ONLY = "scenes", "images"  # folders of drawn and of chosen images, below that of the results


@dataclass(frozen=True)
class Missing:
    """A file or folder that is not there, and where it comes from."""

    name: str
    below: str  # the option whose folder was searched
    source: str
    users: tuple[str, ...]  # evaluations

    def __str__(self) -> str:
        return (
            f"{self.name} (for {', '.join(self.users)}): not below {self.below}; from {self.source or 'you'}"
        )


@dataclass(frozen=True)
class FoundFiles:
    """Where the weights and sets of a recipe lie.

    Args:
        recipe: whose files they are.
        weights: the folder of weights.
        data: the folder of sets.
        out: the folder of results, where scenes are drawn.
    """

    recipe: Recipe
    weights: Path | None
    data: Path | None
    out: Path

    def missing(self, evaluations: dict[str, EvaluationEntry]) -> list[Missing]:
        """Everything that these evaluations need and that is not there, each once."""
        users: dict[tuple[str, str, str], list[str]] = {}
        for name, one in evaluations.items():
            model, data = self.recipe.models[one.model], self.recipe.data[one.data]
            for file in (model.backbone, model.head):
                if file and self._weights_file(file) is None:
                    users.setdefault((file, "--weights", model.source), []).append(name)
            if not data.scenes and self._folder(data) is None:
                wanted = f"{data.folders[0]}/{data.holds}" if data.folders else data.holds
                users.setdefault((wanted, "--data", data.source), []).append(name)
        return [Missing(*what, tuple(names)) for what, names in users.items()]

    def model(self, entry: ModelEntry) -> dict[str, str]:
        """The files of a model, as a request has them."""
        if entry.model:
            return model_files(entry.model)
        names = {"backbone": entry.backbone, "head": entry.head}
        return {kind: str(self._weights_file(name)) for kind, name in names.items() if name}

    def images(self, one: EvaluationEntry) -> Path:
        """The folder of an evaluation's images; scenes are drawn, and chosen images are made a set of their own."""
        entry = self.recipe.data[one.data]
        root = (
            draw_scenes(self.out / SCENES, SceneFiles(entry.scenes)) if entry.scenes else self._folder(entry)
        )
        assert root is not None
        return chosen_images(root, one.only, self.out / ONLY / "-".join(one.only)) if one.only else root

    def _folder(self, entry: DataEntry) -> Path | None:
        if self.data is None:
            return None
        folders = (self.data / folder for folder in entry.folders)
        return next((each.resolve() for each in folders if (each / entry.holds).exists()), None)

    def _weights_file(self, name: str) -> Path | None:
        found = sorted(self.weights.rglob(name)) if self.weights is not None else []
        return found[0].resolve() if found else None


def refuse_missing(missing: Iterable[Missing]) -> None:
    """One error message for everything that is missing."""
    lines = [f"  {each}" for each in missing]
    if lines:
        many = "1 file or folder is" if len(lines) == 1 else f"{len(lines)} files and folders are"
        raise GramLoopError("\n".join([f"{many} missing:", *lines]))


def chosen_images(root: Path, ids: Iterable[str], folder: Path) -> Path:
    """Some images of a set in COCO's format as a set, by links to their files."""
    source = coco_root(root)
    if source is None:
        raise GramLoopError(
            f"{root} has no annotations in COCO's format, which single images are chosen from"
        )
    file = find_annotation_file(source, "instances")
    content, wanted = read_json(file, "annotations in COCO's format"), set(ids)
    chosen = {each["id"]: each for each in content["images"] if str(each["id"]) in wanted}
    if strangers := wanted - {str(number) for number in chosen}:
        raise GramLoopError(f"{file} lists no image {min(strangers)}")
    boxes = [each for each in content["annotations"] if each["image_id"] in chosen]
    split = file.stem.removeprefix("instances_")
    for name in (each["file_name"] for each in chosen.values()):
        places = (source / split / name, source / name, source / "images" / name)
        link = folder / split / name
        if not link.exists():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(next(path for path in places if path.is_file()).resolve())
    kept = {**content, "images": list(chosen.values()), "annotations": boxes}
    atomic_write(folder / "annotations" / file.name, json.dumps(kept).encode())
    return folder
