"""Models run on the same images, each in an evaluation folder of its own, then compared; and the page of a comparison."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from gramloop.compare.paired import MARGIN, ModelComparison, compare_folders
from gramloop.data.scenes import COUNT, SUITE, SceneFiles, draw_scenes
from gramloop.data.suites import find_suite
from gramloop.errors import GramLoopError
from gramloop.evaluate.answer import Answer
from gramloop.evaluate.engines import Listener
from gramloop.evaluate.evaluation import Model, evaluate_model
from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.store import SCENES
from gramloop.report.document import Document, Section
from gramloop.report.load import results_in
from gramloop.report.page import render
from gramloop.report.write import PAGE
from gramloop.tasks.graphs import RUNTIMES
from gramloop.util.files import atomic_write


def compare_models(
    *models: Model | Path,
    data: Path | str | None = None,
    suite: str | None = None,
    out: Path | str | None = None,
    margin: float = MARGIN,
    over: Literal["images", "families", "both"] = "images",
    listener: Callable[[], Listener | None] = lambda: None,
    **options: Any,
) -> ModelComparison:
    """Compare models with the first of them, on clean images and under shift.

    Args:
        models: what `gramloop.evaluate` takes, or folders of finished evaluations, which are only read.
        data: the folder of the set; scenes are drawn where the suite is one of scenes.
        suite: such as "coco-c"; the clean images of its set are run too, where there are labels.
        out: a folder for the evaluations of the models; needed unless all are finished.
        margin: points within which two models count as equivalent.
        over: what the verdict's intervals are drawn over: "images", "families" of shifts, or "both".
        listener: makes what is called as an evaluation proceeds.
        options: as in `gramloop.evaluate.evaluate_model`.

    Returns:
        Differences with their intervals and verdicts.
    """
    if len(models) < 2:
        raise GramLoopError(f"a comparison needs two models or more, not {len(models)}")
    found: dict[str, list[Path]] = {}
    ready = [results_in(Path(each)) if isinstance(each, str | Path) else [] for each in models]
    if not all(ready):
        first = next(each for each, folders in zip(models, ready, strict=True) if not folders)
        if suite is None or out is None:
            lacking = "the suite" if suite is None else "the folder out"
            raise GramLoopError(f"{first} is no finished evaluation, and {lacking} to run it is missing")
        shifts = options.get("conditions"), options.get("severities")
        find_suite(suite).select(*shifts)  # a typo is reported before scenes are drawn
    unshifted = {name: each for name, each in options.items() if name not in ("conditions", "severities")}
    for model, folders in zip(models, ready, strict=True):
        name = _free_name(_name_of(model), found)
        for each in () if folders else suites_for(str(suite), options.get("truth", "labels")):
            place = data
            if data is None and find_suite(each).base == SUITE:  # the same scenes for all models
                many = options.get("images") or COUNT
                place = draw_scenes(Path(str(out)) / SCENES, SceneFiles(many, split="val"))
            folders.append(Path(str(out)) / name / each)
            evaluate_model(
                str(model) if isinstance(model, Path) else model,
                place,
                suite=each,
                out=folders[-1],
                listener=listener(),
                methods=[BASELINE],
                **(unshifted if find_suite(each).kind == "clean" else options),
            )
        found[name] = folders
    return compare_folders(found, margin=margin, over=over)


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
    names = (kept, *(f"{kept}-{number}" for number in range(2, len(taken) + 2)))
    return next(each for each in names if each not in taken)


def write_comparison(found: ModelComparison, folder: Path) -> Path:
    """compare.csv, compare.md and the page, which needs no other file."""
    table, (first, *others) = found.table(), found.models
    verdicts = {model: found.verdict_of(model) for model in others}
    times = {model: f"{each:.4f} s" for model, each in found.seconds.items() if each is not None}
    document = Document(
        f"{', '.join(others)} against {first}",
        {"Metric": f"{found.metric}, in points", "Equivalent": f"within ±{found.margin:g} points"},
        tuple(
            Answer(f"{model} against {first}", text[0].upper() + text[1:]) for model, text in verdicts.items()
        ),
        warnings=found.notes,
        sections=(Section("compare", "By shift", "", (table,), folded=False),),
        facts={"Time per image, of predicting alone": times} if times else {},
    )
    files = {"compare.csv": table.csv(), "compare.md": table.markdown(), PAGE: render(document)}
    for name, text in files.items():
        atomic_write(folder / name, text.encode())
    return folder / PAGE
