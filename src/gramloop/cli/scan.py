"""``gramloop scan``: where does replay act gently on this backbone? Every window, without labels."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gramloop.cli.help import examples
from gramloop.cli.model_options import add_device_option
from gramloop.cli.output import Ended
from gramloop.errors import GramLoopError

if TYPE_CHECKING:
    import numpy as np
    from rich.table import Table

    from gramloop.data.suites import Condition
    from gramloop.tune.scan.scanning import Scan

KEYS = {
    "host": "the backbone",
    "depth": "its blocks",
    "replays": "of each window",
    "conditions": "clean and the shifts",
    "score": "what the ranking goes by",
    "ranking": "the first windows, the best first: window, rank, scores, cost and medians",
    "files": "everything that was measured, and a map of the windows",
    "seconds": "of the scan",
}
_EMBEDDED = "tiny"
_PATCHES = 24  # along the short side: 192, 336 and 384 pixels for patches of 8, 14 and 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.epilog = (
        "DIR gets scan.json with everything that was measured and scan.png, a map of the windows. "
        "Without images, tiny looks at drawn scenes."
        + examples(
            "gramloop scan tiny --out out/scan",
            "gramloop scan FOLDER photos --shift noise --shift fog:5 --out out/scan",
        )
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help=f"{_EMBEDDED}, a file of backbone weights, a transformers folder, or a whole model as --model of evaluate",
    )
    parser.add_argument(
        "images", nargs="*", metavar="IMAGE", help="files, folders or globs; a few are enough"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("out/scan"), metavar="DIR", help="folder for the results (out/scan)"
    )
    windows = parser.add_argument_group("windows")
    windows.add_argument(
        "--max-length", type=int, default=4, metavar="N", help="blocks in the longest window (4)"
    )
    windows.add_argument(
        "--replays", type=int, default=3, metavar="K", help="ungated replays of each window (3)"
    )
    windows.add_argument("--score", metavar="NAME", help="what the ranking goes by; see docs/scan.md")
    windows.add_argument("--top", type=int, default=10, metavar="N", help="windows in the printed table (10)")
    shown = parser.add_argument_group("images")
    shown.add_argument(
        "--shift",
        action="append",
        metavar="NAME[:SEVERITY]",
        help="a corruption or a group such as noise (severity 3), repeatable; five of them by default; none: clean images alone",
    )
    shown.add_argument("--limit", type=int, default=8, metavar="N", help="look at the first N images (8)")
    shown.add_argument("--short-side", type=int, metavar="PX", help=f"of the input ({_PATCHES} patches)")
    work = parser.add_argument_group("work")
    work.add_argument(
        "--chunk", type=int, metavar="N", help="windows in memory at once (as many as fit 1 GB)"
    )
    add_device_option(work)


def run(args: argparse.Namespace) -> Ended:
    """Scan, print the shortlist, write JSON and map."""
    from rich.console import Console

    from gramloop.tune.scan.files import to_json
    from gramloop.tune.scan.map import draw_map
    from gramloop.tune.scan.scores import DEFAULT, find_score
    from gramloop.util.files import atomic_write, make_folder

    score = args.score or DEFAULT
    find_score(score)
    for name in ("top", "limit"):
        if getattr(args, name) < 1:
            raise GramLoopError(f"--{name} is {getattr(args, name)}; it is 1 or more")
    shifts = _shifts(args.shift)
    if not shifts and score.startswith(("shifted", "steady")):
        raise GramLoopError(f"--score {score} compares shifted with clean images; it needs a --shift")
    images = _images(args)
    backbone, prepare = _backbone(args)
    make_folder(args.out)
    console, begin = Console(), time.perf_counter()
    found = _scan(args, backbone, images, prepare, shifts)
    seconds = time.perf_counter() - begin
    files, content = [args.out / "scan.json", args.out / "scan.png"], to_json(found, score)
    atomic_write(files[0], content)
    atomic_write(files[1], draw_map(found, score))
    console.print(shortlist(found, score, args.top))
    console.print(
        f"{len(found.windows)} windows, {found.replays} replays: {found.blocks} blocks per image where one attached "
        f"forward per window takes {found.naive_blocks} ({found.naive_blocks / found.blocks:.2f} times as many); "
        f"{seconds:.0f} s\n{files[0]}, {files[1]}",
        highlight=False,
    )
    kept = {name: value for name, value in json.loads(content).items() if name in KEYS}
    kept["ranking"] = kept["ranking"][: args.top]
    return Ended(0, lambda: {**kept, "files": files, "seconds": seconds})


def shortlist(scan: Scan, score: str, top: int) -> Table:
    """The first windows of the ranking and what was measured of them."""
    from rich.table import Table

    from gramloop.tune.scan.scores import ranked

    table = Table(
        title=f"{scan.host}: windows by {score.replace('_', ' ')}",
        title_justify="left",
        box=None,  # eleven columns must fit a terminal of 80
        padding=(0, 2, 0, 0),
        pad_edge=False,
    )
    heads = ["window", "score", "drift", "grows", "step", "drift\n/step", "step\n2/1", "cosine\n1, 2", "cost"]
    heads += ["shift\n/clean", "tells\nshift"] if scan.paired else []
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    names = ("drift_median", "growth_2", "step", "amplification", "step_ratio", "cosine")
    columns = [scan.typical(name) for name in names]
    formats = ["{:.1e}", "{:.1f}x", "{:.2f}", "{:.2f}", "{:.2f}", "{:+.2f}"]
    costs = scan.costs()
    pairs = [scan.shifted_to_clean("step"), scan.separation("step")] if scan.paired else []
    for entry in ranked(scan, score)[:top]:
        place = scan.windows.index(entry.window)
        cells = [form.format(values[place]) for form, values in zip(formats, columns, strict=True)]
        price = f"{costs[place].multiplier:.2f}x"
        ends = f"[{entry.window[0]}, {entry.window[1]}]".replace("[", r"\[")
        table.add_row(ends, f"{entry.score:.2f}", *cells, price, *(f"{each[place]:.2f}" for each in pairs))
    return table


def _shifts(given: Sequence[str] | None) -> tuple[Condition, ...]:
    from gramloop.data.suites import Condition
    from gramloop.shifts.common import check_severity
    from gramloop.shifts.corruptions import CORRUPTION_GROUPS, CORRUPTIONS, EXTRA_CORRUPTIONS
    from gramloop.tune.scan.scanning import DEFAULT_SHIFTS

    if given is None:
        return DEFAULT_SHIFTS
    if list(given) == ["none"]:
        return ()
    shifts: list[Condition] = []
    for text in given:
        name, _, severity = text.partition(":")
        members = CORRUPTION_GROUPS.get(name, (name,))
        if not set(members) <= {*CORRUPTIONS, *EXTRA_CORRUPTIONS}:
            raise GramLoopError(
                f"--shift {text}: a corruption is one of {', '.join(CORRUPTIONS + EXTRA_CORRUPTIONS)}, a group one of "
                f"{', '.join(CORRUPTION_GROUPS)}; or none"
            )
        if severity and not severity.isdecimal():
            raise GramLoopError(f"--shift {text}: a severity is a whole number, as in {name}:3")
        shifts += [Condition(each, check_severity(each, int(severity or 3))) for each in members]
    return tuple(dict.fromkeys(shifts))


def _images(args: argparse.Namespace) -> list[Any]:
    from gramloop.tasks.images import read_image
    from gramloop.tasks.outputs import find_images

    if args.images:
        paths = [file.path for file in find_images(args.images, args.out)][: args.limit]
        for path in paths:
            read_image(path)  # a bad file shows now, and not after minutes
        return paths
    if args.model != _EMBEDDED:
        raise GramLoopError(f"no image is given; only {_EMBEDDED} has scenes of its own")
    from gramloop.data.scenes.drawing import scene

    return [scene(index, _PATCHES * 8, "scan").image for index in range(min(args.limit, 4))]


def _backbone(args: argparse.Namespace) -> tuple[Any, Callable[[np.ndarray], Any]]:
    """The backbone, and what makes of pixels a forward through it."""
    from gramloop.models.dinov2 import load_any_backbone
    from gramloop.models.tiny import WEIGHTS
    from gramloop.tasks.images import normalisation_of, resize_short_side, to_tensor
    from gramloop.util.device import choose_device

    if ":" in args.model and not Path(args.model).exists():
        return _whole_model(args)
    embedded = args.model == _EMBEDDED
    backbone = load_any_backbone(
        WEIGHTS / "backbone" if embedded else args.model, device=choose_device(args.device)
    )
    patch = backbone.shape.patch
    short = _PATCHES * patch if args.short_side is None else args.short_side
    if short < patch or short % patch:
        raise GramLoopError(f"--short-side is {short}; it is a multiple of the patch, {patch}")
    normalisation = normalisation_of(args.model)

    def prepare(pixels: np.ndarray) -> Any:
        resized = resize_short_side(pixels, short, multiple=patch)
        tensor = to_tensor(resized, normalisation).to(backbone.device)
        return lambda: backbone(tensor, [backbone.shape.depth - 1])

    return backbone, prepare


def _whole_model(args: argparse.Namespace) -> tuple[Any, Callable[[np.ndarray], Any]]:
    """A model with its head, which is shown images as it was made to."""
    from gramloop.replay.config import ReplayConfig
    from gramloop.tasks.model_spec import open_model
    from gramloop.tasks.module_predictor import ModulePredictor
    from gramloop.tasks.predictor import check_replay
    from gramloop.util.device import choose_device

    if args.short_side is not None:
        raise GramLoopError(f"{args.model} shows itself images as it was made to; leave out --short-side")
    predictor = open_model(args.model, device=choose_device(args.device))
    check_replay(predictor, ReplayConfig(window=(0, 0), gate_at="end"))
    if not isinstance(predictor, ModulePredictor):
        raise GramLoopError(
            f"{args.model} is a predictor of its own; a scan needs the torch module inside it"
        )
    return predictor.model, lambda pixels: lambda: predictor.predict(pixels)


def _scan(
    args: argparse.Namespace,
    backbone: Any,
    images: list[Any],
    prepare: Callable[[np.ndarray], Any],
    shifts: tuple[Condition, ...],
) -> Scan:
    from gramloop.tune.scan.scanning import scan_windows
    from gramloop.util.progress import progress_bar

    with progress_bar("all windows, image by image", len(images) * (1 + len(shifts))) as advance:
        return scan_windows(
            backbone,
            images,
            preprocess=prepare,
            shifts=shifts,
            max_length=args.max_length,
            replays=args.replays,
            chunk=args.chunk,
            progress=advance,
        )
