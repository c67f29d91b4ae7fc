"""What mitigations gain on the embedded model: chosen on a few scenes, judged on 200 others, in three tasks.

Every judged scene is seen clean and under three of the 15 families, at one severity: 40 scenes per family, eight of
each at every severity. Calibration statistics come from yet other scenes, without labels. Predictions of pixels that a
mitigation leaves alone are those of the plain model to the bit, and are not made twice. What is done is kept in
``--out``, scene by scene.

    python benchmarks/mitigation_scenes.py --out out/scenes
"""

from __future__ import annotations

import argparse
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from evidence_study import SEARCHED
from gramloop.data.scenes.drawing import Scene, scene
from gramloop.data.truth import DepthMap
from gramloop.evaluate.predicting import deterministic
from gramloop.metrics.ap import ap_score
from gramloop.metrics.bootstrap import (
    Interval,
    Score,
    cluster_bootstrap,
    image_draws,
    mean_interval,
    miou_score,
)
from gramloop.metrics.boxes import BoxPredictions, GroundTruthBoxes
from gramloop.metrics.depth import depth_scores
from gramloop.metrics.miou import count_pixels
from gramloop.mitigations import apply, calibrate
from gramloop.mitigations.calibration import CalibrationStats
from gramloop.mitigations.pixels import PixelMitigation
from gramloop.mitigations.stack import parse_mitigations
from gramloop.models.tiny import WEIGHTS, suggested_replay
from gramloop.replay.config import replay_text
from gramloop.shifts import CORRUPTIONS, corrupt
from gramloop.tasks import load_predictor

FAMILIES = tuple(CORRUPTIONS)
REPLAY = f"replay:{replay_text(suggested_replay())}"
PIXELS = ("", "denoise", "levels", "sharpen", "denoise+levels", "denoise+levels+sharpen")
CHOSEN = "denoise+levels+sharpen+recentre:0.3"  # what `choose` finds on 16 scenes; for the picture
FEATURES = ("", "recentre:0.3", "recentre:c=1", "recentre:c=2")
Kept = dict[str, Any]  # way → counts of a segmentation, boxes of a detection, delta1 of a depth map


@dataclass(frozen=True)
class Shown:
    """A scene under one condition; severity 0 is clean."""

    index: int
    split: str
    family: str = "clean"
    severity: int = 0

    @property
    def name(self) -> str:
        return f"{self.split} {self.index} {self.family} {self.severity}"

    def draw(self) -> tuple[Scene, Any]:
        drawn = scene(self.index, split=self.split)
        if not self.severity:
            return drawn, drawn.image
        rng = np.random.default_rng([self.index, FAMILIES.index(self.family), self.severity])
        return drawn, corrupt(drawn.image, self.family, self.severity, rng)


def searched(scenes: int) -> Iterator[Shown]:
    for index in range(scenes):
        yield Shown(index, "mitigations-search")
        yield from (Shown(index, "mitigations-search", family, 3) for family in SEARCHED)


