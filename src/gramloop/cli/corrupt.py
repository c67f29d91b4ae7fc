"""``gramloop corrupt``: write the shifted conditions of a suite to disk."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gramloop.cli.help import examples
from gramloop.cli.output import Ended, is_quiet, note
from gramloop.errors import GramLoopError

if TYPE_CHECKING:
    from gramloop.data.checks import Check
    from gramloop.data.opening import OpenSuite

KEYS = {
    "target": "the folder",
    "finished": "conditions that were written",
    "skipped": "conditions that were there",
    "made": "images that were made",
    "found": "images that were there, of conditions that were not finished",
    "replaced": "files that were not what had been written, and were made again",
    "failures": "images that could not be read, a sentence each",
    "notes_of_the_set": "what is odd about the clean set",
    "seconds": "of the work",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.epilog = (
        "Stop it whenever you like: the same command goes on. The exit code is 1 where images could not be read."
        + examples(
            "gramloop corrupt data/coco data/coco-c --suite coco-c",
            "gramloop corrupt photos photos-c --suite photos-c --condition weather --severity 3",
        )
    )
    parser.add_argument("source", type=Path, metavar="SRC", help="folder of the clean set")
    parser.add_argument(
        "target", type=Path, metavar="DST", help="folder to write to; going on after a stop is fine"
    )
    parser.add_argument(
        "--suite", required=True, help="coco-c, coco-p, ade20k-c, ade20k-p, or my-set-c, my-set-p"
    )
    shifts = parser.add_argument_group("shifts")
    shifts.add_argument(
        "--condition",
        action="append",
        metavar="NAME",
        help="only this condition, or group such as noise (repeatable)",
    )
    shifts.add_argument(
        "--severity", action="append", type=int, metavar="N", help="only this severity (repeatable)"
    )
    shifts.add_argument("--frost-textures", type=Path, metavar="DIR", help="your own frost pictures")
    shifts.add_argument(
        "--format",
        choices=("png", "jpg"),
        default="png",
        help="png keeps the exact pixels; jpg (quality 95) is how the released -P sets were stored",
    )
    clean = parser.add_argument_group("clean set")
    clean.add_argument("--split", default="validation", help="part of a set of label pictures (validation)")
    clean.add_argument("--classes", type=Path, metavar="FILE", help="class list of a set of label pictures")
    clean.add_argument(
        "--task",
        choices=("semantic", "detection", "depth", "panoptic", "instance"),
        help="for a set that has several kinds of labels",
    )
    clean.add_argument("--partial", action="store_true", help="accept a part of COCO or ADE20K")
    work = parser.add_argument_group("work")
    work.add_argument("--workers", type=int, metavar="N", help="processes; all cores by default")
    work.add_argument(
        "--decode", action="store_true", help="decode every source image before the work begins"
    )
    work.add_argument(
        "--verify",
        action="store_true",
        help="compare every file that is there with its checksum; without it sizes, and some files of each condition",
    )


def run(args: argparse.Namespace) -> Ended:
    """Write the suite; 1 if some images could not be read."""
    from gramloop.data.checks import warn_of_rotated
    from gramloop.data.opening import ReadOptions, open_suite
    from gramloop.data.suites import SUITES, find_suite

    if not find_suite(args.suite).generated:
        made = ", ".join(name for name, suite in SUITES.items() if suite.generated)
        raise GramLoopError(
            f"the suite {args.suite!r} is not made from clean images; {made} and my-set-c are"
        )
    check: Check = "decode" if args.decode else "headers"
    opened = open_suite(
        args.suite,
        args.source,
        conditions=args.condition,
        severities=args.severity,
        origin="generated",
        options=ReadOptions(args.split, args.classes, args.task, check, args.partial),
        encoding=args.format,
        frost_textures=args.frost_textures,
    )
    if opened.clean is not None:
        warn_of_rotated(opened.clean, len(opened.clean))
        for remark in opened.clean.notes:
            note(f"note: {remark}")
    return _write(opened, args)


def _write(opened: OpenSuite, args: argparse.Namespace) -> Ended:
    from gramloop.data.writing import write_suite
    from gramloop.util.processes import worker_count
    from gramloop.util.progress import progress_bar

    assert opened.clean is not None
    start = time.perf_counter()
    with progress_bar(opened.suite.name, len(opened) * len(opened.clean)) as advance:
        outcome = write_suite(
            opened,
            args.target,
            workers=args.workers,
            verify=args.verify,
            on_chunk=lambda condition, images: advance(condition.key, images),
            on_finished=lambda condition: None if sys.stderr.isatty() or is_quiet() else note(condition.key),
        )
    seconds = time.perf_counter() - start
    cores = worker_count(args.workers)
    print(
        f"{len(outcome.finished)} conditions written to {args.target}, {len(outcome.skipped)} were there: "
        f"{outcome.made} images made, {outcome.found} found half-way; {seconds:.1f} s, "
        f"{outcome.made / seconds:.1f} images/s on {cores} processes"
    )
    for path in outcome.replaced[:10]:
        note(f"made again, since it was not what had been written: {path}")
    if len(outcome.replaced) > 10:
        note(f"… and {len(outcome.replaced) - 10} more")
    for failure in outcome.failures[:10]:
        print(f"failed: {failure}", file=sys.stderr)
    if outcome.failures:
        print(f"{len(outcome.failures)} images failed; put them right and run this again", file=sys.stderr)
    document = {
        "target": args.target,
        "finished": [str(each) for each in outcome.finished],
        "skipped": [str(each) for each in outcome.skipped],
        "made": outcome.made,
        "found": outcome.found,
        "replaced": [str(each) for each in outcome.replaced],
        "failures": [str(each) for each in outcome.failures],
        "notes_of_the_set": list(opened.clean.notes),
        "seconds": seconds,
    }
    return Ended(1 if outcome.failures else 0, lambda: document)
