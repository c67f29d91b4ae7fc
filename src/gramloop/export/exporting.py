"""``gramloop.export(model, path)``: a model with its mitigation as one file, checked before it is there."""

from __future__ import annotations

import glob
import inspect
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.export import ExportedProgram

from gramloop import __version__
from gramloop.errors import GramLoopError
from gramloop.export.formats import (
    ENDINGS,
    TOLERANCES,
    About,
    Format,
    GraphPrecision,
    check_packages,
    largest_difference,
    open_program,
    quiet,
    write_program,
)
from gramloop.export.programs import FEATURES, ExportSubject, subject_of
from gramloop.mitigations import filters
from gramloop.mitigations.base import Mitigation
from gramloop.mitigations.calibration import CalibrationStats
from gramloop.mitigations.feature_hooks import hooks_on
from gramloop.mitigations.features import Norms, Recentre
from gramloop.mitigations.mitigated import Mitigated, check_stack, mitigate
from gramloop.mitigations.stack import Mitigations, Replay, read_stack, replay_of, stack_text
from gramloop.mitigations.views import PixelMitigation
from gramloop.models.dino import load_backbone
from gramloop.replay.attach import loops_on
from gramloop.replay.vit import find_vit
from gramloop.tasks.graphs import Arrays, first_line
from gramloop.tasks.images import find_images, read_image
from gramloop.tasks.loading import model_files, open_model
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor
from gramloop.util.files import TEMPORARY, UnwritableError, make_folder
from gramloop.util.progress import progress_bar, tracked
from gramloop.util.table import Table, TableRepr

MAX_BATCH = 64  # every image has its own part of the graph
_BYTES = "uint8 RGB ({batch}, {high}, {wide}, 3), in this size only, normalised inside"
_FLOATS = "float32 images ({batch}, 3, {high}, {wide}), normalised as the model expects it"
_MARK = '"""Written by gramloop export: '  # the beginning of a file of filters


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
        size = sum(file.stat().st_size for file in (self.path, *self.companions) if file.exists())
        precision, most = self.about.precision, TOLERANCES[self.about.precision]
        allowed = f", of {most:g} allowed" if isfinite(most) else "; gramloop compare measures what it costs"
        rows = (
            ("file", f"{self.path.name}, {self.format}, {precision}, {size / 1e6:,.1f} MB"),
            ("difference to torch", f"{self.difference:.1e}{allowed}"),
            *(("needs", file.name) for file in self.companions),
            *self.about.rows(),
        )
        notes = [self.about.note] if self.about.note else []
        return Table("Exported model", ("", "what it is"), rows, notes)


def export_model(
    model: str | Path | Predictor[Prediction] | nn.Module,
    path: str | Path,
    *,
    task: str | None = None,
    precision: GraphPrecision = "fp32",
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
            W), also one with a replay attached; or what ``--model`` takes; with ``task="features"`` a backbone.
        path: the file; its ending, .pt2, .onnx or .xml (OpenVINO), is the format.
        task: what is predicted, where the model has several tasks.
        precision: "fp16" halves the weights, "int8" quarters them; for ONNX and OpenVINO.
        calibration_images: files, folders or globs of in-distribution images, which set the ranges of int8.
        mitigations, stats: as `gramloop.mitigate` takes them; filters on pixels become a Python file next to the model.
        height, width: of the input, where it is not as the model prepares images.
        batch: images at once.
        name: of the model, in the file.
    """
    path = Path(path)
    kind = format_of(path)
    images = _calibration_files(calibration_images, path.parent, precision)
    if not 1 <= batch <= MAX_BATCH:
        raise GramLoopError(f"a batch is 1 to {MAX_BATCH} images, not {batch}")
    if precision != "fp32" and kind == "pt2":
        raise GramLoopError(f"{precision} is written as onnx or openvino, not as pt2")
    check_packages(kind, path)
    stack, known = read_stack(mitigations or (), stats)
    with progress_bar("exporting", 4) as advance:
        given, name = _opened(model, task, name)
        advance("tracing the model")
        if isinstance(given, Mitigated) and not stack:
            stack, known, given = given.stack, given.stats, given.predictor
        _check_mitigations(given, stack, known)
        before = [each for each in stack if isinstance(each, PixelMitigation)]
        _written_filters(path, bool(before))
        subject = subject_of(given, (height, width), name)
        about = _about(subject, stack, known, batch, precision)
        predictor = given if isinstance(given, Predictor) else None
        program, trials = _traced(subject, predictor, stack, known, batch)
        advance(f"writing {kind}")
        with _placing(path) as place:
            photographs = _photographs(images, subject, before, known, batch)
            try:
                files = write_program(program, place, kind, about, photographs)
            except (GramLoopError, OSError):
                raise
            except Exception as error:
                other = "" if kind == "pt2" else "; pt2 takes every model that torch can trace"
                raise GramLoopError(
                    f"{about.model} cannot be written as {kind}: {first_line(error)}{other}"
                ) from error
            if before:
                code = place.with_suffix(".py")
                code.write_text(filter_source(before, known, place.name), encoding="utf-8")
                files.insert(0, code)
            advance("comparing it with the model")
            difference = _compared(files[-1], path, about, trials)
            places = _moved(files, path)
        advance()
    return ExportedFile(path, kind, about, difference, tuple(places[:-1]))


@contextmanager
def _placing(path: Path) -> Iterator[Path]:
    """A place of the same name in a temporary folder next to a file."""
    make_folder(path.parent)
    try:
        with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=path.parent) as folder:
            yield Path(folder) / path.name
    except OSError as error:
        raise UnwritableError(f"cannot write {path}: {error.strerror or error}") from error


def format_of(path: Path) -> Format:
    """The format that a file's ending names."""
    for kind, ending in ENDINGS.items():
        if path.suffix.lower() == ending:
            return kind
    endings = ", ".join(f"{kind} ({ending})" for kind, ending in ENDINGS.items())
    raise GramLoopError(f"the format is {endings}; {path.name} does not end so")


