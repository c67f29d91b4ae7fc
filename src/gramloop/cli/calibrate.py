"""``gramloop calibrate``: statistics of in-distribution images, for mitigations that need them."""

from __future__ import annotations

import argparse
from pathlib import Path

from gramloop.cli.help import examples
from gramloop.cli.model_options import TASKS, add_model_options, model_files_of, model_sizes, task_asked
from gramloop.cli.output import Ended

KEYS = {
    "file": "what was written",
    "images": "how many were measured",
    "taps": "the blocks whose features the head reads; none for a model without a ViT",
    "noise": "the level in grey values that 99 of 100 images stay below",
    "input_noise": "the same in units of the model's input, if it has a ViT",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.epilog = (
        "FILE keeps the mean of the features that the head reads and its spread from image to image, the usual noise, "
        "brightness, contrast and sharpness. A few dozen images are enough, and no labels. For a model without a ViT "
        "inside, only pixels are measured."
        + examples("gramloop calibrate photos --model hf:FOLDER --out calibration.safetensors")
    )
    parser.add_argument(
        "images", nargs="+", metavar="IMAGE", help="files, folders or globs of in-distribution images"
    )
    parser.add_argument(
        "--out", required=True, type=Path, metavar="FILE", help="such as calibration.safetensors"
    )
    parser.add_argument("--task", choices=tuple(TASKS), help="needed if the model has several")
    add_model_options(parser.add_argument_group("model"))


def run(args: argparse.Namespace) -> Ended:
    """Measure every image, and write the file."""
    from gramloop.mitigations.calibration import calibrate
    from gramloop.tasks.loading import load_predictor
    from gramloop.tasks.outputs import find_images
    from gramloop.util.device import choose_device

    images = [file.path for file in find_images(args.images, args.out.parent)]
    files = model_files_of(args)
    task, device = task_asked(args, files), choose_device(args.device)
    predictor = load_predictor(task, files, model_sizes(args), device, dtype=args.dtype or "float32")
    stats = calibrate(predictor, images)
    stats.save(args.out)
    blocks = f"features of blocks {', '.join(map(str, stats.means))}" if stats.means else "pixels only"
    print(f"{stats.images} images, {blocks}, noise below {stats.noise:.2f} in 99 of 100: {args.out}")
    if stats.input_noise is not None:
        level = f"{stats.input_noise:.4g}"
        print(
            f"In units of the model's input, noise below {level}: adaptive=noise:{level}:{level} replays above that"
        )
    about = {"images": stats.images, "noise": stats.noise, "input_noise": stats.input_noise}
    return Ended(0, lambda: {"file": args.out, "taps": list(stats.means), **about})
