"""``gramloop predict``: segment images or detect objects in them, ordinary and replayed."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gramloop.cli.replay_options import add_replay_options, replay_of
from gramloop.core.config import ReplayConfig, route
from gramloop.errors import GramLoopError

if TYPE_CHECKING:
    import numpy as np
    import torch

    from gramloop.tasks.detect import Detector
    from gramloop.tasks.outputs import ImageFile
    from gramloop.tasks.segment import Segmenter

# A predictor: pixels (H, W, 3) and its file → nothing; the results are written.
Predict = Callable[["np.ndarray", "ImageFile"], None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.epilog = (
        "For each image DIR gets NAME.ordinary and NAME.replayed, as .png (grey levels are classes) or .json "
        "(COCO results), and NAME.picture.png with input, both predictions, drift and gate. Results of earlier "
        "runs are replaced. An image that cannot be done costs one sentence and the exit code 2."
    )
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="files, folders or globs")
    parser.add_argument("--task", required=True, choices=("segment", "detect"))
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder for the results")
    parser.add_argument("--backbone", metavar="FILE", help="DINOv3 weights, or a transformers folder")
    parser.add_argument("--head", metavar="FILE", help="the head's weights")
    parser.add_argument(
        "--verify", action="store_true", help="compare both files with the sha256 in their names"
    )
    parser.add_argument("--device", metavar="NAME", help="cuda where there is one, else cpu")
    parser.add_argument("--no-picture", action="store_true", help="write the predictions alone")
    parser.add_argument(
        "--threshold", type=float, default=0.5, metavar="P", help="least score of a box in the picture (0.5)"
    )
    replay = parser.add_argument_group("replay")
    replay.add_argument("--no-replay", action="store_true", help="predict the ordinary version alone")
    add_replay_options(replay)
    size = parser.add_argument_group("size of the input")
    size.add_argument("--short-side", type=int, metavar="N", help="896 to segment, 2048 to detect")
    size.add_argument("--crop", type=int, metavar="N", help="side of a segmentation window (896)")
    size.add_argument("--stride", type=int, metavar="N", help="distance between windows (596)")
    size.add_argument("--whole", action="store_true", help="segment the whole image at once, without windows")


def run(args: argparse.Namespace) -> int:
    """Predict every image; 2 if some could not be done."""
    from gramloop.io.atomic import make_folder
    from gramloop.io.progress import progress_bar
    from gramloop.tasks.outputs import find_images

    replay = None if args.no_replay else replay_of(args)
    files = find_images(args.images, args.out)
    predict = _predictor(args, replay)
    make_folder(args.out)
    start = time.perf_counter()
    failures = 0
    with progress_bar("predicting", len(files)) as advance:
        for file in files:
            advance(file.path.name, 0)
            failures += not _attempt(predict, file)
            advance(file.path.name)
    done = len(files) - failures
    print(f"{_count(done)} done in {time.perf_counter() - start:.1f} s, written to {args.out}")
    if failures:
        print(f"{_count(failures)} could not be done", file=sys.stderr)
    return 2 if failures else 0


def _attempt(predict: Predict, file: ImageFile) -> bool:
    """Whether one image could be done; if not, one sentence says why."""
    from torch import OutOfMemoryError

    from gramloop.tasks.images import read_image

    try:
        predict(read_image(file.path), file)
    except GramLoopError as error:
        print(_about(file, str(error)), file=sys.stderr)
        return False
    except (MemoryError, OutOfMemoryError):
        print(_about(file, "it does not fit into memory; try a smaller --short-side"), file=sys.stderr)
        return False
    return True


def _about(file: ImageFile, sentence: str) -> str:
    return sentence if str(file.path) in sentence else f"{file.path}: {sentence}"


def _count(images: int) -> str:
    return "1 image" if images == 1 else f"{images} images"


def _predictor(args: argparse.Namespace, replay: ReplayConfig | None) -> Predict:
    """The task's predictor, with its checkpoints loaded and the replay checked against their depth."""
    from gramloop.io.device import choose_device

    if args.head is None:
        raise GramLoopError(
            f"--head FILE is missing: the weights that {args.task} needs on top of the backbone"
        )
    if not 0 <= args.threshold <= 1:
        raise GramLoopError(f"--threshold is a score from 0 to 1, not {args.threshold:g}")
    device = choose_device(args.device)
    return _segment(args, replay, device) if args.task == "segment" else _detect(args, replay, device)


