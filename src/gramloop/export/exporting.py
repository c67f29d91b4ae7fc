"""``gramloop.export(model, path)``: a model with its mitigation as one file, checked before it is there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.export import ExportedProgram

from gramloop.data.records import TaskName as Task
from gramloop.errors import GramLoopError
from gramloop.export.about import About, describe
from gramloop.export.filter_source import filter_source, written_filters
from gramloop.export.formats import (
    ENDINGS,
    Convert,
    Format,
    check_packages,
    open_program,
    quiet,
    read_about,
    write_program,
)
from gramloop.export.precision import TOLERANCES, Precision, largest_difference, to_half, to_int8
from gramloop.export.subject import FEATURES, IMAGE, Subject, subject_of
from gramloop.mitigations.base import Mitigation
from gramloop.mitigations.calibration import CalibrationStats
from gramloop.mitigations.features import Norms, Recentre
from gramloop.mitigations.mitigated import Mitigated, attach_stack, check_stack
from gramloop.mitigations.pixels import PixelMitigation
from gramloop.mitigations.replay import Replay
from gramloop.mitigations.stack import Mitigations, read_stack, stack_text
from gramloop.models.dinov2 import load_any_backbone
from gramloop.tasks.graphs import Arrays, first_line
from gramloop.tasks.images import find_images, read_image
from gramloop.tasks.loading import model_files, open_model
from gramloop.tasks.padded import PaddedSegmenter
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor, before_renumbering
from gramloop.util.files import TEMPORARY, UnwritableError, make_folder
from gramloop.util.progress import Advance, progress_bar, tracked
from gramloop.util.table import Table, TableRepr

MAX_BATCH = 64  # every image has its own part of the graph


@dataclass(frozen=True)
class ExportedFile(TableRepr):
    """A file that was written.

    path: where; ``companions`` are files that it needs: weights, or the filters that come before it.
    difference: the largest one to the model in torch, as `largest_difference` measures it.
    """

    path: Path
    format: Format
    about: About
    difference: float
    companions: tuple[Path, ...] = ()

    def _table(self) -> Table:
        shown = self.about._table()
        size = sum(file.stat().st_size for file in (self.path, *self.companions) if file.exists())
        precision: Precision = self.about.settings.get("precision", "fp32")
        most = TOLERANCES[precision]
        allowed = f", of {most:g} allowed" if isfinite(most) else "; gramloop compare measures what it costs"
        rows = (
            ("file", f"{self.path.name}, {self.format}, {precision}, {size / 1e6:,.1f} MB"),
            ("difference to torch", f"{self.difference:.1e}{allowed}"),
            *(("needs", file.name) for file in self.companions),
        )
        return Table("Exported model", shown.columns, (*rows, *shown.rows), shown.notes)


def export_model(
    model: str | Path | Predictor[Prediction] | nn.Module,
    path: str | Path,
    *,
    task: Task | str | None = None,
    format: Format | None = None,
    precision: Precision = "fp32",
    calibration_images: Sequence[str | Path] | str | Path = (),
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
        format: "pt2", "onnx" or "openvino".
        precision: "fp16" halves the weights, "int8" quarters them; for ONNX and OpenVINO.
        calibration_images: files, folders or globs of in-distribution images, whose activations set the ranges of int8.
        mitigations: a text such as "recentre:c=2+gramloop", a file of `gramloop tune`, a `ReplayConfig`, or a list;
            filters on pixels become a Python file next to the model.
        stats: calibration statistics or their file, if a mitigation needs them; a file of tune brings its own.
        height, width: of the input, where it is not as the model prepares images.
        batch: images at once.
        name: of the model, in the file.
    """
    path = Path(path)
    kind = format_of(path, format)
    if not 1 <= batch <= MAX_BATCH:
        raise GramLoopError(f"a batch is 1 to {MAX_BATCH} images, not {batch}")
    images = _calibration_images(kind, precision, calibration_images, path)
    check_packages(kind, path)
    stack, known = read_stack(mitigations or (), stats)
    written_filters(path, any(isinstance(each, PixelMitigation) for each in stack))
    with progress_bar("exporting", 4) as advance:
        given: Any
        given, name = _opened(model, task, name)
        advance("tracing the model")
        if isinstance(given, Mitigated):
            if stack:
                raise GramLoopError(
                    f"the predictor has mitigations ({stack_text(given.stack)}); leave out {stack_text(stack)}"
                )
            given, stack, known = given.predictor, given.stack, given.stats
        _check_mitigations(given, stack, known)
        subject = subject_of(given, (height, width), name)
        return _write(_Job(subject, stack, known, given, batch, precision, images), path, kind, advance)


def _calibration_images(
    kind: Format, precision: Precision, given: Sequence[str | Path] | str | Path, path: Path
) -> list[Path]:
    """The images that int8 is calibrated on; refuse a precision without what it needs."""
    if precision not in TOLERANCES:
        raise GramLoopError(f"the precision is {', '.join(TOLERANCES)}, not {precision}")
    if precision != "fp32" and kind == "pt2":
        raise GramLoopError(f"{precision} is written as onnx or openvino, not as pt2")
    sources = [str(given)] if isinstance(given, str | Path) else [str(each) for each in given]
    if bool(sources) != (precision == "int8"):
        raise GramLoopError(
            "int8 needs calibration images: a folder with a few dozen in-distribution ones"
            if precision == "int8"
            else f"calibration images belong to int8, not to {precision}"
        )
    return [each.path for each in find_images(sources, path.parent)] if sources else []


