"""``gramloop corrupt``, ``scenes`` and ``list``: images written to disk, shifted or drawn, and what can be named."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gramloop.cli.options import CommandResult, command
from gramloop.cli.output import note, print_failures
from gramloop.errors import GramLoopError
from gramloop.evaluate.options import ReadingOptions, ShiftOptions
from gramloop.util.options import MANY, group, option
from gramloop.util.progress import progress_bar

if TYPE_CHECKING:
    from gramloop.data.opening import OpenSuite


@dataclass(frozen=True, kw_only=True)
class CorruptOptions:
    """From where, to where, which suite."""

    source: Path = option("folder of the clean set, or of photographs", metavar="SRC", positional=True)
    target: Path = option("folder to write to; the same command resumes", metavar="DST", positional=True)
    suite: str = option("coco-c, coco-p, ade20k-c, ade20k-p, or my-set-c, my-set-p", metavar="NAME")
    task: str | None = option("for a set that has several kinds of labels", None, metavar="TASK")
    shifts: ShiftOptions = group(ShiftOptions, "shifts")
    images: ReadingOptions = group(ReadingOptions, "images")
    workers: int | None = option("processes (all cores)", None, metavar="N", limits=(1, 4096))


@command(
    CorruptOptions,
    "Stop it whenever you like: the same command resumes. The exit code is 1 where images could not be read.",
    [
        "gramloop corrupt coco coco-noise --suite my-coco-c --condition noise --severity 3",
        "gramloop corrupt photos photos-fog --suite photos-c --condition fog",
    ],
)
def corrupt_command(options: CorruptOptions) -> CommandResult:
    """Write the suite; 1 if some images could not be read."""
    from gramloop.data.opening import ReadOptions, open_suite
    from gramloop.data.suites import SUITES, find_suite
    from gramloop.tasks.images import has_photographs_alone

    if not find_suite(options.suite).generated:
        made = ", ".join(name for name, suite in SUITES.items() if suite.generated)
        raise GramLoopError(
            f"the suite {options.suite!r} is not made from clean images; {made} and my-set-c are"
        )
    opened = open_suite(
        options.suite,
        options.source,
        conditions=options.shifts.conditions or None,
        severities=options.shifts.severities or None,
        origin="generated",
        options=ReadOptions(
            options.images.split,
            options.images.classes,
            options.task,
            options.images.partial,
            labels=not has_photographs_alone(options.source),
        ),
        encoding=options.images.encoding,
        frost_textures=options.images.frost_textures,
    )
    if opened.clean is not None:
        for remark in opened.clean.notes:
            note(f"note: {remark}")
    return _write(opened, options)


def _write(opened: OpenSuite, options: CorruptOptions) -> CommandResult:
    from gramloop.data.writing import write_suite

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
    conditions = f"{finished} condition{'s' * (finished != 1)}"
    print(f"{options.target}: {conditions} written, {skipped} already there")
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

    folder: Path = option("new folder to write to", metavar="DIR", positional=True)
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
)
def scenes_command(options: ScenesOptions) -> CommandResult:
    """Write the scenes."""
    from gramloop.data.scenes import SceneFiles, write_scenes

    wanted = SceneFiles(options.count, options.start, options.size, options.split, options.seed)
    with progress_bar("drawing scenes", options.count) as advance:
        write_scenes(options.folder, wanted, workers=options.workers, on_scenes=lambda n: advance(steps=n))
    print(f"{options.folder}: {options.count} scenes")
    print("Label pictures, COCO boxes and masks, COCO panoptic, and depth in millimetres.")
    return 0, {"folder": options.folder, "scenes": options.count}


@dataclass(frozen=True, kw_only=True)
class ListOptions:
    """What to list."""

    what: Literal["models", "suites", "shifts", "methods", "hosts"] = option("what to list", positional=True)


@command(
    ListOptions,
    "A hosts entry is a family of ViTs in which a replay finds the blocks without a description.",
    [
        "gramloop list methods",
        "gramloop list shifts --json",
    ],
)
def list_command(options: ListOptions) -> CommandResult:
    """Print a name and its meaning in each line."""
    entries = list(_entries(options.what))
    width = max(len(name) for name, _ in entries) + 2
    for name, meaning in entries:
        first, *more = textwrap.wrap(meaning, 80 - width, break_long_words=False) or [""]
        print(f"{name:{width}}{first}".rstrip(), *(" " * width + line for line in more), sep="\n")
    return 0, {"entries": [{"name": name, "meaning": meaning} for name, meaning in entries]}


def _entries(what: str) -> Iterator[tuple[str, str]]:
    """Names and what they mean."""
    if what == "models":
        from gramloop.tasks.loading import FORMS

        yield from FORMS
    elif what == "suites":
        from gramloop.data.suites import SUITES

        yield from ((name, f"conditions: {len(suite.conditions)}") for name, suite in SUITES.items())
        yield "scenes, scenes-c, scenes-p", "the same over procedural scenes, with nothing to download"
        yield (
            "NAME, NAME-c, NAME-p",
            "the same over a set of your own; with --truth clean, over any photographs",
        )
    elif what == "shifts":
        from gramloop.data.suites import SHIFT_GROUPS
        from gramloop.shifts import CORRUPTIONS, EXTRA_CORRUPTIONS, PERTURBATIONS

        yield from ((name, "corruption") for name in CORRUPTIONS)
        yield from ((name, "corruption, in no suite but by name") for name in EXTRA_CORRUPTIONS)
        yield from ((name, "perturbation") for name in PERTURBATIONS)
        for kind, groups in SHIFT_GROUPS.items():
            yield from (
                (name, f"group of -{kind} suites: {', '.join(each)}") for name, each in groups.items()
            )
    elif what == "methods":
        from gramloop.evaluate.methods import BASELINE
        from gramloop.mitigations.stack import KINDS, REPLAYS
        from gramloop.replay.config import replay_text

        yield BASELINE, "the model as it is"
        for name, replay in REPLAYS.items():
            yield name, f"a replay: {replay_text(replay) or 'as published'}"
        others = {name: kind.__doc__ or "" for name, kind in KINDS.items() if name not in REPLAYS}
        yield from ((name, about.splitlines()[0]) for name, about in others.items())
    else:
        from gramloop.replay.vit import FAMILIES

        yield from ((name, f"blocks at {family.blocks}") for name, family in FAMILIES.items())
        yield "any other ViT", "by blocks=, norm= and prefix= of gramloop.attach"
