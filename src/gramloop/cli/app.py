"""``gramloop app``: try images and open results in a browser."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gramloop.cli.options import option
from gramloop.cli.output import Ended
from gramloop.cli.shared import EXAMPLES, MODEL_HELP
from gramloop.errors import GramLoopError

if TYPE_CHECKING:
    from gramloop.app.settings import AppSettings, ModelSource


EPILOG = (
    "The page is for this machine alone unless --host says otherwise; then everyone who reaches that address can upload "
    "images, and can open the folders below those of --results, and no others. Nothing is sent anywhere. Ctrl-C ends it."
    f"{EXAMPLES}  gramloop app --open\n"
    "  gramloop app --model hf:FOLDER --model my_models.py:make\n"
    "  gramloop app --results out/demo"
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Which models and results, and where the page is served."""

    model: list[str] = option(f"{MODEL_HELP}; can be repeated", [], metavar="SPEC")
    task: str | None = option("to begin with, where a model has several", None, metavar="TASK")
    backbone: str | None = option("DINOv3 weights, or a transformers folder", None, metavar="FILE")
    head: str | None = option("a head's weights: one more model of the list", None, metavar="FILE")
    calibration: Path | None = option(
        "statistics of in-distribution images for the given model, as gramloop calibrate writes them",
        None,
        metavar="FILE",
    )
    device: str | None = option("cpu, cuda, cuda:1, mps or auto (auto)", None, metavar="NAME")
    trust_remote_code: bool = option(
        "let hf:FOLDER run Python code that it holds; read the code first", False
    )
    results: list[Path] = option(
        "results of evaluate and tune to open, or a folder of them", [], metavar="DIR"
    )
    host: str = option("address to serve on (127.0.0.1: this machine alone)", "127.0.0.1", metavar="NAME")
    port: int | None = option(
        "the first free one from 7860 on; 0 for any", None, metavar="N", limits=(0, 65535)
    )
    open: bool = option("open the page in a browser", False)


def run(options: Options) -> Ended:
    """Serve until Ctrl-C."""
    begin = time.perf_counter()
    settings = settings_of(options)
    from gramloop.app.server import serving
    from gramloop.util.progress import progress_bar

    with progress_bar("starting", None) as _:
        started = serving(settings, options.port)
        running = started.__enter__()
    try:
        print(f"{running.url}  (ready in {time.perf_counter() - begin:.1f} s; Ctrl-C ends it)", flush=True)
        if not settings.local:
            print("gramloop: note: others who reach this address can use the page", flush=True)
        if options.open:
            import webbrowser

            webbrowser.open(running.url)
        while running.thread.is_alive():
            running.thread.join(0.5)
        raise GramLoopError("the server ended; the lines above say more")
    finally:
        started.__exit__(None, None, None)


def settings_of(options: Options) -> AppSettings:
    """The app that the options describe; every model is looked for, none is loaded."""
    from gramloop.app.settings import AppSettings

    return AppSettings(tuple(_models(options)), tuple(options.results), options.host, options.device)


def _models(options: Options) -> list[ModelSource]:
    """Those given, in their order, and the embedded one."""
    from gramloop.app.settings import ModelSource
    from gramloop.tasks.loading import model_files

    found, stats = [], options.calibration
    if stats is not None and not stats.is_file():
        raise GramLoopError(f"--calibration {stats} is no file")
    if options.head is not None:
        files = {"head": options.head, **({"backbone": options.backbone} if options.backbone else {})}
        found.append(ModelSource(Path(options.head).name, files, options.task, {}, stats))
    elif options.backbone is not None:
        raise GramLoopError("--head FILE is missing: a backbone alone predicts nothing")
    for spec in dict.fromkeys([*options.model, "tiny"]):
        known = None if spec == "tiny" else stats  # the embedded model has its own
        trusted = options.trust_remote_code and spec.startswith("hf:")
        found.append(ModelSource(spec, model_files(spec, trusted), options.task, {}, known))
    return found
