"""``gramloop.export(model, path)``: a model with its mitigation as one file, checked before it is there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from gramloop.data.records import Task
from gramloop.errors import GramLoopError
from gramloop.export.about import About, describe
from gramloop.export.formats import (
    FORMATS,
    ONE_FILE,
    OPENERS,
    TOLERANCE,
    WRITERS,
    Arrays,
    Format,
    check_packages,
    largest_difference,
    quiet,
    read_about,
)
from gramloop.export.subject import FEATURES, Subject, subject_of
from gramloop.mitigations.base import Mitigation
from gramloop.mitigations.calibration import CalibrationStats
from gramloop.mitigations.features import Norms, Recentre
from gramloop.mitigations.mitigated import Mitigated, attach_stack, check_stack
from gramloop.mitigations.replay import Replay
from gramloop.mitigations.stack import Mitigations, read_stack, stack_text
from gramloop.models.dinov2 import load_any_backbone
from gramloop.tasks.model_spec import model_files, open_model
from gramloop.tasks.padded import PaddedSegmenter
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor
from gramloop.tasks.renumbering import before_renumbering
from gramloop.util.files import TEMPORARY, UnwritableError, make_folder
from gramloop.util.progress import Advance, progress_bar
from gramloop.util.table import Table, TableRepr

MAX_BATCH = 64  # every image has its own part of the graph


@dataclass(frozen=True)
class ExportedFile(TableRepr):
    """A file that was written.

    path: where; ``beside`` are files with weights that it needs.
    difference: the largest one to the model in torch, as `largest_difference` measures it.
    """

    path: Path
    format: Format
    about: About
    difference: float
    beside: tuple[Path, ...] = ()

    def _table(self) -> Table:
        shown = self.about._table()
        size = sum(file.stat().st_size for file in (self.path, *self.beside) if file.exists())
        rows = (
            ("file", f"{self.path.name}, {self.format}, {size / 1e6:,.1f} MB"),
            ("difference to torch", f"{self.difference:.1e}, of {TOLERANCE:g} allowed"),
            *(("beside it", file.name) for file in self.beside),
        )
        return Table("Exported model", shown.columns, (*rows, *shown.rows), shown.notes)


def export_model(
    model: str | Path | Predictor[Prediction] | nn.Module,
    path: str | Path,
    *,
    task: Task | str | None = None,
    format: Format | None = None,
    mitigations: Mitigations = (),
    stats: CalibrationStats | str | Path | None = None,
    height: int | None = None,
    width: int | None = None,
    batch: int = 1,
    name: str | None = None,
) -> ExportedFile:
    """Write a model with its mitigation as one file, which needs neither gramloop nor transformers.

    The file is compared with the model in torch before it gets its name; one that does not agree is not written.

    Args:
        model: a predictor, also with mitigations of its own; a torch module, which is given normalised pixels (B, 3, H,
            W), also one with a replay attached; or what ``--model`` takes; with ``task="features"`` the file or folder of a backbone.
        path: the file; its ending is the format where none is given.
        task: what is predicted, where the model has several tasks.
        format: "pt2" or "onnx".
        mitigations: a text such as "recentre:c=2+gramloop", a file of `gramloop tune`, a `ReplayConfig`, or a list.
        stats: calibration statistics or their file, if a mitigation needs them; a file of tune brings its own.
        height, width: of the input, where it is not as the model usually sees images.
        batch: images at once.
        name: of the model, in the file.
    """
    path = Path(path)
    kind = format_of(path, format)
    if not 1 <= batch <= MAX_BATCH:
        raise GramLoopError(f"a batch is 1 to {MAX_BATCH} images, not {batch}")
    check_packages(kind)
    stack, known = read_stack(mitigations or (), stats)
    with progress_bar("exporting", 4) as advance:
        given: Any
        given, name = _opened(model, task, name)
        advance("tracing the model")
        if isinstance(given, Mitigated):
            if stack:
                raise GramLoopError(
                    f"the predictor has mitigations ({stack_text(given.stack)}); leave out {stack_text(stack)}"
                )
            given, stack, known = given.plain, given.stack, given.stats
        _check_mitigations(given, stack, known)
        subject = subject_of(given, (height, width), name)
        return _write(_Job(subject, stack, known, given, batch), path, kind, advance)


def _check_mitigations(model: object, stack: Sequence[Mitigation], stats: CalibrationStats | None) -> None:
    """Refuse mitigations that are not tensor operations on one image, or that the model cannot take."""
    for each in stack:
        if not isinstance(each, Replay | Recentre | Norms):
            raise GramLoopError(
                f"{each.text} acts on {each.stage}, outside the model, so it cannot be exported; replays, recentre and "
                "norms can"
            )
    if isinstance(model, Predictor):
        check_stack(stack, model, stats)
    if stack and isinstance(model, PaddedSegmenter):
        raise GramLoopError(
            f"{model.task} images lie in a padded square, and a file cannot tell padding from image, which "
            f"{stack_text(stack)} must not count; export without mitigations"
        )


def format_of(path: Path, given: str | None) -> Format:
    """The format that is asked for, or that a file's ending names."""
    kind = given or path.suffix.removeprefix(".").lower()
    if kind not in FORMATS:
        raise GramLoopError(
            f"the format is {' or '.join(FORMATS)}; neither --format nor the ending of {path.name} says which"
        )
    if path.suffix.lower() != f".{kind}":
        raise GramLoopError(f"{path.name} does not end in .{kind}, which readers of {kind} files go by")
    return kind