def _segment(args: argparse.Namespace, replay: ReplayConfig | None, device: torch.device) -> Predict:
    from gramloop.tasks.segment import SegmentConfig, load_segmenter

    given = ((name, getattr(args, name)) for name in ("short_side", "crop", "stride"))
    sizes = {name: value for name, value in given if value is not None}
    config = SegmentConfig(mode="whole" if args.whole else "slide", **sizes)
    segmenter = load_segmenter(args.backbone, args.head, config=config, device=device, verify=args.verify)
    _check_replay(replay, segmenter)

    def predict(pixels: np.ndarray, file: ImageFile) -> None:
        from gramloop.io.atomic import atomic_write
        from gramloop.tasks.class_names import ADE20K
        from gramloop.tasks.outputs import labels_png

        ordinary, replayed = _both(segmenter, pixels, replay)
        for version, found in (("ordinary", ordinary), ("replayed", replayed)):
            if found is not None:
                atomic_write(file.result(version, ".png"), labels_png(found.labels))
        if not args.no_picture:
            from gramloop.tasks.pictures import draw_segmentation

            names = ADE20K if segmenter.model.classes == len(ADE20K) else None
            labels = None if replayed is None else replayed.labels
            picture = draw_segmentation(_image(pixels), ordinary.labels, labels, _maps(replayed), names)
            atomic_write(file.result("picture", ".png"), picture)

    return predict


def _detect(args: argparse.Namespace, replay: ReplayConfig | None, device: torch.device) -> Predict:
    from gramloop.tasks.detect import DetectConfig, load_detector

    for name in ("crop", "stride", "whole"):
        if getattr(args, name) not in (None, False):
            raise GramLoopError(f"--{name} belongs to --task segment; a detector has windows of its own")
    config = DetectConfig() if args.short_side is None else DetectConfig(short_side=args.short_side)
    detector = load_detector(args.backbone, args.head, config=config, device=device, verify=args.verify)
    _check_replay(replay, detector)

    def predict(pixels: np.ndarray, file: ImageFile) -> None:
        from gramloop.io.atomic import atomic_write
        from gramloop.tasks.class_names import COCO
        from gramloop.tasks.outputs import coco_results

        versions = _both(detector, pixels, replay)
        for version, found in zip(("ordinary", "replayed"), versions, strict=True):
            if found is not None:
                results = coco_results(file.path, found.boxes, found.scores, found.labels)
                atomic_write(file.result(version, ".json"), results)
        if not args.no_picture:
            from gramloop.tasks.pictures import Boxes, draw_detections

            names = COCO if detector.model.head.config.classes == 91 else None
            ordinary, replayed = (each and Boxes(each.boxes, each.scores, each.labels) for each in versions)
            picture = draw_detections(
                _image(pixels), ordinary, replayed, _maps(versions[1]), names, args.threshold
            )
            atomic_write(file.result("picture", ".png"), picture)

    return predict


def _check_replay(replay: ReplayConfig | None, task: Segmenter | Detector) -> None:
    if replay is not None:
        route(replay, task.model.backbone.shape.depth)


def _both(task: Any, pixels: np.ndarray, replay: ReplayConfig | None) -> tuple[Any, Any]:
    """The ordinary prediction, and the replayed one or None."""
    if replay is None:
        return task.predict(pixels), None
    pair = task.predict(pixels, replay, paired=True)
    return pair.ordinary, pair.replayed


def _maps(replayed: Any) -> Any:
    """Drift and gate of the last replay, where they were measured."""
    from gramloop.tasks.pictures import PatchMaps

    if replayed is None or replayed.trace is None:
        return None
    return PatchMaps(replayed.trace.drift[-1], replayed.trace.gate[-1])


def _image(pixels: np.ndarray) -> Any:
    from PIL import Image

    return Image.fromarray(pixels)
