"""A scan of all windows in shared sweeps against one attached, traced forward per window.

Both measure the drift of the same ungated replays. Random weights in the size of a DINOv3 backbone, one image; the two
ways take turns, so that a busy machine slows both alike.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from gramloop import attached
from gramloop.models.dinov3 import Backbone
from gramloop.models.released_names import SHAPES
from gramloop.models.tiny import WEIGHTS, load_backbone
from gramloop.tune.scan.scanning import scan_windows
from gramloop.tune.scan.sweep import all_windows


def seconds(run: Callable[[], object]) -> tuple[float, float]:
    """On the clock, and of the processor."""
    wall, processor = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=["tiny", *sorted(SHAPES)], default="tiny")
    parser.add_argument("--patches", type=int, default=16, help="along each side of the image")
    parser.add_argument("--max-length", type=int, default=4)
    parser.add_argument("--replays", type=int, default=3)
    parser.add_argument("--chunks", type=int, nargs="*", default=[4])
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()

    torch.manual_seed(0)
    tiny = options.model == "tiny"
    backbone = load_backbone(WEIGHTS / "backbone") if tiny else Backbone(SHAPES[options.model])
    depth, side = backbone.shape.depth, options.patches * backbone.shape.patch
    pixels = torch.randn(1, 3, side, side)
    windows = all_windows(depth, options.max_length)

    @torch.no_grad()
    def forward() -> object:
        return backbone(pixels, [depth - 1])

    def naive() -> None:
        for window in windows:
            with attached(backbone, window=window, replays=options.replays, gate="none", trace=True):
                forward()

    def shared(chunk: int | None = None) -> object:
        return scan_windows(
            backbone, [forward], max_length=options.max_length, replays=options.replays, chunk=chunk
        )

    runs: dict[str, Callable[[], object]] = {"naive": naive, "shared": shared}
    runs |= {f"chunk {chunk}": lambda chunk=chunk: shared(chunk) for chunk in options.chunks}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    forward()
    for _ in range(options.repeats):
        for name, run in runs.items():
            times[name].append(seconds(run))

    counted = scan_windows(backbone, [forward], max_length=options.max_length, replays=options.replays)
    print(
        f"{options.model}, {depth} blocks, {options.patches} x {options.patches} patches, {len(windows)} windows, "
        f"{options.replays} replays, {torch.get_num_threads()} threads"
    )
    print(
        f"blocks  naive {counted.naive_blocks}, shared {counted.blocks}: ratio {counted.naive_blocks / counted.blocks:.2f}"
    )
    for name in list(runs)[1:]:
        pairs = list(zip(times["naive"], times[name], strict=True))
        wall, processor = (statistics.median(one[c] / other[c] for one, other in pairs) for c in (0, 1))
        print(f"naive / {name:9s} {wall:.2f} of the time, {processor:.2f} of the processor's time")


if __name__ == "__main__":
    main()
