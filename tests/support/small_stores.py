"""Stored evaluations without a model: units written by hand, with counts or boxes that are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gramloop.data.truth import Instances
from gramloop.evaluate.methods import BASELINE, Method, parse_method, prediction_calls
from gramloop.evaluate.plan import DataSource, Plan, PlannedModel
from gramloop.evaluate.rows import Facts, Failure, unit_schema
from gramloop.evaluate.store import Store, open_folder
from gramloop.mitigations.stack import Replay
from gramloop.replay.config import ReplayConfig
from gramloop.tasks.base import Categories, get_task
from gramloop.tasks.detection import Detection

GATED = ReplayConfig((3, 4))
METHODS = {
    BASELINE: (),
    "gramloop": (Replay(GATED),),
    "gramloop-raw": (Replay(ReplayConfig((3, 4), gate="none")),),
    "gramloop-matched": (Replay(ReplayConfig((3, 4), gate="uniform", strength="matched")),),
    "loop-loop": (Replay(ReplayConfig((3, 4), gate_at="end")),),
}
CLASSES = {0: "sky", 1: "grass", 2: "road_way"}
THINGS = {3: "cat", 7: "dog"}
CONDITIONS = ("fog/1", "fog/3", "snow/1", "snow/3", "pixelate/1", "pixelate/3")
Statistics = Callable[[str, str, int], dict[str, Any]]  # condition, method, position


def make_plan(
    suite: str = "scenes-c",
    task: str = "semantic",
    methods: Sequence[str] = (BASELINE, "gramloop"),
    conditions: Sequence[str] = CONDITIONS,
    images: int = 12,
    **changes: Any,
) -> Plan:
    wanted: dict[str, Any] = {
        "suite": suite,
        "task": task,
        "methods": tuple(_method(name) for name in methods),
        "conditions": dict.fromkeys(conditions, images),
        "shards": 2,
        "categories": CLASSES if task == "semantic" else THINGS,
        "data": DataSource("set", contents={"clean": "images"}),
        "model": PlannedModel("tiny", {"folder": "m"}, {"folder/model": "weights"}, 6),
        "versions": {"gramloop": "1", "torch": "2"},
    }
    return Plan(**{**wanted, **changes})


def _method(text: str) -> Method:
    """A replay of the table above, or mitigations such as ``recentre:0.3`` and ``both=median+gramloop``."""
    return Method(text, METHODS[text]) if text in METHODS else parse_method(text)


def write_store(
    folder: Path,
    plan: Plan,
    statistics: Statistics | None = None,
    lost: Mapping[str, Sequence[int]] | None = None,
    skip: Sequence[str] = (),
) -> Store:
    """All units of a plan but those of ``skip``; ``lost`` names the images that could not be used."""
    store = open_folder(folder, plan)
    make = statistics or (pixels if plan.task == "semantic" else boxes)
    for part in plan.parts:
        if part.condition in skip:
            continue
        gone = [place for place in (lost or {}).get(part.condition, ()) if place in part.images]
        failures = [Failure(place, f"image-{place:03d}", "cannot be decoded") for place in gone]
        for unit in part.units:
            method = unit.method
            rows = [
                {
                    "position": position,
                    "image_id": f"image-{position:03d}",
                    "blocks": method.blocks(6) if method.replay is None else 11,
                    "map_size": [],
                    **make(unit.condition, method.name, position),
                }
                for position in unit.images
                if position not in gone
            ]
            table = pa.Table.from_pylist(rows, schema=unit_schema(plan.load_task(), plan.label_free))
            store.write(unit, table, failures, (), facts(plan, method, len(unit)))
    return store


def facts(plan: Plan, method: Method, images: int) -> Facts:
    """2 s per image and call, and half a second for the image itself; memory grows with the unit."""
    calls = prediction_calls(plan.methods)
    call = next(each for each in calls if method in each)
    other = next((each.name for each in call if each != method), "")
    wall = (2.0 * len(calls) + 0.5) * images
    return Facts(2.0 * images * (method == call[-1]), other, wall, 10**9 + images, "cpu", "here")


def pixels(condition: str, method: str, position: int) -> dict[str, Any]:
    """Random counts over one truth; the last class is never seen. Replays hit a little more in fog."""
    truth = np.random.default_rng([position])
    label = np.array([*truth.integers(200, 900, 2), 0])
    rng = np.random.default_rng([position, *map(ord, condition), *map(ord, method)])
    share = 0.7 + (0.1 if method != BASELINE and condition.startswith("fog") else 0.0)
    intersection = rng.binomial(label, share)
    return {
        "intersection": intersection,
        "prediction": intersection + np.array([*rng.integers(0, 200, 2), 0]),
        "label": label,
        "drift": [],
        "gate": [],
        "post_drift": {"gramloop": 1.0, "gramloop-matched": 2.0, "gramloop-raw": 4.0}.get(method),
    }


def boxes(condition: str, method: str, position: int) -> dict[str, Any]:
    """One cat in every image and one dog in every second; the replay finds cats that the baseline misses."""
    count = 1 + position % 2
    sizes = np.array([[10.0, 10, 40, 40], [60, 60, 40, 40]])[:count]
    corners, labels = np.array([[10, 10, 50, 50], [60, 60, 100, 100]])[:count], np.array([3, 7])[:count]
    if method == BASELINE and position % 3 == 0:
        corners[0] = [200, 200, 240, 240]
    truth = Instances(labels, sizes, labels, np.full(count, 1600.0), np.zeros(count, np.bool_))
    found = Detection(corners.astype(np.float32), np.float32([0.9, 0.8])[:count], labels)
    row = get_task("detection").statistics(found, truth, Categories(THINGS))
    return {**row, "drift": [], "gate": []}
