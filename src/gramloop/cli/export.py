"""``gramloop export``: a model with its mitigation as one file, for torch alone or for onnxruntime."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gramloop.cli.help import examples
from gramloop.cli.model_options import MODEL_HELP, TASKS, add_size_options, head_files, model_sizes
from gramloop.cli.output import Ended
from gramloop.cli.replay_options import add_replay_options, mitigations_of, replay_of
from gramloop.errors import GramLoopError
from gramloop.replay.config import FIELDS

FEATURES = "features"
KEYS = {
    "file": "what was written, or shown",
    "format": "pt2 or onnx",
    "beside": "files with weights that it needs, where one cannot hold them",
    "difference": "the largest one to the model in torch, relative to the largest value; null with --show",
    "about": "what the file says of itself",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.epilog = (
        "The input is uint8 RGB (B, H, W, 3), normalised inside; a model of transformers or of your own takes float32 (B, 3, "
        "H, W), normalised. Without a mitigation the model is exported as it is. Replays, also adaptive ones, recentre and "
        "norms can be part of a file. It is compared with the model in torch, and not written where it differs by more than "
        "1e-4; it needs neither gramloop nor transformers."
        + examples(
            "gramloop export tiny --task segment --window 2 2 --adaptive length:4:6 --out replayed.onnx",
            "gramloop export tiny --task depth --method recentre:c=2 --calibration stats.safetensors --out depth.pt2",
            "gramloop export hf:FOLDER --task features --window 5 7 --out features.onnx",
            "gramloop export --show replayed.onnx",
        )
    )
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help=f"{MODEL_HELP}; with --task features a backbone"
    )
    parser.add_argument(
        "--show", type=Path, metavar="FILE", help="tell what an exported file is, and export nothing"
    )
    parser.add_argument("--task", choices=(*TASKS, FEATURES), help="needed unless the model has one alone")
    parser.add_argument("--out", type=Path, metavar="FILE", help="such as model.onnx or model.pt2")
    parser.add_argument("--format", choices=("pt2", "onnx"), help="where the ending of FILE does not say")
    parser.add_argument("--backbone", metavar="FILE", help="DINOv3 weights, or a transformers folder")
    parser.add_argument("--head", metavar="FILE", help="the head's weights; then MODEL is left out")
    parser.add_argument(
        "--verify", action="store_true", help="compare both files with the sha256 in their names"
    )
    shape = parser.add_argument_group("input")
    shape.add_argument("--height", type=int, metavar="H", help="of the image; as the model usually sees it")
    shape.add_argument("--width", type=int, metavar="W", help="likewise")
    shape.add_argument("--batch", type=int, default=1, metavar="B", help="images at once (1)")
    add_size_options(shape)
    mitigation = parser.add_argument_group("mitigation")
    mitigation.add_argument("--method", metavar="TEXT", help="such as recentre:c=2 or recentre:0.3+gramloop")
    mitigation.add_argument("--calibration", type=Path, metavar="FILE", help="what gramloop calibrate wrote")
    add_replay_options(mitigation)


def run(args: argparse.Namespace) -> Ended:
    """Write the file, or tell what one is."""
    if args.show is not None:
        return _show(args)
    if args.out is None:
        raise GramLoopError("--out FILE is missing: such as model.onnx or model.pt2")
    from gramloop.export.exporting import export_model, format_of

    format_of(args.out, args.format)  # a slip is told before weights are read
    wanted, stats = _mitigations(args)
    model, name = _model(args)
    made = export_model(
        model,
        args.out,
        format=args.format,
        mitigations=wanted,
        stats=stats,
        height=args.height,
        width=args.width,
        batch=args.batch,
        name=name,
    )
    print(made)
    document = {"file": made.path, "format": made.format, "beside": list(made.beside)}
    return Ended(0, lambda: {**document, "difference": made.difference, "about": vars(made.about)})


def _show(args: argparse.Namespace) -> Ended:
    if args.model is not None or args.out is not None:
        raise GramLoopError("--show tells what a file is, and exports nothing; leave out MODEL and --out")
    from gramloop.export.formats import read_about

    kind, about = read_about(args.show)
    print(about)
    return Ended(
        0,
        lambda: {"file": args.show, "format": kind, "beside": [], "difference": None, "about": vars(about)},
    )


def _mitigations(args: argparse.Namespace) -> tuple[Any, Any]:
    """What the options ask for, and the calibration statistics."""
    replayed = args.replay is not None or any(getattr(args, name) is not None for name in FIELDS)
    if args.method is not None and replayed:
        raise GramLoopError(
            "--method names all mitigations, a replay among them (recentre:0.3+replay:window=2-2); leave out the options of "
            "a replay"
        )
    if args.method is not None or not replayed:
        if args.calibration is not None and args.method is None:
            raise GramLoopError("--calibration belongs to --method, such as recentre:c=2")
        return args.method, args.calibration
    stored = mitigations_of(args)
    if stored is None:
        return replay_of(args), None
    return stored.stack, args.calibration or stored.read_stats()


def _model(args: argparse.Namespace) -> tuple[Any, str]:
    """The model that the options name, on the CPU, and what it is called in the file."""
    from gramloop.models.dinov2 import load_any_backbone
    from gramloop.tasks.loading import load_predictor
    from gramloop.tasks.model_spec import model_files

    if args.model is not None and (args.head or (args.backbone and args.task != FEATURES)):
        raise GramLoopError("MODEL is a whole model; leave it out with --backbone or --head")
    if args.task == FEATURES:
        spec = args.backbone or args.model
        if spec is None:
            raise GramLoopError("MODEL is missing: with --task features the file or folder of a backbone")
        file = next(iter(model_files(spec).values())) if spec.startswith("hf:") else spec
        return load_any_backbone(file, verify=args.verify), _named(spec)
    if args.head is None and args.model is None:
        raise GramLoopError(
            "MODEL is missing, or --head FILE with --backbone FILE; --show FILE tells what a file is"
        )
    files = head_files(args) if args.model is None else model_files(args.model)
    if args.task is None and "folder" in files:
        raise GramLoopError(f"--task is missing: {', '.join((*TASKS, FEATURES))}")
    task = None if args.task is None else TASKS[args.task]
    named = " on ".join(_named(part) for part in (args.model or args.head, args.backbone) if part)
    return load_predictor(task, files, model_sizes(args), "cpu", verify=args.verify), named


def _named(spec: str) -> str:
    """The last part of a path: where a file lay is nobody's business who is given the export."""
    return spec.removeprefix("hf:").rstrip("/").rpartition("/")[2]
