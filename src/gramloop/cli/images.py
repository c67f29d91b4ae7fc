"""``gramloop predict``, ``diagnose`` and ``calibrate``: images predicted, looked into, or learnt from."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gramloop.cli.options import CommandResult, command
from gramloop.cli.output import note_embedded
from gramloop.errors import GramLoopError
from gramloop.evaluate.options import CALIBRATION_HELP
from gramloop.tasks.options import ModelOptions
from gramloop.util.device import choose_device
from gramloop.util.files import atomic_write, make_folder
from gramloop.util.options import group, option
from gramloop.util.progress import progress_bar

if TYPE_CHECKING:
    from gramloop.data.records import Shift
    from gramloop.tasks.diagnosis import DiagnoseImage
    from gramloop.tasks.images import RGB, ImageFile
    from gramloop.tasks.prediction import Prediction
    from gramloop.tasks.predictor import Predictor

METHOD_HELP = "a mitigation: gramloop, recentre:c=2, denoise+levels, replay:window=5-7,replays=3, or the file that gramloop tune wrote"


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """Which images, with what."""

    images: list[str] = option("files, folders or globs", metavar="IMAGE", positional=True)
    out: Path = option("folder for the results", metavar="DIR")
    method: str | None = option(
        f"{METHOD_HELP}; baseline for the model alone (gramloop where there is a ViT)", None, metavar="TEXT"
    )
    calibration: Path | None = option(CALIBRATION_HELP, None, metavar="FILE")
    picture: bool = option("write the predictions alone", True)
    threshold: float = option("least score of a box or mask in the picture (0.5)", 0.5, metavar="P")
    model: ModelOptions = group(ModelOptions, "model")


@command(
    PredictOptions,
    "For each image DIR gets NAME.baseline and NAME.mitigated, as .png (grey levels are classes), .json (COCO "
    "results: boxes, or masks as run lengths), .npy (depth) or .png and .json (COCO's panoptic format), and "
    "NAME.picture.png with input, both predictions, drift and gate. Results of earlier runs are replaced. The exit "
    "code is 1 where an image failed.",
    [
        "gramloop predict photos --task depth --out out/depth",
        "gramloop predict street.jpg --model hf:FOLDER --method replay:window=3-4 --out out/street",
        "gramloop predict photos --method out/tune/best.json --out out/photos --json",
    ],
)
def predict_command(options: PredictOptions) -> CommandResult:
    """Predict every image; 1 if some failed."""
    from gramloop.tasks.images import find_images

    if not 0 <= options.threshold <= 1:
        raise GramLoopError(f"--threshold is a score from 0 to 1, not {options.threshold:g}")
    files = find_images(options.images, options.out)
    note_embedded(options.model, [file.path for file in files])
    predictor = options.model.load()
    predict = _method(options, predictor)
    make_folder(options.out)
    start, written = time.perf_counter(), list[dict[str, Any]]()

    def work(file: ImageFile) -> None:
        written.append({"image": file.path, "files": _write(options, predictor, predict, file)})

    failures = each_image(files, "predicting", work)
    seconds = time.perf_counter() - start
    many = f"{len(written)} image{'s' * (len(written) != 1)}"
    print(f"{many} done in {seconds:.1f} s, written to {options.out}")
    document = {"out": options.out, "images": written, "failures": failures, "seconds": seconds}
    return 1 if failures else 0, document


def _method(
    options: PredictOptions, predictor: Predictor[Prediction]
) -> Callable[[RGB], tuple[Prediction, ...]]:
    """A function from pixels to the baseline's prediction and, unless it is the method, the mitigated one."""
    from gramloop.mitigations import apply
    from gramloop.mitigations.stack import read_stack, replay_alone
    from gramloop.tasks.predictor import check_replay

    text = options.method or ("gramloop" if predictor.blocks else "baseline")
    if text == "baseline":
        return lambda pixels: (predictor.predict(pixels),)
    stack, stats = read_stack(text, options.calibration)
    replay = replay_alone(stack)
    if replay is None:
        mitigated = apply(stack, predictor, stats)
        return lambda pixels: (predictor.predict(pixels), mitigated.predict(pixels))
    check_replay(predictor, replay)

    def paired(pixels: RGB) -> tuple[Prediction, ...]:
        pair = predictor.predict(pixels, replay, paired=True)
        return pair.baseline, pair.replayed

    return paired


