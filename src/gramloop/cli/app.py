"""``gramloop app``: try images and open results in a browser."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gramloop.cli.help import examples
from gramloop.cli.model_options import (
    MODEL_HELP,
    TASKS,
    add_device_option,
    add_size_options,
    head_files,
    model_sizes,
)
from gramloop.errors import GramLoopError

if TYPE_CHECKING:
    from gramloop.app.settings import AppSettings, ModelSource


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.epilog = (
        "The page is for this machine alone unless --host says otherwise; then whoever reaches that address can upload "
        "images, and can open the folders below those of --results, and no others. Nothing is sent anywhere. Ctrl-C ends it."
        + examples(
            "gramloop app --open",
            "gramloop app --model hf:FOLDER --model my_models.py:make",
            "gramloop app --results out/demo",
        )
    )
    parser.add_argument(
        "--model", action="append", default=[], metavar="SPEC", help=f"{MODEL_HELP}; several times for a list"
    )
    parser.add_argument("--task", choices=tuple(TASKS), help="to begin with, where a model has several")
    parser.add_argument("--backbone", metavar="FILE", help="DINOv3 weights, or a transformers folder")
    parser.add_argument("--head", metavar="FILE", help="a head's weights: one more model of the list")
    parser.add_argument(
        "--source",
        type=Path,
        metavar="FILE",
        help="what ordinary images look like to the given model, for mitigations that need it",
    )
    add_device_option(parser)
    parser.add_argument(
        "--results",
        action="append",
        default=[],
        type=Path,
        metavar="DIR",
        help="results of gramloop evaluate to open",
    )
    place = parser.add_argument_group("address")
    place.add_argument("--host", default="127.0.0.1", metavar="NAME", help="(127.0.0.1: this machine alone)")
    place.add_argument("--port", type=int, metavar="N", help="(the first free one from 7860 on; 0 for any)")
    place.add_argument("--open", action="store_true", help="open the page in a browser")
    limits = parser.add_argument_group("limits")
    limits.add_argument("--max-upload", type=float, default=20, metavar="MB", help="of an image's file (20)")
    limits.add_argument(
        "--max-pixels", type=float, default=50, metavar="M", help="millions of pixels of an image (50)"
    )
    limits.add_argument(
        "--longest-side", type=int, default=1024, metavar="N", help="larger images are made so small (1024)"
    )
    limits.add_argument(
        "--cache", type=float, default=256, metavar="MB", help="memory for what was computed (256)"
    )
    add_size_options(parser.add_argument_group("size of the input, for --head"))


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    begin = time.perf_counter()
    settings = settings_of(args)
    from gramloop.app.server import serving
    from gramloop.util.progress import progress_bar

    with progress_bar("starting", None) as _:
        started = serving(settings, args.port)
        running = started.__enter__()
    try:
        print(f"{running.url}  (ready in {time.perf_counter() - begin:.1f} s; Ctrl-C ends it)", flush=True)
        if not settings.local:
            print("gramloop: note: others who reach this address can use the page", flush=True)
        if args.open:
            import webbrowser

            webbrowser.open(running.url)
        while running.thread.is_alive():
            running.thread.join(0.5)
        raise GramLoopError("the server ended by itself; the lines above say more")
    finally:
        started.__exit__(None, None, None)


def settings_of(args: argparse.Namespace) -> AppSettings:
    """The app that the options describe; every model is looked for, none is loaded."""
    from gramloop.app.settings import AppSettings, Limits

    if args.port is not None and not 0 <= args.port <= 65535:
        raise GramLoopError(f"--port is {args.port}; it is 0 to 65535")
    for name, value in (
        ("max-upload", args.max_upload),
        ("max-pixels", args.max_pixels),
        ("cache", args.cache),
    ):
        if not 0 < value < 1e6:
            raise GramLoopError(f"--{name} is {value:g}; it is above 0 and below a million")
    limits = Limits(
        upload_bytes=int(args.max_upload * 1e6),
        upload_pixels=int(args.max_pixels * 1e6),
        longest_side=args.longest_side,
        cache_bytes=int(args.cache * 1e6),
    )
    return AppSettings(tuple(_models(args)), tuple(args.results), args.host, args.device, limits)


def _models(args: argparse.Namespace) -> list[ModelSource]:
    """Those given, in their order, and the embedded one."""
    from gramloop.app.settings import ModelSource
    from gramloop.tasks.model_spec import model_files

    task = None if args.task is None else TASKS[args.task]
    sizes, found = model_sizes(args), []
    if args.source is not None and not args.source.is_file():
        raise GramLoopError(f"--source {args.source} is no file")
    if args.head is not None:
        found.append(ModelSource(Path(args.head).name, head_files(args), task, sizes, args.source))
    elif args.backbone is not None:
        raise GramLoopError("--head FILE is missing: a backbone alone predicts nothing")
    elif sizes:
        raise GramLoopError(
            f"--{next(iter(sizes)).replace('_', '-')} belongs to --head FILE, which is missing"
        )
    for spec in dict.fromkeys([*args.model, "tiny"]):
        known = None if spec == "tiny" else args.source  # the embedded model has its own
        found.append(ModelSource(spec, model_files(spec), task, calibration=known))
    return found