def _opened(model: object, task: str | None, name: str | None) -> tuple[object, str | None]:
    if isinstance(model, str | Path):
        spec = str(model)
        called = name or spec.removeprefix("hf:").rstrip("/").rpartition("/")[2]
        if task == FEATURES:
            folder = next(iter(model_files(spec).values())) if spec.startswith("hf:") else spec
            return load_any_backbone(folder), called
        return open_model(spec, task), called
    if isinstance(model, Predictor):
        return before_renumbering(model), name
    if not isinstance(model, nn.Module):
        raise GramLoopError(
            f"a {type(model).__name__} cannot be exported; a predictor, a torch module or the name of a model can"
        )
    if model.training:
        raise GramLoopError(f"{type(model).__name__} is in training mode; call model.eval() first")
    return model, name


@dataclass(frozen=True)
class _Job:
    """A program with the mitigations that are attached to its model while it is traced."""

    subject: Subject
    stack: tuple[Mitigation, ...]
    stats: CalibrationStats | None
    model: object
    batch: int

    def attached(self) -> AbstractContextManager[object]:
        predictor = self.model if isinstance(self.model, Predictor) else None
        return attach_stack(self.subject.root, self.stack, self.stats, predictor=predictor)


def _write(job: _Job, path: Path, kind: Format, advance: Advance) -> ExportedFile:
    subject, described = job.subject, describe(job.subject, job.stack, job.stats, job.batch)
    with torch.no_grad(), job.attached():
        examples = [subject.example(job.batch, kind=number) for number in (0, 1)]
        expected = [_arrays(subject, each) for each in examples]
        program = _traced(subject, examples[0])
    advance(f"writing {kind}")
    make_folder(path.parent)
    try:
        with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=path.parent) as folder:
            files = _written(subject, program, Path(folder) / path.name, kind, described)
            advance("comparing it with the model")
            run = OPENERS[kind](files[-1], described)
            pairs = zip(examples, expected, strict=True)
            difference = max(largest_difference(wanted, run(each.numpy())) for each, wanted in pairs)
            if not difference <= TOLERANCE:
                raise GramLoopError(
                    f"{path} was not written: as {kind}, {subject.name} differs from the model in torch by {difference:.1e}, "
                    f"more than {TOLERANCE:g}"
                )
            del run  # holds the file open
            places = _moved(files, path)
    except OSError as error:
        raise UnwritableError(f"cannot write {path}: {error.strerror or error}") from error
    advance()
    return ExportedFile(path, kind, described, difference, tuple(places[:-1]))


def _arrays(subject: Subject, images: Tensor) -> Arrays:
    return {name: value.numpy() for name, value in zip(subject.outputs, subject.program(images), strict=True)}


def _traced(subject: Subject, images: Tensor) -> ExportedProgram:
    try:
        with quiet():
            return torch.export.export(subject.program, (images,))
    except GramLoopError:
        raise
    except Exception as error:
        raise GramLoopError(f"torch cannot trace {subject.name} as one program: {_words(error)}") from error


def _written(
    subject: Subject, program: ExportedProgram, place: Path, kind: Format, described: About
) -> list[Path]:
    try:
        return WRITERS[kind](program, place, described, ONE_FILE)
    except (GramLoopError, OSError):
        raise
    except Exception as error:
        other = "; pt2 takes every model that torch can trace" if kind == "onnx" else ""
        raise GramLoopError(f"{subject.name} cannot be written as {kind}: {_words(error)}{other}") from error


def _moved(files: list[Path], path: Path) -> list[Path]:
    """Give files their place, what is read first last, and remove weights that an older file had beside it."""
    places = [path.with_name(file.name) for file in files]
    for file, place in zip(files, places, strict=True):
        os.replace(file, place)
    for old in path.parent.glob(f"{_escaped(path.name)}.*.data"):
        if old not in places:
            with suppress(OSError):
                old.unlink()
    return places


def _escaped(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "[*?" else letter for letter in name)


def _words(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]


class ExportedModel(TableRepr):
    """A file that was read back, ready to run: ``model(images)`` gives arrays by name."""

    def __init__(self, path: str | Path) -> None:
        """Open a file that `export_model` wrote."""
        self.path = Path(path)
        self.format, self.about = read_about(self.path)
        self._run = OPENERS[self.format](self.path, self.about)

    def __call__(self, images: Any) -> Arrays:
        """Run it on an array of the shape and type that ``about`` says."""
        import numpy as np

        dtype = np.float32 if "pixels" in self.about.input else np.uint8
        given = np.asarray(images)
        if given.shape != tuple(self.about.shape) or given.dtype != dtype:
            raise GramLoopError(
                f"{self.path.name} takes {np.dtype(dtype)} {tuple(self.about.shape)}, not {given.dtype} {given.shape}"
            )
        return self._run(given)

    def _table(self) -> Table:
        return self.about._table()


def read_export(path: str | Path) -> ExportedModel:
    """Open a file of `export_model`: what it is, and a function of arrays."""
    return ExportedModel(path)
