"""``gramloop predict``: segment images, detect or outline objects or estimate depth, ordinary and replayed."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gramloop.cli.each_image import do_each_image
from gramloop.cli.help import examples
from gramloop.cli.model_options import (
    MODEL_HELP,
    TASKS,
    add_device_option,
    add_size_options,
    head_files,
    model_sizes,
)
from gramloop.cli.output import Ended
from gramloop.cli.replay_options import add_replay_options, mitigations_of, replay_of
from gramloop.errors import GramLoopError
from gramloop.replay.config import ReplayConfig

if TYPE_CHECKING:
    from gramloop.tasks.outputs import ImageFile
    from gramloop.tasks.prediction import Prediction
    from gramloop.tasks.predictor import Predictor

KEYS = {
    "out": "the folder",
    "images": "those that were done: image, and the files written for it",
    "failures": "those that were not: image, reason",
    "seconds": "of the whole work",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.epilog = (
        "For each image DIR gets NAME.ordinary and NAME.replayed (NAME.mitigated, if FILE holds other mitigations), as "
        ".png (grey levels are classes), .json (COCO results: boxes, or masks as run lengths), .npy (depth in metres) or "
        ".png and .json (COCO's panoptic format), and NAME.picture.png with input, both predictions, drift and gate. Results of earlier "
        "runs are replaced. An image that cannot be done costs one sentence and the exit code 2."
        + examples(
            "gramloop predict photos --task depth --model tiny --out out/depth",
            "gramloop predict street.jpg --model hf:FOLDER --window 5 7 --out out/street",
            "gramloop predict photos --task segment --head head.pth --replay found.json --out out/photos --json",
        )
    )
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="files, folders or globs")
    parser.add_argument("--task", choices=tuple(TASKS), help="needed unless the model has one alone")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder for the results")
    model = parser.add_argument_group("model")
    model.add_argument("--model", metavar="SPEC", help=MODEL_HELP)
    model.add_argument("--backbone", metavar="FILE", help="DINOv3 weights, or a transformers folder")
    model.add_argument("--head", metavar="FILE", help="the head's weights; depth has the embedded model's")
    model.add_argument(
        "--verify", action="store_true", help="compare both files with the sha256 in their names"
    )
    add_device_option(model)
    picture = parser.add_argument_group("picture")
    picture.add_argument("--no-picture", action="store_true", help="write the predictions alone")
    picture.add_argument(
        "--threshold",
        type=float,
        default=0.5,
        metavar="P",
        help="least score of a box or mask in the picture (0.5)",
    )
    replay = parser.add_argument_group("replay")
    replay.add_argument("--no-replay", action="store_true", help="predict the ordinary version alone")
    add_replay_options(replay)
    add_size_options(parser.add_argument_group("size of the input"))


def run(args: argparse.Namespace) -> Ended:
    """Predict every image; 2 if some could not be done."""
    from gramloop.mitigations import apply
    from gramloop.tasks.outputs import find_images
    from gramloop.util.files import make_folder

    stored = None if args.no_replay else mitigations_of(args)
    replay = None if args.no_replay or stored is not None else replay_of(args)
    files = find_images(args.images, args.out)
    predictor = _predictor(args, replay)
    mitigated = None if stored is None else apply(stored.stack, predictor, stored.read_stats())
    make_folder(args.out)
    start, written = time.perf_counter(), list[dict[str, Any]]()
    failures = do_each_image(
        files,
        "predicting",
        lambda file: written.append(
            {"image": file.path, "files": _write(args, predictor, replay, mitigated, file)}
        ),
    )
    seconds = time.perf_counter() - start
    print(f"{_count(len(files) - len(failures))} done in {seconds:.1f} s, written to {args.out}")
    if failures:
        print(f"{_count(len(failures))} could not be done", file=sys.stderr)
    document = {"out": args.out, "images": written, "failures": failures, "seconds": seconds}
    return Ended(2 if failures else 0, lambda: document)


def _count(images: int) -> str:
    return "1 image" if images == 1 else f"{images} images"


def _predictor(args: argparse.Namespace, replay: ReplayConfig | None) -> Predictor[Prediction]:
    """The task's predictor, with its checkpoints loaded and the replay checked against their depth."""
    from gramloop.tasks.loading import load_predictor
    from gramloop.tasks.predictor import check_replay
    from gramloop.util.device import choose_device

    if not 0 <= args.threshold <= 1:
        raise GramLoopError(f"--threshold is a score from 0 to 1, not {args.threshold:g}")
    files = _files(args)
    if args.task is None and not {"hf", "make", "head"} & set(files):
        raise GramLoopError(f"--task is missing: {', '.join(TASKS)}")
    device = choose_device(args.device)
    task = None if args.task is None else TASKS[args.task]
    predictor = load_predictor(task, files, model_sizes(args), device, verify=args.verify)
    if replay is not None:
        check_replay(predictor, replay)
    return predictor


def _files(args: argparse.Namespace) -> dict[str, str]:
    if args.model is not None:
        if args.backbone or args.head:
            raise GramLoopError("--model is a whole model; leave it out with --backbone or --head")
        from gramloop.tasks.model_spec import model_files

        return model_files(args.model)
    if args.head is None and args.task == "depth":
        from gramloop.models.tiny import WEIGHTS

        return {"folder": str(WEIGHTS)}
    if args.head is None:
        raise GramLoopError(
            f"--head FILE is missing: the weights that {args.task or 'a task'} needs on top of the backbone"
        )
    return head_files(args)


def _write(
    args: argparse.Namespace,
    predictor: Predictor[Prediction],
    replay: ReplayConfig | None,
    mitigated: Predictor[Prediction] | None,
    file: ImageFile,
) -> list[Path]:
    """Predict an image; the files that were written."""
    from gramloop.tasks.base import task_of
    from gramloop.tasks.images import read_image
    from gramloop.util.files import atomic_write

    pixels, files = read_image(file.path), list[Path]()
    changed, name = None, "replayed" if mitigated is None else "mitigated"
    if replay is None:
        ordinary = predictor.predict(pixels)
        changed = None if mitigated is None else mitigated.predict(pixels)
    else:
        pair = predictor.predict(pixels, replay, paired=True)
        ordinary, changed = pair.ordinary, pair.replayed
    for version, found in (("ordinary", ordinary), (name, changed)):
        if found is not None:
            stem = file.result(version, "").name
            for ending, content in task_of(found).files(found, file.path, stem, predictor.classes).items():
                files.append(file.result(version, ending))
                atomic_write(files[-1], content)
    if not args.no_picture:
        from gramloop.tasks.drawing import draw_prediction

        picture = draw_prediction(pixels, ordinary, changed, predictor.classes, args.threshold, name)
        files.append(file.result("picture", ".png"))
        atomic_write(files[-1], picture)
    return files
