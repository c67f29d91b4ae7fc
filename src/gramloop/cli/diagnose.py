"""``gramloop diagnose``: what a replay does in an image, as a figure and as numbers."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gramloop.cli.each_image import do_each_image
from gramloop.cli.help import examples
from gramloop.cli.model_options import MODEL_HELP, TASKS, add_device_option, head_files
from gramloop.cli.output import Ended
from gramloop.cli.replay_options import add_replay_options, replay_of
from gramloop.errors import GramLoopError

if TYPE_CHECKING:
    from gramloop.data.shifted import Shift
    from gramloop.tasks.diagnosis import Diagnosis
    from gramloop.tasks.images import RGB
    from gramloop.tasks.outputs import ImageFile
    from gramloop.tasks.views import View

KEYS = {
    "out": "the folder",
    "images": "those that were done, each as in its .json: image, model, replay, caption, conditions",
    "failures": "those that were not: image, reason",
}
VERSION = "diagnosis"  # in the names of the files that are written


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.epilog = (
        "For each image DIR gets NAME.diagnosis.png and .pdf (input, drift of the last proposal, gate, drift of "
        "the accepted state, all drift on one scale) and .json with the numbers behind it. An image that cannot "
        "be done costs one sentence and the exit code 2."
        + examples(
            "gramloop diagnose photo.jpg --shift impulse_noise --out out/diagnosis",
            "gramloop diagnose photos --backbone FOLDER --shift weather --severity 3 --window 21 23 --out out/diagnosis",
        )
    )
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="files, folders or globs")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder for the results")
    model = parser.add_argument_group("model")
    model.add_argument("--model", metavar="SPEC", help=MODEL_HELP)
    model.add_argument(
        "--backbone", metavar="FILE", help="DINOv3 or DINOv2 weights, or any transformers folder with a ViT"
    )
    model.add_argument("--head", metavar="FILE", help="look as this head's task does, with its windows")
    model.add_argument("--task", choices=tuple(TASKS), help="of the head; depth is the embedded model's")
    add_device_option(model)
    model.add_argument(
        "--short-side",
        type=int,
        metavar="N",
        help="of the image (192 for tiny, else 512; the task's with a head)",
    )
    shift = parser.add_argument_group("shift")
    shift.add_argument(
        "--shift",
        metavar="NAME",
        help="corruption, perturbation or group, such as impulse_noise, contrast-p or weather",
    )
    shift.add_argument("--severity", type=int, nargs="+", metavar="N", help="one or more (1 3 5)")
    add_replay_options(parser.add_argument_group("replay"))


def run(args: argparse.Namespace) -> Ended:
    """Diagnose every image; 2 if some could not be done."""
    from gramloop.tasks.outputs import find_images
    from gramloop.util.files import make_folder

    shifts = _shifts(args.shift, args.severity)
    files = [
        file for file in find_images(args.images, args.out) if not file.path.name.endswith(f".{VERSION}.png")
    ]
    view = _view(args)
    make_folder(args.out)
    done: list[dict[str, Any]] = []
    failures = do_each_image(files, "diagnosing", lambda file: done.append(_write(view, file, shifts)))
    if failures:
        print(f"{len(failures)} of {len(files)} images could not be done", file=sys.stderr)
    document = {"out": args.out, "images": done, "failures": failures}
    return Ended(2 if failures else 0, lambda: document)


def _write(view: View, file: ImageFile, shifts: Sequence[Shift]) -> dict[str, Any]:
    """Diagnose an image under all shifts; what its .json holds."""
    from gramloop.report.figures.diagnostic import Diagnosed, diagnostic
    from gramloop.tasks.images import read_image
    from gramloop.util.files import atomic_write

    pixels = read_image(file.path)
    rows, entries, config = [], [], None
    for shift, shown in _versions(pixels, file, shifts):
        seen, found = view.diagnose(shown)
        severity = 0 if shift is None else shift.condition.severity
        label = "clean" if shift is None else f"{shift.condition.name.replace('_', ' ')} {severity}"
        rows.append(Diagnosed.of(found, label if shifts else file.path.name, seen))
        entries.append({"shift": shift and shift.condition.name, "severity": severity, **found.as_json()})
        config = found.replay
        print(_line(file.path.name if not shifts else f"{file.path.name}, {label}", found))
    assert config is not None
    drawn = diagnostic(rows, f"Diagnostic of {file.path.name}")
    content = {
        "image": file.path.name,
        "model": view.name,
        "replay": config.as_json(),
        "caption": drawn.caption,
        "conditions": entries,
    }
    atomic_write(file.result(VERSION, ".json"), (json.dumps(content, indent=1) + "\n").encode())
    atomic_write(file.result(VERSION, ".pdf"), drawn.pdf())
    atomic_write(file.result(VERSION, ".png"), drawn.png())
    return content


def _line(name: str, found: Diagnosis) -> str:
    from gramloop.util.plotting import percent_of

    last = found.as_json()
    step = last["replays"][-1]
    left = last["share_of_drift_left"]
    after = (
        ""
        if left is None
        else f" → {last['post_drift']['mean']:.2e} after the gate ({percent_of(left, 1.0)})"
    )
    return (
        f"{name}: drift {step['drift']['mean']:.2e}{after}, mean gate {step['mean_gate']:.2f}, "
        f"{last['blocks']} blocks, {last['multiplier']:.2f} × ordinary"
    )


def _versions(pixels: RGB, file: ImageFile, shifts: Sequence[Shift]) -> Iterator[tuple[Shift | None, RGB]]:
    from gramloop.data.records import Record

    yield None, pixels
    record = Record(file.path.stem, file.path, file.path.name, pixels.shape[0], pixels.shape[1])
    for shift in shifts:
        yield shift, shift.pixels(pixels, record)


def _shifts(name: str | None, severities: Sequence[int] | None) -> list[Shift]:
    """The shift at each severity; a name that both kinds have is the corruption, unless it ends with -p."""
    if name is None:
        if severities:
            raise GramLoopError("--severity belongs to --shift NAME, which is missing")
        return []
    from gramloop.data.shifted import Shift
    from gramloop.data.suites import find_suite
    from gramloop.shifts.corruptions import CORRUPTION_GROUPS as CORRUPTED
    from gramloop.shifts.perturbations import PERTURBATION_GROUPS as PERTURBED
    from gramloop.shifts.perturbations import PERTURBATIONS

    perturbed, corrupted = (*PERTURBATIONS, *PERTURBED), (*CORRUPTED["all"], *CORRUPTED)
    known = {
        **{each: ("p", each) for each in perturbed},
        **{each: ("c", each) for each in corrupted},
        **{f"{each}-p": ("p", each) for each in perturbed},
        **{f"{each}-c": ("c", each) for each in corrupted},
    }
    if name not in known:
        listed = ", ".join(each for each in known if each[-2:] not in ("-c", "-p"))
        raise GramLoopError(f"there is no shift {name!r}; there are {listed}")
    kind, condition = known[name]
    suite = find_suite(f"image-{kind}")
    chosen = suite.select([condition], severities or (1, 3, 5))
    return [Shift(suite.name, suite.kind, each) for each in chosen]


def _view(args: argparse.Namespace) -> View:
    """The model that the options name."""
    from gramloop.models.tiny import WEIGHTS, suggested_replay
    from gramloop.tasks.loading import load_predictor
    from gramloop.tasks.model_spec import model_files
    from gramloop.tasks.views import backbone_view, predictor_view, tiny_view
    from gramloop.util.device import choose_device

    if args.model is not None and (args.backbone or args.head):
        raise GramLoopError("--model is a whole model; leave it out with --backbone or --head")
    if args.task == "depth" and args.head is None and args.backbone is None and args.model in (None, "tiny"):
        shown = {} if args.short_side is None else {"short_side": args.short_side}
        estimator = load_predictor("depth", {"folder": WEIGHTS}, shown, choose_device(args.device))
        return predictor_view("tiny", estimator, replay_of(args, suggested_replay()))
    if args.task is not None and args.head is None:
        raise GramLoopError(f"--task {args.task} needs the weights of its head: --head FILE is missing")
    device, side = choose_device(args.device), args.short_side
    if args.head is not None:
        from gramloop.tasks.heads import head_task

        task = head_task(args.head, None if args.task is None else TASKS[args.task])
        whole = {"mode": "whole"} if task == "semantic" else {}
        named = "side" if task in ("panoptic", "instance") else "short_side"
        sizes = {} if side is None else {named: side, **whole}
        predictor = load_predictor(task, head_files(args), sizes, device)
        return predictor_view(Path(args.head).name, predictor, replay_of(args))
    if args.backbone is not None:
        return backbone_view(Path(args.backbone), replay_of(args), device, side)
    if args.model in (None, "tiny"):
        return tiny_view("tiny", WEIGHTS, replay_of(args, suggested_replay()), device, side)
    files = model_files(args.model)
    if "folder" in files:
        return tiny_view(args.model, files["folder"], replay_of(args), device, side)
    sizes = {} if side is None else {"short_side": side}
    return predictor_view(args.model, load_predictor(None, files, sizes, device), replay_of(args))