def _check_mitigations(model: object, stack: Sequence[Mitigation], stats: CalibrationStats | None) -> None:
    """Refuse mitigations that need several forwards, or that the model cannot take."""
    for each in stack:
        if not isinstance(each, Replay | Recentre | Norms | PixelMitigation):
            raise GramLoopError(
                f"{each.text} merges several predictions or replaces the input's size, which one exported graph does not "
                "do; replays, recentre, norms and filters on pixels can be exported"
            )
    if isinstance(model, Predictor):
        check_stack(stack, model, stats)
    inside = [each for each in stack if not isinstance(each, PixelMitigation)]
    if inside and isinstance(model, PaddedSegmenter):
        raise GramLoopError(
            f"{model.task} images lie in a padded square, and a file cannot tell padding from image, which "
            f"{stack_text(inside)} must not count; export without mitigations"
        )


def format_of(path: Path, given: str | None) -> Format:
    """The format that is asked for, or that a file's ending names."""
    named = {ending: kind for kind, ending in ENDINGS.items()}
    kind = given or named.get(path.suffix.lower())
    if kind not in ENDINGS:
        endings = ", ".join(f"{kind} ({ending})" for kind, ending in ENDINGS.items())
        raise GramLoopError(
            f"the format is {endings}; neither --format nor the ending of {path.name} says which"
        )
    if path.suffix.lower() != ENDINGS[kind]:
        raise GramLoopError(
            f"{path.name} does not end in {ENDINGS[kind]}, which readers of {kind} files go by"
        )
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
    precision: Precision
    images: Sequence[Path]

    @property
    def filters(self) -> list[PixelMitigation]:
        return [each for each in self.stack if isinstance(each, PixelMitigation)]

    def convert(self) -> Convert | None:
        """What turns an ONNX file in float32 into one with fewer bits."""
        if self.precision == "int8":
            return lambda source: to_int8(source, self.subject.input_name, self._calibrating())
        return to_half if self.precision == "fp16" else None

    def _calibrating(self) -> Iterator[NDArray[Any]]:
        for path in tracked(self.images, "calibrating", len(self.images)):
            pixels = read_image(path)
            for each in self.filters:
                pixels = each.filtered(pixels, self.stats)
            yield self.subject.prepare(pixels, self.batch).numpy()

    def attached(self) -> AbstractContextManager[object]:
        predictor = self.model if isinstance(self.model, Predictor) else None
        inside = tuple(each for each in self.stack if each not in self.filters)
        return attach_stack(self.subject.root, inside, self.stats, predictor=predictor)


def _write(job: _Job, path: Path, kind: Format, advance: Advance) -> ExportedFile:
    subject = job.subject
    described = describe(subject, job.stack, job.stats, job.batch, job.precision)
    with torch.no_grad(), job.attached():
        examples = [subject.example(job.batch, kind=number) for number in (0, 1)]
        expected = [_arrays(subject, each) for each in examples]
        program = _traced(subject, examples[0])
    advance(f"writing {kind}")
    make_folder(path.parent)
    try:
        with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=path.parent) as folder:
            files = _written(job, program, Path(folder) / path.name, kind, described)
            advance("comparing it with the model")
            run = open_program(files[-1], described)
            most = TOLERANCES[job.precision]
            pairs = zip(examples, expected, strict=True)
            difference = max(largest_difference(wanted, run(each.numpy()), most) for each, wanted in pairs)
            if not (difference <= most and isfinite(difference)):
                raise GramLoopError(
                    f"{path} was not written: as {kind}, {subject.name} differs from the model in torch by {difference:.1e}, "
                    f"more than {most:g}"
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
        raise GramLoopError(
            f"torch cannot trace {subject.name} as one program: {first_line(error)}"
        ) from error


def _written(job: _Job, program: ExportedProgram, place: Path, kind: Format, described: About) -> list[Path]:
    try:
        files = write_program(program, place, kind, described, job.convert())
    except (GramLoopError, OSError):
        raise
    except Exception as error:
        other = "" if kind == "pt2" else "; pt2 takes every model that torch can trace"
        raise GramLoopError(
            f"{job.subject.name} cannot be written as {kind}: {first_line(error)}{other}"
        ) from error
    if job.filters:
        source = place.with_suffix(".py")
        source.write_text(filter_source(job.filters, job.stats, place.name), encoding="utf-8")
        files = [source, *files]
    return files


def _moved(files: list[Path], path: Path) -> list[Path]:
    """Give files their place, what is read first last, and remove weights and filters of an older file."""
    places = [path.with_name(file.name) for file in files]
    for file, place in zip(files, places, strict=True):
        os.replace(file, place)
    for old in (written_filters(path, False), *path.parent.glob(f"{_escaped(path.name)}.*.data")):
        if old is not None and old not in places:
            with suppress(OSError):
                old.unlink()
    return places


def _escaped(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "[*?" else letter for letter in name)


class ExportedModel(TableRepr):
    """A file that was read back, ready to run: ``model(images)`` gives arrays by name."""

    def __init__(self, path: str | Path) -> None:
        """Open a file that `export_model` wrote."""
        self.path = Path(path)
        self.format, self.about = read_about(self.path)
        self._run = open_program(self.path, self.about)

    def __call__(self, images: Any) -> Arrays:
        """Run it on an array of the shape and type that ``about`` says."""
        dtype = np.uint8 if IMAGE in self.about.input else np.float32
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
