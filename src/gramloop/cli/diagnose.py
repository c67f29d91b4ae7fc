"""``gramloop diagnose``: what a replay does in an image, as a figure and as numbers."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gramloop.cli.images import each_image
from gramloop.cli.options import CommandResult, command
from gramloop.cli.output import note_embedded
from gramloop.errors import GramLoopError
from gramloop.tasks.options import ModelOptions
from gramloop.util.options import group, option

if TYPE_CHECKING:
    from gramloop.data.records import Shift
    from gramloop.tasks.diagnosis import DiagnoseImage
    from gramloop.tasks.images import ImageFile

_VERSION = "diagnosis"  # in the names of the files that are written


@dataclass(frozen=True, kw_only=True)
class DiagnoseOptions:
    """Which images, under which shift, with which replay."""

    images: list[str] = option("files, folders or globs", metavar="IMAGE", positional=True)
    out: Path = option("folder for the results", metavar="DIR")
    shift: str | None = option(
        "corruption, perturbation or group, such as impulse_noise, contrast-p or weather",
        None,
        metavar="NAME",
    )
    severity: list[int] = option("one or more (1 3 5)", [], metavar="N", several=True)
    method: str = option(
        "a replay: gramloop, replay:window=5-7,replays=3, or a file of gramloop tune (gramloop)",
        "gramloop",
        metavar="TEXT",
    )
    model: ModelOptions = group(ModelOptions, "model")


@command(
    DiagnoseOptions,
    "For each image DIR gets NAME.diagnosis.png and .pdf (input, drift of the last proposal, gate, drift of the "
    "accepted state, all drift on one scale) and .json with the numbers behind it. The exit code is 1 where an image "
    "failed.",
    [
        "gramloop diagnose photo.jpg --shift impulse_noise --out out/diagnosis",
        "gramloop diagnose photos --model hf:FOLDER --shift fog --severity 3 --method replay:window=3-4 --out out/diagnosis",
    ],
)
def diagnose_command(options: DiagnoseOptions) -> CommandResult:
    """Diagnose every image; 1 if some failed."""
    from gramloop.tasks.images import find_images
    from gramloop.util.files import make_folder

    shifts = _shifts(options.shift, options.severity)
    files = find_images(options.images, options.out)
    note_embedded(options.model, [file.path for file in files])
    diagnose_image = _model(options)
    make_folder(options.out)
    done: list[dict[str, Any]] = []
    work = partial(_write, options.model.name, diagnose_image, shifts, done)
    failures = each_image(files, "diagnosing", work)
    if failures:
        print(f"{len(failures)} of {len(files)} images failed", file=sys.stderr)
    return 1 if failures else 0, {"out": options.out, "images": done, "failures": failures}


def _write(
    name: str,
    diagnose_image: DiagnoseImage,
    shifts: Sequence[Shift],
    done: list[dict[str, Any]],
    file: ImageFile,
) -> None:
    """Diagnose an image under all shifts; what its .json holds is appended."""
    from gramloop.data.records import Record
    from gramloop.report.figures.diagnostic import Diagnosed, diagnostic
    from gramloop.tasks.images import read_image
    from gramloop.util.files import atomic_write

    pixels = read_image(file.path)
    record = Record(file.path.stem, file.path, file.path.name, *pixels.shape[:2])
    rows, entries, config = [], [], {}
    print(file.path.name)
    for shift in (None, *shifts):
        seen, found = diagnose_image(pixels if shift is None else shift.pixels(pixels, record))
        severity = 0 if shift is None else shift.condition.severity
        label = "clean" if shift is None else f"{shift.condition.name.replace('_', ' ')} {severity}"
        rows.append(Diagnosed.of(found, label if shifts else file.path.name, seen))
        entries.append({"shift": shift and shift.condition.name, "severity": severity, **found.as_json()})
        config = found.replay.as_json()
        print(_line(label, entries[-1]))
    drawn = diagnostic(rows, f"Diagnostic of {file.path.name}")
    about = {"image": file.path.name, "model": name, "replay": config, "caption": drawn.caption}
    content = {**about, "conditions": entries}
    atomic_write(file.result(_VERSION, ".json"), (json.dumps(content, indent=1) + "\n").encode())
    atomic_write(file.result(_VERSION, ".pdf"), drawn.pdf())
    atomic_write(file.result(_VERSION, ".png"), drawn.png())
    done.append(content)


def _line(label: str, found: dict[str, Any]) -> str:
    from gramloop.util.plotting import percent_of

    step, left, after = found["replays"][-1], found["share_of_drift_left"], ""
    if left is not None:
        after = f" → {found['post_drift']['mean']:.2e} ({percent_of(left, 1.0)})"
    cost = f"{found['blocks']} blocks ({found['multiplier']:.2f}×)"
    return f"  {label}: drift {step['drift']['mean']:.2e}{after}, gate {step['mean_gate']:.2f}, {cost}"


def _shifts(name: str | None, severities: Sequence[int]) -> list[Shift]:
    """The shift at each severity; a name that both kinds have is the corruption, unless it ends with -p."""
    if name is None:
        if severities:
            raise GramLoopError("--severity belongs to --shift NAME, which is missing")
        return []
    import numpy as np

    from gramloop.data.records import Record, Shift
    from gramloop.data.suites import find_suite
    from gramloop.shifts import CORRUPTIONS, PERTURBATIONS

    moved = name.endswith("-p") or (name in PERTURBATIONS and name not in CORRUPTIONS)
    suite = find_suite("image-p" if moved else "image-c")
    chosen = suite.select([name.removesuffix(f"-{suite.kind}")], severities or (1, 3, 5))
    shifts = [Shift(suite.name, suite.kind, each) for each in chosen]
    for shift in shifts:  # a severity that a shift does not have is refused before any image is read
        shift.pixels(np.zeros((64, 64, 3), np.uint8), Record("blank", Path(), "blank", 64, 64))
    return shifts


def _model(options: DiagnoseOptions) -> DiagnoseImage:
    """What diagnoses an image with the model that the options name."""
    from gramloop.mitigations.stack import read_stack, replay_alone
    from gramloop.tasks.diagnosis import diagnose_with, diagnose_with_embedded
    from gramloop.util.device import choose_device

    replay = replay_alone(read_stack(options.method)[0])
    if replay is None or not replay.replays:
        raise GramLoopError(
            f"--method {options.method} is no replay alone of 1 or more passes, and only that has drift and gate"
        )
    model, files = options.model, options.model.files()
    if "folder" in files and model.task is None:
        device = choose_device(model.device)
        return diagnose_with_embedded(files["folder"], replay, device, model.short_side)
    return diagnose_with(model.load(), replay)
