"""``gramloop predict``: predict images with and without a mitigation."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gramloop.cli.options import CommandResult, command, group, option
from gramloop.cli.shared import CALIBRATION_HELP, METHOD_HELP, ModelOptions, each_image, note_embedded
from gramloop.errors import GramLoopError

if TYPE_CHECKING:
    from gramloop.tasks.images import ImageFile
    from gramloop.tasks.prediction import Prediction
    from gramloop.tasks.predictor import Predictor


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
    {
        "out": "the folder",
        "images": "those that were predicted: image, and the files written for it",
        "failures": "those that failed: image, reason",
        "seconds": "of the whole work",
    },
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


def _method(options: PredictOptions, predictor: Predictor[Prediction]) -> Any:
    """A function from pixels to the baseline's prediction and, unless it is the method, the mitigated one."""
    from gramloop.mitigations import apply
    from gramloop.mitigations.stack import read_stack, replay_alone
    from gramloop.tasks.predictor import check_replay

    text = options.method or ("gramloop" if predictor.blocks else "baseline")
    if text == "baseline":
        return lambda pixels: (predictor.predict(pixels), None)
    stack, stats = read_stack(text, options.calibration)
    replay = replay_alone(stack)
    if replay is None:
        mitigated = apply(stack, predictor, stats)
        return lambda pixels: (predictor.predict(pixels), mitigated.predict(pixels))
    check_replay(predictor, replay)

    def paired(pixels: Any) -> tuple[Prediction, Prediction]:
        pair = predictor.predict(pixels, replay, paired=True)
        return pair.ordinary, pair.replayed

    return paired


def _write(
    options: PredictOptions, predictor: Predictor[Prediction], predict: Any, file: ImageFile
) -> list[Path]:
    """Predict an image; the files that were written."""
    from gramloop.tasks.base import task_of
    from gramloop.tasks.images import read_image
    from gramloop.util.files import atomic_write

    pixels, files = read_image(file.path), list[Path]()
    baseline, mitigated = predict(pixels)
    for version, found in (("baseline", baseline), ("mitigated", mitigated)):
        if found is not None:
            stem = file.result(version, "").name
            for ending, content in task_of(found).files(found, file.path, stem, predictor.classes).items():
                files.append(file.result(version, ending))
                atomic_write(files[-1], content)
    if options.picture:
        from gramloop.tasks.prediction import draw_prediction

        picture = draw_prediction(
            pixels, baseline, mitigated, predictor.classes, options.threshold, "mitigated"
        )
        files.append(file.result("picture", ".png"))
        atomic_write(files[-1], picture)
    return files
