"""``gramloop scenes``: write procedural scenes with their labels to disk."""

from __future__ import annotations

import argparse
from pathlib import Path

from gramloop.cli.help import examples
from gramloop.cli.output import Ended

KEYS = {"folder": "where they are", "scenes": "how many"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.epilog = "The same numbers draw the same scenes everywhere." + examples(
        "gramloop scenes out/scenes --count 20"
    )
    parser.add_argument(
        "folder", type=Path, metavar="DIR", help="folder to write to; going on after a stop is fine"
    )
    parser.add_argument("--count", type=int, required=True, metavar="N", help="how many scenes")
    parser.add_argument("--start", type=int, default=0, metavar="I", help="index of the first (0)")
    parser.add_argument("--size", type=int, default=192, metavar="PX", help="width and height (192)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="another endless set (0)")
    parser.add_argument(
        "--split", default="val", help="val, or train: what the embedded model was trained on (val)"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="processes; all cores by default")


def run(args: argparse.Namespace) -> Ended:
    """Write the scenes."""
    from gramloop.data.scenes.files import SceneFiles, write_scenes
    from gramloop.util.progress import progress_bar

    wanted = SceneFiles(args.count, args.start, args.size, args.split, args.seed)
    with progress_bar("drawing scenes", args.count) as advance:
        write_scenes(args.folder, wanted, workers=args.workers, on_scenes=lambda n: advance(steps=n))
    print(
        f"{args.count} scenes in {args.folder}: label pictures with classes.txt, annotations/instances_val.json, "
        "annotations/panoptic_val.json with its PNG files, and depth/ in millimetres"
    )
    return Ended(0, lambda: {"folder": args.folder, "scenes": args.count})
