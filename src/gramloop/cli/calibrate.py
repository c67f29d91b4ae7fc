"""``gramloop calibrate``: what ordinary images look like to a model, for mitigations that need to know."""

from __future__ import annotations

import argparse
from pathlib import Path

from gramloop.cli.help import examples
from gramloop.cli.model_options import TASKS, add_model_options, model_files_of, model_sizes, task_asked
from gramloop.cli.output import Ended

KEYS = {
    "file": "what was written",
    "images": "how many were looked at",
    "taps": "the blocks that the head reads",
    "noise": "the level below which 99 of 100 images lie",
    "shown_noise": "the same of images as the model is shown them, where it is known",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.epilog = (
        "FILE keeps the mean of the features that the head reads, its spread from image to image, and the usual "
        "level of noise; gramloop evaluate --source FILE uses it. A few dozen images are enough, and no labels."
        + examples("gramloop calibrate photos --model hf:FOLDER --out source.safetensors")
    )
    parser.add_argument(
        "images", nargs="+", metavar="IMAGE", help="files, folders or globs of ordinary images"
    )
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="such as source.safetensors")
    parser.add_argument("--task", choices=tuple(TASKS), help="needed where the model does not say")
    add_model_options(parser.add_argument_group("model"))


def run(args: argparse.Namespace) -> Ended:
    """Look at every image, and write the file."""
    from gramloop.mitigations.source import calibrate, write_source
    from gramloop.tasks.loading import load_predictor
    from gramloop.tasks.outputs import find_images
    from gramloop.util.device import choose_device

    images = [file.path for file in find_images(args.images, args.out.parent)]
    files = model_files_of(args)
    task, device = task_asked(args, files), choose_device(args.device)
    predictor = load_predictor(task, files, model_sizes(args), device, dtype=args.dtype or "float32")
    source = calibrate(predictor, images)
    write_source(args.out, source)
    taps = ", ".join(str(tap) for tap in source.means)
    print(f"{source.images} images, taps {taps}, noise below {source.noise:.2f} in 99 of 100: {args.out}")
    if source.shown_noise is not None:
        level = f"{source.shown_noise:.4g}"
        print(
            f"As the model is shown them, noise below {level}: adaptive=noise:{level}:{level} replays above that"
        )
    about = {"images": source.images, "noise": source.noise, "shown_noise": source.shown_noise}
    return Ended(0, lambda: {"file": args.out, "taps": list(source.means), **about})
