"""``gramloop predict`` and ``gramloop calibrate``: images predicted with and without a mitigation, or learnt from."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gramloop.cli.options import CommandResult, command
from gramloop.cli.output import note_embedded
from gramloop.errors import GramLoopError
from gramloop.evaluate.options import CALIBRATION_HELP
from gramloop.tasks.options import ModelOptions
from gramloop.util.options import group, option

if TYPE_CHECKING:
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
    from gramloop.util.files import make_folder

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
    print(f"{len(written)} images done in {seconds:.1f} s, written to {options.out}")
    if failures:
        print(f"{len(failures)} images failed", file=sys.stderr)
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
    from gramloop.util.files import atomic_write

    pixels, files = read_image(file.path), list[Path]()
    shown = dict(zip(("baseline", "mitigated"), predict(pixels), strict=False))
    for version, found in shown.items():
        stem = file.result(version, "").name
        for ending, content in task_of(found).files(found, file.path, stem, predictor.classes).items():
            files.append(file.result(version, ending))
            atomic_write(files[-1], content)
    if options.picture:
        from gramloop.tasks.prediction import draw_predictions
        from gramloop.util.plotting import CaptionedFigure

        drawn = draw_predictions(pixels, shown, predictor.classes, options.threshold)
        files.append(file.result("picture", ".png"))
        atomic_write(files[-1], CaptionedFigure(drawn, "", "", "").png())
    return files


def each_image(
    files: Sequence[ImageFile], doing: str, work: Callable[[ImageFile], None]
) -> list[dict[str, str]]:
    """Do the work on every image.

    Returns:
        The images that failed, with the reason of each, which is printed too.
    """
    from torch import OutOfMemoryError

    from gramloop.util.progress import progress_bar

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
    return failures


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