def _write(
    options: PredictOptions,
    predictor: Predictor[Prediction],
    predict: Callable[[RGB], tuple[Prediction, ...]],
    file: ImageFile,
) -> list[Path]:
    """Predict an image; the files that were written."""
    from gramloop.tasks.base import task_of
    from gramloop.tasks.images import read_image

    pixels, files = read_image(file.path), list[Path]()
    versions = dict(zip(("baseline", "mitigated"), predict(pixels), strict=False))
    for version, found in versions.items():
        stem = file.result(version, "").name
        for ending, content in task_of(found).files(found, file.path, stem, predictor.classes).items():
            files.append(file.result(version, ending))
            atomic_write(files[-1], content)
    if options.picture:
        from gramloop.tasks.prediction import draw_predictions
        from gramloop.util.plotting import CaptionedFigure

        drawn = draw_predictions(pixels, versions, predictor.classes, options.threshold)
        files.append(file.result("picture", ".png"))
        atomic_write(files[-1], CaptionedFigure(drawn, "", "", "").png())
    return files


def each_image(
    files: Sequence[ImageFile], doing: str, work: Callable[[ImageFile], None]
) -> list[dict[str, str]]:
    """Do the work on every image; the images that failed, with the reason of each, which is printed too."""
    from torch import OutOfMemoryError

    failures = []
    with progress_bar(doing, len(files)) as advance:
        for file in files:
            try:
                work(file)
            except (GramLoopError, MemoryError, OutOfMemoryError) as error:
                known = isinstance(error, GramLoopError)
                reason = str(error) if known else "it does not fit into memory; try a smaller --short-side"
                failures.append({"image": str(file.path), "reason": reason})
                print(reason if str(file.path) in reason else f"{file.path}: {reason}", file=sys.stderr)
            advance(file.path.name)
    if failures:
        print(f"{len(failures)} of {len(files)} images failed", file=sys.stderr)
    return failures


@dataclass(frozen=True, kw_only=True)
class DiagnoseOptions:
    """Which images, under which shift, with which replay."""

    images: list[str] = option("files, folders or globs", metavar="IMAGE", positional=True)
    out: Path = option("folder for the results", metavar="DIR")
    shift: str | None = option(
        "corruption, perturbation or group, such as impulse_noise, contrast-p or weather",
        None,
        metavar="NAME",
    )
    severity: list[int] = option("one or more (1 3 5)", [], metavar="N", several=True)
    method: str = option(
        "a replay: gramloop, replay:window=5-7,replays=3, or a file of gramloop tune (gramloop)",
        "gramloop",
        metavar="TEXT",
    )
    model: ModelOptions = group(ModelOptions, "model")


@command(
    DiagnoseOptions,
    "For each image DIR gets NAME.diagnosis.png and .pdf (input, drift of the last proposal, gate, drift of the "
    "accepted state, all drift on one scale) and .json with the numbers behind it. The exit code is 1 where an image "
    "failed.",
    [
        "gramloop diagnose photo.jpg --shift impulse_noise --out out/diagnosis",
        "gramloop diagnose photos --model hf:FOLDER --shift fog --severity 3 --method replay:window=3-4 --out out/diagnosis",
    ],
)
def diagnose_command(options: DiagnoseOptions) -> CommandResult:
    """Diagnose every image; 1 if some failed."""
    from gramloop.tasks.images import find_images

    shifts = _shifts(options.shift, options.severity)
    files = find_images(options.images, options.out)
    note_embedded(options.model, [file.path for file in files])
    diagnose_image = _diagnosing(options)
    make_folder(options.out)
    done: list[dict[str, Any]] = []
    work = partial(_write_diagnosis, options.model.name, diagnose_image, shifts, done)
    failures = each_image(files, "diagnosing", work)
    return 1 if failures else 0, {"out": options.out, "images": done, "failures": failures}


def _write_diagnosis(
    name: str,
    diagnose_image: DiagnoseImage,
    shifts: Sequence[Shift],
    done: list[dict[str, Any]],
    file: ImageFile,
) -> None:
    """Diagnose an image under all shifts; what its .json holds is appended."""
    from gramloop.data.records import Record
    from gramloop.report.figures.diagnostic import Diagnosed, diagnostic
    from gramloop.tasks.images import read_image

    pixels = read_image(file.path)
    record = Record(file.path.stem, file.path, file.path.name, *pixels.shape[:2])
    rows, entries, config = [], [], {}
    print(file.path.name)
    for shift in (None, *shifts):
        seen, found = diagnose_image(pixels if shift is None else shift.pixels(pixels, record))
        severity = 0 if shift is None else shift.condition.severity
        label = "clean" if shift is None else f"{shift.condition.name.replace('_', ' ')} {severity}"
        rows.append(Diagnosed.of(found, label if shifts else file.path.name, seen))
        entries.append({"shift": shift and shift.condition.name, "severity": severity, **found.as_json()})
        config = found.replay.as_json()
        print(_line(label, entries[-1]))
    drawn = diagnostic(rows, f"Diagnostic of {file.path.name}")
    about = {"image": file.path.name, "model": name, "replay": config, "caption": drawn.caption}
    content = {**about, "conditions": entries}
    atomic_write(file.result("diagnosis", ".json"), (json.dumps(content, indent=1) + "\n").encode())
    atomic_write(file.result("diagnosis", ".pdf"), drawn.pdf())
    atomic_write(file.result("diagnosis", ".png"), drawn.png())
    done.append(content)