def _calibration_files(
    given: Sequence[str | Path] | str | Path, folder: Path, precision: GraphPrecision
) -> list[Path]:
    """The images that int8 is calibrated on."""
    if precision not in TOLERANCES:
        raise GramLoopError(f"the precision is {', '.join(TOLERANCES)}, not {precision}")
    sources = [str(given)] if isinstance(given, str | Path) else [str(each) for each in given]
    if bool(sources) != (precision == "int8"):
        raise GramLoopError(
            f"calibration images belong to int8, which needs a few dozen of them; the precision is {precision}"
        )
    return [each.path for each in find_images(sources, folder)] if sources else []


def _check_mitigations(model: object, stack: Sequence[Mitigation], stats: CalibrationStats | None) -> None:
    """Refuse mitigations that need several forwards, or that the model cannot take."""
    if isinstance(model, Mitigated):
        raise GramLoopError(
            f"the predictor has mitigations ({stack_text(model.stack)}); leave out {stack_text(stack)}"
        )
    for each in stack:
        if not isinstance(each, Replay | Recentre | Norms | PixelMitigation):
            raise GramLoopError(
                f"{each.text} merges several predictions or replaces the input's size, which one exported graph does not "
                "do; replays, recentre, norms and filters on pixels can be exported"
            )
    if isinstance(model, Predictor):
        check_stack(stack, model, stats)


def _opened(model: object, task: str | None, name: str | None) -> tuple[Any, str | None]:
    if isinstance(model, str | Path):
        spec = str(model)
        called = name or spec.removeprefix("hf:").rstrip("/").rpartition("/")[2]
        return open_backbone(spec) if task == FEATURES else open_model(spec, task), called
    if isinstance(model, nn.Module) and model.training and not isinstance(model, Predictor):
        raise GramLoopError(f"{type(model).__name__} is in training mode; call model.eval() first")
    return model, name


def open_backbone(spec: str) -> Any:
    """A backbone alone, from its file or folder, or hf:FOLDER."""
    file = next(iter(model_files(spec).values())) if spec.startswith("hf:") else spec
    return load_backbone(file)


def _about(
    subject: ExportSubject,
    stack: Sequence[Mitigation],
    stats: CalibrationStats | None,
    batch: int,
    precision: GraphPrecision,
) -> About:
    """The description of a subject with its mitigations."""
    high, wide = subject.size
    shape = (batch, 3, high, wide) if subject.program.normalisation is None else (batch, high, wide, 3)
    words = (_FLOATS if subject.program.normalisation is None else _BYTES).format(
        batch=batch, high=high, wide=wide
    )
    settings: dict[str, Any] = {}
    if subject.program.normalisation is not None:
        settings["normalisation"] = asdict(subject.program.normalisation)
    texts, replay = [each.text for each in stack], replay_of(stack)
    if not stack:  # what is attached to a module that came with it
        texts = [hooks.text for hooks in hooks_on(subject.root)]
        with suppress(GramLoopError):  # no ViT
            loop = next(loops_on(find_vit(subject.root)), None)
            if loop is not None and loop.config.replays:
                replay = loop.config
                texts.insert(0, Replay(replay).text)
    if replay is not None:
        settings["replay"] = replay.as_json()
    if stats is not None and any(isinstance(each, Recentre) for each in stack):
        taps = sorted(stats.means)
        settings["calibration"] = {"images": stats.images, "backbone": stats.backbone, "taps": taps}
    if precision != "fp32":
        settings["precision"] = precision
    return About(
        __version__,
        torch.__version__,
        subject.name,
        subject.task,
        {str(number): name for number, name in subject.classes.items()},
        "+".join(texts),
        json.loads(json.dumps(settings)),  # as it will be read
        {subject.input_name: words},
        shape,
        dict(subject.program.outputs),
        dict(subject.program.recipe),
        subject.note,
    )


