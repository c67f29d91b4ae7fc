"""``gramloop corrupt`` and ``gramloop scenes``: images written to disk, shifted or drawn."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gramloop.cli.options import MANY, CommandResult, command, group, option
from gramloop.cli.output import note, print_failures
from gramloop.cli.shared import has_photographs_alone
from gramloop.errors import GramLoopError

if TYPE_CHECKING:
    from gramloop.data.opening import OpenSuite


@dataclass(frozen=True, kw_only=True)
class ShiftOptions:
    """Which shifts."""

    condition: list[str] = option(
        "only this condition, or group such as noise; can be repeated", [], metavar="NAME"
    )
    severity: list[int] = option("only this severity; can be repeated", [], metavar="N")
    frost_textures: Path | None = option("your own frost pictures", None, metavar="DIR")
    format: Literal["png", "jpg"] = option(
        "png keeps the exact pixels; jpg (quality 95) is how the released -P sets were stored (png)", "png"
    )


@dataclass(frozen=True, kw_only=True)
class CleanOptions:
    """How the clean set is read."""

    split: str = option("part of a set of label pictures (validation)", "validation")
    classes: Path | None = option("class list of a set of label pictures", None, metavar="FILE")
    task: str | None = option("for a set that has several kinds of labels", None, metavar="TASK")
    partial: bool = option("accept a part of COCO or ADE20K", False)


@dataclass(frozen=True, kw_only=True)
class CorruptOptions:
    """From where, to where, which suite."""

    source: Path = option("folder of the clean set, or of photographs", metavar="SRC", positional=True)
    target: Path = option("folder to write to; the same command resumes", metavar="DST", positional=True)
    suite: str = option("coco-c, coco-p, ade20k-c, ade20k-p, or my-set-c, my-set-p", metavar="NAME")
    shifts: ShiftOptions = group(ShiftOptions, "shifts")
    clean: CleanOptions = group(CleanOptions, "clean set")
    workers: int | None = option("processes (all cores)", None, metavar="N", limits=(1, 4096))


@command(
    CorruptOptions,
    "Stop it whenever you like: the same command resumes. The exit code is 1 where images could not be read.",
    [
        "gramloop corrupt coco coco-noise --suite my-coco-c --condition noise --severity 3",
        "gramloop corrupt photos photos-fog --suite photos-c --condition fog",
    ],
    {
        "target": "the folder",
        "finished": "conditions that were written",
        "skipped": "conditions that were there",
        "made": "images that were made",
        "found": "images that were there, of conditions that were not finished",
        "failures": "images that could not be read, with the reason",
        "notes_of_the_set": "what is odd about the clean set",
        "seconds": "of the work",
    },
)
def corrupt_command(options: CorruptOptions) -> CommandResult:
    """Write the suite; 1 if some images could not be read."""
    from gramloop.data.opening import ReadOptions, open_suite
    from gramloop.data.suites import SUITES, find_suite

    if not find_suite(options.suite).generated:
        made = ", ".join(name for name, suite in SUITES.items() if suite.generated)
        raise GramLoopError(
            f"the suite {options.suite!r} is not made from clean images; {made} and my-set-c are"
        )
    opened = open_suite(
        options.suite,
        options.source,
        conditions=options.shifts.condition or None,
        severities=options.shifts.severity or None,
        origin="generated",
        options=ReadOptions(
            options.clean.split,
            options.clean.classes,
            options.clean.task,
            options.clean.partial,
            labels=not has_photographs_alone(options.source),
        ),
        encoding=options.shifts.format,
        frost_textures=options.shifts.frost_textures,
    )
    if opened.clean is not None:
        for remark in opened.clean.notes:
            note(f"note: {remark}")
    return _write(opened, options)


def _write(opened: OpenSuite, options: CorruptOptions) -> CommandResult:
    from gramloop.data.writing import write_suite
    from gramloop.util.progress import progress_bar

    assert opened.clean is not None
    start = time.perf_counter()
    with progress_bar(opened.suite.name, len(opened) * len(opened.clean)) as advance:
        outcome = write_suite(
            opened,
            options.target,
            workers=options.workers,
            on_chunk=lambda condition, images: advance(condition.key, images),
            on_finished=lambda condition: None if sys.stderr.isatty() else note(condition.key),
        )
    seconds = time.perf_counter() - start
    finished, skipped = len(outcome.finished), len(outcome.skipped)
    print(f"{options.target}: {finished} conditions written, {skipped} already there")
    speed = f"{seconds:.1f} s, {outcome.made / seconds:.1f} images/s"
    print(f"{outcome.made} images written, {outcome.found} already there; {speed}")
    named = ("finished", "skipped", "failures")
    listed = {name: [str(each) for each in getattr(outcome, name)] for name in named}
    failed = [f"failed: {each}" for each in listed["failures"]]
    print_failures(f"{len(failed)} images failed; repair them and run this again:", failed)
    counted = {"made": outcome.made, "found": outcome.found, "seconds": seconds}
    about = {"target": options.target, "notes_of_the_set": list(opened.clean.notes)}
    return 1 if failed else 0, {**about, **listed, **counted}


@dataclass(frozen=True, kw_only=True)
class ScenesOptions:
    """What to draw."""

    folder: Path = option("folder to write to; the same command resumes", metavar="DIR", positional=True)
    count: int = option("how many scenes", metavar="N", limits=(1, MANY))
    start: int = option("index of the first (0)", 0, metavar="I")
    size: int = option("width and height (192)", 192, metavar="PX")
    seed: int = option("another endless set (0)", 0, metavar="S")
    split: str = option("val, or train: what the embedded model was trained on (val)", "val")
    workers: int | None = option("processes (all cores)", None, metavar="N", limits=(1, 4096))


@command(
    ScenesOptions,
    "The same numbers draw the same scenes everywhere.",
    [
        "gramloop scenes out/scenes --count 20",
    ],
    {"folder": "where they are", "scenes": "how many"},
)
def scenes_command(options: ScenesOptions) -> CommandResult:
    """Write the scenes."""
    from gramloop.data.scenes.files import SceneFiles, write_scenes
    from gramloop.util.progress import progress_bar

    wanted = SceneFiles(options.count, options.start, options.size, options.split, options.seed)
    with progress_bar("drawing scenes", options.count) as advance:
        write_scenes(options.folder, wanted, workers=options.workers, on_scenes=lambda n: advance(steps=n))
    print(f"{options.folder}: {options.count} scenes")
    print("Label pictures, COCO boxes and masks, COCO panoptic, and depth in millimetres.")
    return 0, {"folder": options.folder, "scenes": options.count}