def _line(label: str, found: dict[str, Any]) -> str:
    from gramloop.util.plotting import percent_of

    step, left, after = found["replays"][-1], found["share_of_drift_left"], ""
    if left is not None:
        after = f" → {found['post_drift']['mean']:.2e} ({percent_of(left, 1.0)})"
    cost = f"{found['blocks']} blocks ({found['multiplier']:.2f}×)"
    return f"  {label}: drift {step['drift']['mean']:.2e}{after}, gate {step['mean_gate']:.2f}, {cost}"


def _shifts(name: str | None, severities: Sequence[int]) -> list[Shift]:
    """The shift at each severity; a name that both kinds have is the corruption, unless it ends with -p."""
    if name is None:
        if severities:
            raise GramLoopError("--severity belongs to --shift NAME, which is missing")
        return []
    import numpy as np

    from gramloop.data.records import Record, Shift
    from gramloop.data.suites import find_suite
    from gramloop.shifts import CORRUPTIONS, PERTURBATIONS

    moved = name.endswith("-p") or (name in PERTURBATIONS and name not in CORRUPTIONS)
    suite = find_suite("image-p" if moved else "image-c")
    chosen = suite.select([name.removesuffix(f"-{suite.kind}")], severities or (1, 3, 5))
    shifts = [Shift(suite.name, suite.kind, each) for each in chosen]
    for shift in shifts:  # a severity that a shift does not have is refused before any image is read
        shift.pixels(np.zeros((64, 64, 3), np.uint8), Record("blank", Path(), "blank", 64, 64))
    return shifts


def _diagnosing(options: DiagnoseOptions) -> DiagnoseImage:
    """What diagnoses an image with the model that the options name."""
    from gramloop.mitigations.stack import read_stack, replay_alone
    from gramloop.tasks.diagnosis import diagnose_with, diagnose_with_embedded

    replay = replay_alone(read_stack(options.method)[0])
    if replay is None or not replay.replays:
        raise GramLoopError(
            f"--method {options.method} is no replay alone of 1 or more passes, and only that has drift and gate"
        )
    model, files = options.model, options.model.files()
    if "folder" in files and model.task is None:
        device = choose_device(model.device)
        return diagnose_with_embedded(files["folder"], replay, device, model.short_side)
    return diagnose_with(model.load(), replay)


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions:
    """Which images, and for which model."""

    images: list[str] = option(
        "files, folders or globs of in-distribution images", metavar="IMAGE", positional=True
    )
    out: Path = option("such as calibration.safetensors", metavar="FILE")
    model: ModelOptions = group(ModelOptions, "model")


@command(
    CalibrateOptions,
    "FILE keeps the mean of the features that the head reads, its spread from image to image, and the usual level of "
    "noise and contrast; --calibration FILE of other commands uses it. A few dozen images are enough, and no labels.",
    [
        "gramloop calibrate photos --model hf:FOLDER --out calibration.safetensors",
    ],
)
def calibrate_command(options: CalibrateOptions) -> CommandResult:
    """Measure every image, and write the file."""
    from gramloop.mitigations.calibration import calibrate
    from gramloop.tasks.images import find_images

    images = [file.path for file in find_images(options.images, options.out.parent)]
    stats = calibrate(options.model.load(), images)
    stats.save(options.out)
    taps = ", ".join(str(tap) for tap in stats.means)
    features = f"features after blocks {taps}" if taps else "pixels alone, since the model has no ViT"
    print(f"{stats.images} images, {features}, noise below {stats.noise:.2f} in 99 of 100: {options.out}")
    if stats.input_noise is not None:
        level = f"{stats.input_noise:.4g}"
        print(f"In the model's input, noise below {level}: adaptive=noise:{level}:{level} replays above that")
    about = {"images": stats.images, "noise": stats.noise, "input_noise": stats.input_noise}
    return 0, {"file": options.out, "taps": list(stats.means), **about}
