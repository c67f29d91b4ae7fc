"""What bfloat16 changes on the embedded model: by autocast, as GPUs compute, and in the backbone's weights (--dtype).

    python benchmarks/weight_precision.py [--images 40]

Scenes are drawn, and shown clean, in noise and in fog; every way predicts the same images, plain and replayed. Printed is
the share of pixels with the same class as in float32, and what the scores differ by, in points.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from gramloop.data.opening import ReadOptions, open_suite
from gramloop.data.records import TaskName as Task
from gramloop.data.scenes import SceneFiles, draw_scenes
from gramloop.evaluate.evaluation import evaluate
from gramloop.evaluate.plan import DataSource
from gramloop.evaluate.planning import Request, make_plan
from gramloop.models.backbone import Backbone
from gramloop.models.tiny import SUGGESTED, WEIGHTS
from gramloop.replay.config import read_replay
from gramloop.tasks.base import read_labelled
from gramloop.tasks.loading import WeightPrecision, load_predictor
from gramloop.tasks.semantic import Segmentation
from gramloop.util.progress import tracked

CONDITIONS, SEVERITY = ("gaussian_noise", "fog"), 3
FILES = {"folder": str(WEIGHTS)}
WAYS: dict[str, tuple[WeightPrecision, bool]] = {
    "float32": ("float32", False),
    "bfloat16 autocast": ("float32", True),
    "bfloat16 weights": ("bfloat16", False),
}


@contextmanager
def autocast_on_cpu(wanted: bool) -> Iterator[None]:
    """Backbones compute under autocast here, as they do on a GPU."""
    usual = Backbone.autocast_on
    if wanted:
        Backbone.autocast_on = ("cpu",)
    try:
        yield
    finally:
        Backbone.autocast_on = usual


def scores(root: Path, task: Task, way: str) -> dict[str, float]:
    """The mean score of every method over the conditions, in points."""
    dtype, autocast = WAYS[way]
    request = Request(
        "scenes-c", task, FILES, DataSource(str(root)), ("baseline", "gramloop"), CONDITIONS, (SEVERITY,),
        dtype=dtype, pictures=0, replay=str(SUGGESTED),
    )  # fmt: skip
    plan = make_plan(request)
    with tempfile.TemporaryDirectory() as folder, autocast_on_cpu(autocast):
        results = evaluate(plan, Path(folder), workers=1).results
    return {method.name: float(results.mean(method.name) or 0.0) for method in plan.methods}


def agreement(root: Path, way: str) -> dict[str, float]:
    """The share of pixels that get the same class as in float32, plain and replayed."""
    dtype, autocast = WAYS[way]
    replay = read_replay(SUGGESTED)
    exact, other = load_predictor("semantic", FILES), load_predictor("semantic", FILES, dtype=dtype)
    opened = open_suite(
        "scenes-c",
        root,
        conditions=list(CONDITIONS),
        severities=[SEVERITY],
        options=ReadOptions(task="semantic"),
    )
    assert opened.clean is not None
    records = [*opened.clean, *(record for each in opened.conditions for record in opened.open(each))]
    same: dict[str, list[float]] = {"baseline": [], "gramloop": []}
    for record in tracked(records, way, len(records)):
        shown = read_labelled(record, "semantic", True)
        assert not isinstance(shown, str)
        expected = exact.predict(shown.pixels, replay, paired=True)
        with autocast_on_cpu(autocast):
            found = other.predict(shown.pixels, replay, paired=True)
        pairs = {
            "baseline": (expected.baseline, found.baseline),
            "gramloop": (expected.replayed, found.replayed),
        }
        for name, (one, two) in pairs.items():
            assert isinstance(one, Segmentation)
            assert isinstance(two, Segmentation)
            same[name].append(float((one.labels == two.labels).mean()))
    return {name: float(np.mean(values)) for name, values in same.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=40)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = draw_scenes(Path(folder) / "scenes", SceneFiles(args.images))
        tasks: dict[str, Task] = {"mIoU": "semantic", "AP": "detection"}
        exact = {metric: scores(root, task, "float32") for metric, task in tasks.items()}
        print("| | method | same class | mIoU | difference | AP | difference |")
        print("|---|---|---:|---:|---:|---:|---:|")
        for way in WAYS:
            same = agreement(root, way)
            found = {metric: scores(root, task, way) for metric, task in tasks.items()}
            for name in ("baseline", "gramloop"):
                cells = " | ".join(
                    f"{value[name]:.2f} | {value[name] - exact[metric][name]:+.2f}"
                    for metric, value in found.items()
                )
                print(f"| {way} | {name} | {100 * same[name]:.2f} % | {cells} |")


if __name__ == "__main__":
    main()