def _traced(
    subject: ExportSubject,
    predictor: Predictor[Prediction] | None,
    stack: Sequence[Mitigation],
    stats: CalibrationStats | None,
    batch: int,
) -> tuple[ExportedProgram, list[tuple[Tensor, Arrays]]]:
    """The program with what is inside the model, and what the model makes of two examples."""
    inside = tuple(each for each in stack if not isinstance(each, PixelMitigation))
    examples = [subject.example(batch, kind=number) for number in (0, 1)]
    with torch.no_grad(), mitigate(subject.root, inside, stats, predictor=predictor):
        found = [[value.numpy() for value in subject.program(images)] for images in examples]
        expected = [dict(zip(subject.program.outputs, values, strict=True)) for values in found]
        try:
            with quiet():
                program = torch.export.export(subject.program, (examples[0],))
        except GramLoopError:
            raise
        except Exception as error:
            raise GramLoopError(
                f"torch cannot trace {subject.name} as one program: {first_line(error)}"
            ) from error
    return program, list(zip(examples, expected, strict=True))


def _photographs(
    files: Sequence[Path],
    subject: ExportSubject,
    before: Sequence[PixelMitigation],
    stats: CalibrationStats | None,
    batch: int,
) -> Iterator[NDArray[Any]]:
    """Images to calibrate int8 on, as the program takes them."""
    for file in tracked(files, "calibrating", len(files)):
        pixels = read_image(file)
        for each in before:
            pixels = each.filtered(pixels, stats)
        yield subject.prepare(pixels, batch).numpy()


def _compared(file: Path, path: Path, about: About, trials: Sequence[tuple[Tensor, Arrays]]) -> float:
    """How much the file differs from the model; refused where that is too much."""
    run, most = open_program(file, about), TOLERANCES[about.precision]
    difference = max(largest_difference(wanted, run(images.numpy()), most) for images, wanted in trials)
    if not (difference <= most and isfinite(difference)):
        raise GramLoopError(
            f"{path} was not written: as {format_of(path)}, {about.model} differs from the model in torch by "
            f"{difference:.1e}, more than {most:g}"
        )
    return difference


def _moved(files: list[Path], path: Path) -> list[Path]:
    """Give files their place, what is read first last, and remove weights and filters of an older file."""
    places = [path.with_name(file.name) for file in files]
    for file, place in zip(files, places, strict=True):
        os.replace(file, place)
    for old in (_written_filters(path, False), *path.parent.glob(f"{glob.escape(path.name)}.*.data")):
        if old is not None and old not in places:
            old.unlink(missing_ok=True)
    return places


def filter_source(stack: Sequence[PixelMitigation], stats: CalibrationStats | None, name: str) -> str:
    """The source of a module whose ``preprocess(pixels)`` applies the filters before the model in the file ``name``."""
    text = "+".join(each.text for each in stack)
    calls = [f"pixels = {each.function.__name__}(pixels, {each.argument(stats)!r})" for each in stack]
    lines = "".join(f"    {call}\n" for call in calls)
    body = inspect.getsource(filters).partition("from __future__")[2]
    return (
        f"{_MARK}{text}, which comes before {name}.\n\n"
        'Call preprocess(pixels) with an image as it was read: (H, W, 3) uint8 RGB.\n"""\n\n'
        f"from __future__{body}\n\ndef preprocess(pixels: _RGB) -> _RGB:\n"
        f'    """The image that is then resized to the input of {name}."""\n{lines}    return pixels\n'
    )


def _written_filters(model: Path, wanted: bool) -> Path | None:
    """The file with filters that an earlier export left next to a model; refuse to replace other code if one is wanted."""
    path = model.with_suffix(".py")
    if not path.is_file():
        return None
    ours = path.read_bytes().startswith(_MARK.encode())
    if wanted and not ours:
        raise GramLoopError(
            f"{path} is code of yours, and the filters would replace it; choose another name for {model.name}"
        )
    return path if ours else None