def judged(scenes: int) -> Iterator[Shown]:
    """Scene by scene; five in a row see all families, and 25 all of them at every severity."""
    for index in range(scenes):
        yield Shown(index, "mitigations-judge")
        for family in FAMILIES[index % 5 * 3 :][:3]:
            yield Shown(index, "mitigations-judge", family, index // 5 % 5 + 1)


@dataclass(frozen=True)
class Task:
    """One head of the embedded model, and its predictions in a folder."""

    name: str
    out: Path
    ways: tuple[str, ...]

    @cached_property
    def predictor(self) -> Any:
        return load_predictor(self.name, {"folder": str(WEIGHTS)})  # type: ignore[call-overload]

    @cached_property
    def source(self) -> CalibrationStats:
        return calibrate(
            self.predictor, [scene(index, split="mitigations-source").image for index in range(40)]
        )

    def run(self, shown: Sequence[Shown]) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        with deterministic(1):
            for each in shown:
                path = self.out / f"{each.name}.pickle"
                if not path.exists():
                    part = path.with_suffix(".part")
                    part.write_bytes(pickle.dumps(self._predict(each)))
                    part.replace(path)

    def read(self, shown: Shown) -> Kept:
        kept: Kept = pickle.loads((self.out / f"{shown.name}.pickle").read_bytes())
        return kept

    def _predict(self, shown: Shown) -> Kept:
        drawn, pixels = shown.draw()
        made: dict[tuple[bytes, str], Any] = {}
        kept = {}
        for way in self.ways:
            stack = parse_mitigations(way) if way else ()
            seen = pixels
            for each in stack:
                if isinstance(each, PixelMitigation):
                    seen = each.filtered(seen, self.source)
            rest = [each for each in stack if not isinstance(each, PixelMitigation)]
            key = seen.tobytes(), "+".join(each.text for each in rest)
            if key not in made:
                predictor = apply(rest, self.predictor, self.source) if rest else self.predictor
                made[key] = self._statistics(predictor.predict(seen), drawn)
            kept[way] = made[key]
        return kept

    def _statistics(self, found: Any, drawn: Scene) -> Any:
        if self.name == "semantic":
            truth = drawn.labels - 1  # bytes: 0, which is unlabelled, becomes 255
            return count_pixels(found.labels, truth, len(self.predictor.classes))
        if self.name == "detection":
            return found.boxes, found.scores, found.labels
        return depth_scores(found.values, DepthMap(drawn.depth)).delta1

    def score(self, shown: Sequence[Shown], way: str) -> Score:
        """Points of any draw of these scenes: mIoU, AP or the mean of delta1."""
        kept = [self.read(each)[way] for each in shown]
        if self.name == "semantic":
            return miou_score(np.stack(kept))
        if self.name == "depth":
            values = np.array(kept)
            return lambda weights: weights @ values / weights.sum(axis=1)
        return ap_score(_truth(shown), _found(kept))


def _truth(shown: Sequence[Shown]) -> GroundTruthBoxes:
    scenes = [scene(each.index, split=each.split) for each in shown]
    owners = np.repeat(np.arange(len(scenes)), [len(each.boxes) for each in scenes])
    boxes = np.concatenate([each.boxes for each in scenes])
    labels = np.concatenate([each.categories for each in scenes]) + 1
    areas = np.concatenate([each.masks.sum(axis=(1, 2)) for each in scenes])
    kinds = range(1, int(labels.max()) + 1)
    return GroundTruthBoxes(
        range(len(scenes)), list(kinds), owners, boxes, labels, areas, np.zeros(len(boxes), bool)
    )


def _found(kept: Sequence[tuple[Any, Any, Any]]) -> BoxPredictions:
    owners = np.repeat(np.arange(len(kept)), [len(boxes) for boxes, _, _ in kept])
    return BoxPredictions.from_corners(
        owners, *(np.concatenate([each[part] for each in kept]) for part in range(3))
    )


def mean_gain(
    task: Task, shown: Sequence[Shown], way: str, families: Sequence[str]
) -> tuple[Interval, list[float]]:
    """The mean gain over families with its interval over scenes, and each family's own."""
    draws = []
    for family in families:
        some = [each for each in shown if each.family == family]
        plain, changed = task.score(some, ""), task.score(some, way)
        seed = (
            1000 + FAMILIES.index(family) // 3 if family in FAMILIES else 0
        )  # families of the same scenes together
        draws.append(
            image_draws(lambda w, p=plain, c=changed: c(w) - p(w), len(some), replicates=2000, seed=seed)
        )
    return mean_interval(draws, len(draws[0])), [float(each[0]) for each in draws]


def choose(task: Task, shown: Sequence[Shown], ways: Sequence[str]) -> str:
    """The way of the highest mean gain among those that cost clean scenes at most a tenth of a point."""
    standings = {}
    print("| on the searched scenes and families | Δ clean | Δ mean |\n|---|---|---|")
    for way in ways:
        clean, gain = (mean_gain(task, shown, way, each)[0].estimate for each in (["clean"], SEARCHED))
        print(f"| {way or 'nothing'} | {clean:+.2f} | {gain:+.2f} |")
        if clean >= -0.1:
            standings[way] = gain
    return max(standings, key=standings.__getitem__)


def tell(task: Task, shown: Sequence[Shown]) -> None:
    plain = [float(task.score([each for each in shown if each.family == family], "")(_once(shown, family))[0])
             for family in ("clean", *FAMILIES)]  # fmt: skip
    print(f"\n## {task.name}: clean {plain[0]:.2f}, shifted {np.mean(plain[1:]):.2f}")
    print(
        "| mitigation | Δ clean | Δ mean of families, over scenes | over families | severity 1, 2, 3, 4, 5 |\n|---|---|---|---|---|"
    )
    by_family = {}
    for way in task.ways[1:]:
        clean, _ = mean_gain(task, shown, way, ["clean"])
        interval, gains = mean_gain(task, shown, way, FAMILIES)
        by_family[way] = gains
        families = cluster_bootstrap({name: [gain] for name, gain in zip(FAMILIES, gains, strict=True)})
        steps = [
            mean_gain(task, [each for each in shown if each.severity == severity], way, FAMILIES)[0].estimate
            for severity in range(1, 6)
        ]
        print(
            f"| `{way}` | {clean} | {interval} | {families} | {', '.join(f'{each:+.1f}' for each in steps)} |"
        )
    print(
        "\n| family | plain | " + " | ".join(by_family) + " |\n|---" * 1 + "|---" * (1 + len(by_family)) + "|"
    )
    for place, family in enumerate(FAMILIES):
        cells = [f"{gains[place]:+.2f}" for gains in by_family.values()]
        print(f"| {family.replace('_', ' ')} | {plain[1 + place]:.1f} | {' | '.join(cells)} |")


def _once(shown: Sequence[Shown], family: str) -> Any:
    return np.ones((1, sum(each.family == family for each in shown)), dtype=np.int64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/scenes"))
    parser.add_argument("--search", type=int, default=16, help="scenes to choose on")
    parser.add_argument("--scenes", type=int, default=200, help="scenes to judge on, a multiple of 25")
    parser.add_argument("--part", action="append", choices=("semantic", "detection", "depth", "stacked"))
    arguments = parser.parse_args()
    ways = tuple("+".join(part for part in (stack, move) if part) for move in FEATURES for stack in PIXELS)
    search = Task("semantic", arguments.out / "search", ways)
    some = list(searched(arguments.search))
    search.run(some)
    chosen = choose(search, some, ways)
    print(f"chosen: {chosen or 'nothing'}")
    few = max(25, arguments.scenes // 4 // 25 * 25)  # for what costs a pass on every scene
    parts = (
        ("semantic", "semantic", arguments.scenes, PIXELS),
        ("detection", "detection", arguments.scenes, ("", PIXELS[-1])),
        ("depth", "depth", few, ("",)),
        ("semantic", "stacked", few, ("", *FEATURES[1:], REPLAY, f"{chosen}+{REPLAY}")),
    )
    for task_name, folder, scenes, ways in parts:
        if folder in (arguments.part or [folder]):
            task = Task(task_name, arguments.out / folder, tuple(dict.fromkeys([*ways, chosen])))
            shown = list(judged(scenes))
            task.run(shown)
            print(f"\n{folder}: {scenes} scenes")
            tell(task, shown)


if __name__ == "__main__":
    main()
