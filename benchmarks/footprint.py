"""What released heads on every DINOv3 need, and into which cards that fits: the models' own code, run without values.

    python benchmarks/footprint.py [--backbone vit7b16 …]

Of the heads only those of the 7B are released; for the others the same head is made in the backbone's width. The tables
are Markdown. Last, the counter is held against the CPU's allocator on the embedded model: a ratio of the two peaks.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator

import torch
from torch.profiler import ProfilerActivity, profile

from fake_forward import Needs
from gramloop.errors import UntunedWindowWarning
from gramloop.models.backbone import Backbone
from gramloop.models.detector import WindowedDetector
from gramloop.models.dino import SHAPES, meta_backbone
from gramloop.models.mask2former import Mask2FormerSegmentor
from gramloop.models.plain_detr import PlainDetr, PlainDetrConfig
from gramloop.models.tiny import load_tiny
from gramloop.replay.config import ReplayConfig
from gramloop.tasks.released import Detector
from gramloop.tasks.semantic import Segmenter
from gramloop.util.progress import tracked
from live_tensors import peak_of
from model_memory import Size, footprint

SIZES = {"vits16": "S", "vitb16": "B", "vitl16": "L", "vith16plus": "H+", "vit7b16": "7B"}
CARDS = (16, 24, 40, 80)  # GB, of 10⁹ bytes; what a card has beyond is left to CUDA, its libraries and holes
IMAGES: dict[str, Size] = {"segmentation": (896, 896), "detection": (480, 640)}
PUBLISHED = ReplayConfig()
WAYS: dict[str, tuple[ReplayConfig | None, bool, bool]] = {
    "baseline": (None, False, False),
    "replayed": (PUBLISHED, False, False),
    "paired": (PUBLISHED, True, False),
    "traced": (PUBLISHED, True, True),
}


def predictor_of(name: str, task: str, dtype: torch.dtype) -> Segmenter | Detector:
    """A released kind of predictor without weights."""
    backbone = meta_backbone(SHAPES[name])
    rounded(backbone, dtype)
    width = backbone.shape.width
    with torch.device("meta"):
        if task == "segmentation":
            return Segmenter(Mask2FormerSegmentor(backbone, width).requires_grad_(False))
        head = PlainDetr(PlainDetrConfig(channels=8 * width))
        return Detector(WindowedDetector(backbone, head).requires_grad_(False))


def rounded(backbone: Backbone, dtype: torch.dtype) -> None:
    """The precision in which `gramloop.models.load_backbone` loads it."""
    backbone.to(dtype)
    backbone.norm.float()


def measured(name: str, task: str, dtype: torch.dtype) -> dict[str, Needs]:
    """The needs of every way to predict one image."""
    predictor = predictor_of(name, task, dtype)
    size = IMAGES[task]
    return {
        way: footprint(predictor, size, replay, pair, trace=trace)
        for way, (replay, pair, trace) in WAYS.items()
    }


def fits(needs: dict[str, Needs], card: int) -> str:
    """What of a card's work fits into it."""
    able = [way for way in ("baseline", "replayed", "paired") if needs[way].peak <= card * 1e9]
    return "no" if not able else "yes" if len(able) == 3 else ", ".join(able)


def rows(names: list[str]) -> Iterator[tuple[str, str, str, dict[str, Needs]]]:
    """Every backbone, task and precision."""
    cases = [(name, task, kind) for task in IMAGES for name in names for kind in ("float32", "bfloat16")]
    for name, task, kind in tracked(cases, "counting", len(cases)):
        yield name, task, kind, measured(name, task, getattr(torch, kind))


def print_shapes() -> None:
    """Images of a detector have a short side, so that long ones need more."""
    print("\n| image | 7B, float32: baseline | paired | bfloat16: baseline | paired |")
    print("|---|---:|---:|---:|---:|")
    both = [predictor_of("vit7b16", "detection", dtype) for dtype in (torch.float32, torch.bfloat16)]
    for width in (480, 640, 960, 1440, 1920):
        needs = [
            footprint(each, (480, width), *WAYS[way][:2]) for each in both for way in ("baseline", "paired")
        ]
        print(
            f"| {width} x 480 | " + " | ".join(f"{each.peak / 1e9:.1f}" for each in needs) + " |", flush=True
        )


def allocator_ratio() -> float:
    """The counted peak of the embedded model, replayed, over what the CPU's allocator gave."""
    model, pixels = load_tiny(), torch.randn(1, 3, 384, 512)

    def run() -> None:
        with torch.no_grad():
            model(pixels)

    run()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        run()
    events = [each for each in found.profiler.kineto_results.events() if each.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda each: each.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak_of(run, [*model.parameters(), *model.buffers(), pixels]) / peak


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backbone", action="append", choices=tuple(SIZES), help="all by default")
    args = parser.parse_args()
    warnings.simplefilter("ignore", UntunedWindowWarning)
    found = list(rows(args.backbone or list(SIZES)))
    cards = " | ".join(f"{card} GB" for card in CARDS)
    print(f"| task | backbone | its weights | all weights, GB | baseline | replayed | paired | {cards} |")
    print("|---|---|---|---:|---:|---:|---:|" + "---|" * len(CARDS))
    for name, task, kind, needs in found:
        peaks = " | ".join(f"{needs[way].peak / 1e9:.1f}" for way in ("baseline", "replayed", "paired"))
        able = " | ".join(fits(needs, card) for card in CARDS)
        weights = f"{needs['baseline'].weights / 1e9:.1f}"
        print(f"| {task} | {SIZES[name]} | {kind} | {weights} | {peaks} | {able} |")
    print()
    print(
        "| task | backbone | its weights | way | beside the weights, GB | read and written, GB | of it weights, GB |"
    )
    print("|---|---|---|---|---:|---:|---:|")
    for name, task, kind, needs in found:
        if name != "vit7b16":
            continue
        for way, each in needs.items():
            numbers = (
                f"{each.activations / 1e9:.2f} | {each.moved / 1e9:,.0f} | {each.weights_read / 1e9:,.0f}"
            )
            print(f"| {task} | {SIZES[name]} | {kind} | {way} | {numbers} |")
    if "vit7b16" in (args.backbone or SIZES):
        print_shapes()
    print(f"\ncounted peak over the CPU allocator's, embedded model: {allocator_ratio():.3f}")


if __name__ == "__main__":
    main()
