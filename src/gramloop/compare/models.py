"""Models run on the same images, each in an evaluation folder of its own, then compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, Unpack

from gramloop.compare.paired import MARGIN, ModelComparison, compare_folders, results_in
from gramloop.data.scenes.files import COUNT, SUITE, SceneFiles, draw_scenes
from gramloop.data.suites import find_suite
from gramloop.errors import GramLoopError
from gramloop.evaluate.evaluation import Model, SetOptions, evaluate_model
from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.store import SCENES
from gramloop.tasks.graphs import RUNTIMES
from gramloop.tasks.loading import WeightPrecision

RunSuite = Callable[[Model, str, Path], object]  # evaluates a model on a suite into a folder


def compare_models(
    *models: Model | Path,
    data: Path | str | None = None,
    suite: str | None = None,
    out: Path | str | None = None,
    margin: float = MARGIN,
    over: Literal["images", "families", "both"] = "images",
    workers: int | None = None,
    batch: int = 1,
    dtype: WeightPrecision = "float32",
    **options: Unpack[SetOptions],
) -> ModelComparison:
    """Compare models with the first of them, on clean images and under shift.

    Args:
        models: what `gramloop.evaluate` takes, or folders of finished evaluations, which are only read.
        data: the folder of the set; scenes are drawn where the suite is one of scenes.
        suite: such as "coco-c"; the clean images of its set are run too, where there are labels.
        out: a folder for the evaluations of the models; needed unless all are finished.
        margin: points within which two models count as equivalent.
        over: what the verdict's intervals are drawn over: "images", "families" of shifts, or "both".
        workers, batch, dtype, options: as in `gramloop.evaluate.evaluate_model`.

    Returns:
        Differences with their intervals and verdicts.
    """
    images = options.get("images")

    def run(model: Model, name: str, folder: Path) -> None:
        chosen = options.copy()
        if find_suite(name).kind == "clean":
            chosen.pop("conditions", None)
            chosen.pop("severities", None)
        place = data
        if data is None and find_suite(name).base == SUITE:
            place = draw_scenes(Path(str(out)) / SCENES, SceneFiles(images or COUNT, split="val"))
        evaluate_model(
            model,
            place,
            suite=name,
            out=folder,
            methods=[BASELINE],
            workers=workers,
            batch=batch,
            dtype=dtype,
            **chosen,
        )

    truth = options.get("truth", "labels")
    return compare_folders(run_models(models, suite, truth, out, run), margin=margin, over=over)


def run_models(
    models: Sequence[Model | Path], suite: str | None, truth: str, out: Path | str | None, run: RunSuite
) -> dict[str, list[Path]]:
    """The evaluation folders of every model, by a name for it; those that are not finished yet are run."""
    if len(models) < 2:
        raise GramLoopError(f"a comparison needs two models or more, not {len(models)}")
    found: dict[str, list[Path]] = {}
    ready = [results_in(Path(each)) if isinstance(each, str | Path) else [] for each in models]
    if not all(ready):
        first = next(each for each, folders in zip(models, ready, strict=True) if not folders)
        if suite is None or out is None:
            lacking = "the suite" if suite is None else "the folder out"
            raise GramLoopError(f"{first} is no finished evaluation, and {lacking} to run it is missing")
    for model, folders in zip(models, ready, strict=True):
        name = _free_name(_name_of(model), found)
        if not folders:
            for each in suites_for(str(suite), truth):
                folders.append(Path(str(out)) / name / each)
                run(str(model) if isinstance(model, Path) else model, each, folders[-1])
        found[name] = folders
    return found


def suites_for(suite: str, truth: str) -> list[str]:
    """The suite, and its clean set where labels make a score of that."""
    chosen = find_suite(suite)
    clean = [chosen.base] if chosen.generated and truth == "labels" else []
    return [*clean, suite]


def _name_of(model: Model | Path) -> str:
    if not isinstance(model, str | Path):
        return str(getattr(model, "name", "") or getattr(model, "__name__", "") or type(model).__name__)
    text = str(model).removeprefix("hf:")
    path, colon, made = text.rpartition(":")
    if colon:
        return f"{Path(path).stem}-{made}"
    return (Path(text).stem if Path(text).suffix.lower() in RUNTIMES else Path(text).name) or "model"


def _free_name(name: str, taken: dict[str, list[Path]]) -> str:
    kept = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in name)
    number = 2
    free = kept
    while free in taken:
        free, number = f"{kept}-{number}", number + 1
    return free
