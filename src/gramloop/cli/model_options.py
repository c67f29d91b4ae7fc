"""The options that describe a set of images and a model, in the same words for evaluate and tune."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gramloop.errors import GramLoopError

if TYPE_CHECKING:
    from gramloop.data.records import Task
    from gramloop.evaluate.plan import DataSource
    from gramloop.evaluate.planning import Request

TASKS: dict[str, Task] = {
    "segment": "semantic",
    "detect": "detection",
    "depth": "depth",
    "panoptic": "panoptic",
    "instance": "instance",
}
MODEL_HELP = (
    "tiny (embedded) or a folder like it, hf:FOLDER (transformers; hf:NAME downloads it), my_models.py:make, "
    "package.module:make, or a name of gramloop list models"
)
# sizes that some tasks alone have
_OWNERS: dict[str, tuple[str, ...]] = {
    "crop": ("segment",),
    "stride": ("segment",),
    "whole": ("segment",),
    "side": ("panoptic", "instance"),
    "flip": ("depth",),
}
NAMED = 10  # images that could not be used, told one by one


def add_data_options(group: argparse._ArgumentGroup) -> None:
    """Which images."""
    group.add_argument(
        "--data", type=Path, metavar="DIR", help="the set; scenes are drawn where it is missing"
    )
    group.add_argument(
        "--condition",
        action="append",
        default=[],
        metavar="NAME",
        help="some conditions only, or a group: noise, blur, weather, digital; can be repeated",
    )
    group.add_argument("--severity", action="append", type=int, default=[], metavar="N", help="some only")
    group.add_argument(
        "--images", type=int, metavar="N", help="the first N of each condition; for scenes, how many (100)"
    )
    group.add_argument("--split", default="validation", help="of a set of label pictures (validation)")
    group.add_argument("--classes", type=Path, metavar="FILE", help="class list of a set of label pictures")
    group.add_argument(
        "--origin",
        choices=("auto", "folders", "generated"),
        default="auto",
        help="shifted images from folders, or made from the clean ones (auto: folders where there are any)",
    )
    group.add_argument("--format", choices=("png", "jpg"), default="png", help="of generated images")
    group.add_argument(
        "--truth",
        choices=("labels", "clean"),
        help="what predictions are compared with: the labels, or what the plain model says on the clean image, which "
        "needs none, so that DIR may be any folder of photographs (labels)",
    )
    group.add_argument(
        "--truth-score",
        type=float,
        metavar="P",
        help="boxes or masks of the clean prediction that score at least P count as objects (0.5)",
    )
    group.add_argument("--partial", action="store_true", help="accept a part of COCO or ADE20K")
    group.add_argument(
        "--verify",
        action="store_true",
        help="compare every file of a suite that gramloop corrupt wrote with its checksum before the work begins; without "
        "it sizes and some files (each image is compared when it is read)",
    )


def add_model_options(group: argparse._ArgumentGroup) -> None:
    """Which model, and how images are shown to it."""
    group.add_argument("--model", default="tiny", metavar="SPEC", help=MODEL_HELP)
    group.add_argument("--backbone", metavar="FILE", help="DINOv3 weights, or a transformers folder")
    group.add_argument("--head", metavar="FILE", help="the head's weights; then --model is not used")
    group.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        help="of the backbone's weights; bfloat16 halves their memory and rounds (float32)",
    )
    add_device_option(group)
    add_size_options(group)


def add_device_option(group: argparse._ActionsContainer) -> None:
    """Where a model runs."""
    group.add_argument(
        "--device",
        metavar="NAME",
        help="cpu, cuda, cuda:1, mps or auto: the GPU where there is one, else the CPU (auto)",
    )


def add_size_options(group: argparse._ArgumentGroup) -> None:
    """How images are shown to the model."""
    group.add_argument(
        "--short-side",
        type=int,
        metavar="N",
        help="size in which images are shown: 896 to segment (512 to a PMT head), 2048 to detect, 768 to Meta's depth head",
    )
    group.add_argument("--crop", type=int, metavar="N", help="side of a segmentation window (896)")
    group.add_argument("--stride", type=int, metavar="N", help="distance between windows (596)")
    group.add_argument("--whole", action="store_true", help="segment the whole image at once")
    group.add_argument(
        "--side", type=int, metavar="N", help="of the square that panoptic and instance heads see (640)"
    )
    group.add_argument(
        "--flip", action="store_true", help="depth: the mean with the mirror image, as for NYU"
    )


def request_of(args: argparse.Namespace, scenes: Path, split: str = "val") -> Request:
    """The evaluation of the options above; scenes of a split are drawn where a suite of scenes has no folder."""
    from gramloop.data.suites import find_suite
    from gramloop.evaluate.plan import TRUTH_SCORE
    from gramloop.evaluate.planning import Request
    from gramloop.tasks.base import get_task

    find_suite(args.suite).select(args.condition, args.severity)  # a slip is told before scenes are drawn
    files, sizes, device = model_files_of(args), model_sizes(args), _kind_of_device(args)
    task = task_asked(args, files)
    scored = task is None or get_task(task).thresholded
    if args.truth_score is not None and not (args.truth == "clean" and scored):
        raise GramLoopError("--truth-score belongs to --truth clean with --task detect or instance")
    return Request(
        suite=args.suite,
        task=task,
        files=files,
        data=_data_source(args, scenes, split),
        conditions=args.condition,
        severities=args.severity,
        images=args.images,
        sizes=sizes,
        device=device,
        threads=args.threads,
        dtype=args.dtype or "float32",
        truth=args.truth or "labels",
        truth_score=TRUTH_SCORE if args.truth_score is None else args.truth_score,
        alignment=getattr(args, "align", None) or "auto",
        verify=args.verify,
    )


def _kind_of_device(args: argparse.Namespace) -> str:
    """Of the device that is asked for; that of a dry run or of a cluster may be on another machine."""
    from gramloop.util.device import choose_device

    elsewhere = getattr(args, "dry_run", False) or getattr(args, "engine", "local") != "local"
    named = re.fullmatch(r"(cuda|mps)(:\d+)?", args.device or "") if elsewhere else None
    return choose_device(args.device).type if named is None else named[1]


def head_files(args: argparse.Namespace) -> dict[str, str]:
    """The head's file, and the backbone's where it is given."""
    given = {"backbone": args.backbone, "head": args.head}
    return {name: path for name, path in given.items() if path is not None}


def task_asked(args: argparse.Namespace, files: Mapping[str, str]) -> Task | None:
    """The task of the options; None where the model is one that says so itself."""
    if args.task is None and "folder" in files:
        return "semantic"
    return None if args.task is None else TASKS[args.task]


def model_files_of(args: argparse.Namespace) -> dict[str, str]:
    """The model that the options name."""
    if args.head is not None:
        return {name: str(Path(path).resolve()) for name, path in head_files(args).items()}
    if args.backbone is not None:
        raise GramLoopError("--head FILE is missing: a backbone alone predicts nothing")
    from gramloop.tasks.model_spec import model_files

    return model_files(args.model)


def model_sizes(args: argparse.Namespace) -> dict[str, object]:
    """How images are shown to the model, where an option says so."""
    given = {name: getattr(args, name) for name in ("short_side", *_OWNERS)}
    sizes = {name: value for name, value in given.items() if value is not None and value is not False}
    for name in sizes:
        owners = _OWNERS.get(name, tuple(TASKS))
        if args.task is not None and args.task not in owners:
            raise GramLoopError(f"--{name} belongs to --task {' or '.join(owners)}")
    if "crop" in sizes or "stride" in sizes:
        sizes["mode"] = "slide"
    if sizes.pop("whole", False):
        sizes["mode"] = "whole"
    return sizes


def _data_source(args: argparse.Namespace, scenes: Path, split: str) -> DataSource:
    from gramloop.data.scenes.files import COUNT, SUITE, SceneFiles, draw_scenes
    from gramloop.data.suites import find_suite
    from gramloop.evaluate.plan import DataSource

    if args.data is None and find_suite(args.suite).base != SUITE:
        raise GramLoopError(f"--data DIR is missing: the folder of {args.suite}")
    root = args.data or draw_scenes(
        scenes, SceneFiles(COUNT if args.images is None else args.images, split=split)
    )
    return DataSource(
        str(root.resolve()),
        split=args.split,
        classes=str(args.classes) if args.classes else None,
        origin=args.origin,
        encoding=args.format,
        partial=args.partial,
    )
