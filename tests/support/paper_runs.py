"""The paper's evaluations as runs, from the numbers that it prints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gramloop.data.suites import Condition, find_suite
from gramloop.evaluate.methods import BASELINE, Method
from gramloop.evaluate.plan import DataSource, Plan, PlannedModel
from gramloop.mitigations.stack import Replay
from gramloop.replay.config import ReplayConfig
from gramloop.report.run import ConditionResults, Run

PAPER: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "metrics" / "paper_tables.json").read_text(encoding="utf-8")
)
METHODS = {
    BASELINE: (),
    "loop-loop": (Replay(ReplayConfig((21, 23), gate_at="end")),),
    "final-final": (Replay(ReplayConfig((21, 23), update_at="final")),),
    "gramloop": (Replay(ReplayConfig((21, 23))),),
}
PLACES = {
    BASELINE: "ordinary",
    "loop-loop": "end/end",
    "final-final": "final/final",
    "gramloop": "final/end",
}


def plan(
    suite: str,
    methods: tuple[str, ...] = (BASELINE, "gramloop"),
    categories: Mapping[int, str] | None = None,
    images: int = 2000,
    **changes: Any,
) -> Plan:
    """A plan over a whole suite, with 40 blocks as in the paper."""
    wanted: dict[str, Any] = {
        "suite": suite,
        "task": "detection" if suite.startswith("coco") else "semantic",
        "methods": tuple(Method(name, METHODS[name]) for name in methods),
        "conditions": {condition.key: images for condition in find_suite(suite).conditions},
        "shards": 1,
        "categories": categories or {0: "wall"},
        "data": DataSource("images"),
        "model": PlannedModel("files", {}, {"backbone": "b", "head": suite[:4]}, 40, device="cuda"),
        "versions": {"torch": "2.13.0"},
    }
    return Plan(**{**wanted, **changes})


def cell(condition: Condition, scores: Mapping[str, float], metric: str, **more: Any) -> ConditionResults:
    return ConditionResults(
        condition, 2000, {name: {metric: value} for name, value in scores.items()}, **more
    )


def family_run(suite: str) -> Run:
    """Every severity gets the printed mean of five; the gain printed is the one before rounding, so that is kept."""
    metric = "AP" if suite.startswith("coco") else "mIoU"
    rows = PAPER["families"][suite]
    cells = tuple(
        cell(
            each, {BASELINE: rows[each.name][0], "gramloop": rows[each.name][0] + rows[each.name][2]}, metric
        )
        for each in find_suite(suite).conditions
    )
    return Run(suite, Path(suite), plan(suite), cells)


def coco_o_runs() -> tuple[Run, Run]:
    """COCO-O and clean COCO with all placements; each domain gets the printed mean."""
    methods = tuple(METHODS)
    shifted = {name: PAPER["placement"][PLACES[name]][0] for name in methods}
    clean = {name: PAPER["clean coco ap, solved from placement"][PLACES[name]] for name in methods}
    runs = []
    for suite, scores in (("coco-o", shifted), ("coco", clean)):
        cells = tuple(cell(each, scores, "AP") for each in find_suite(suite).conditions)
        runs.append(Run(suite, Path(suite), plan(suite, methods), cells))
    return runs[0], runs[1]


def ade20k_run() -> Run:
    """Clean ADE20K."""
    scores = dict(zip((BASELINE, "gramloop"), PAPER["main"]["ade20k"], strict=False))
    return Run("ade20k", Path("ade20k"), plan("ade20k"), (cell(Condition("clean"), scores, "mIoU"),))


def class_run() -> Run:
    """ADE20K-C with the ten classes that are printed, the same in every condition, and one that loses."""
    rows = {**PAPER["top classes"], "wall": [80.0, 79.5, -0.5], "never": [np.nan, np.nan, np.nan]}
    classes = {
        BASELINE: [row[0] for row in rows.values()],
        "gramloop": [row[0] + row[2] for row in rows.values()],
    }
    arrays = {name: np.array(values) for name, values in classes.items()}
    labelled = np.array([name != "never" for name in rows])
    cells = tuple(
        cell(each, {BASELINE: 50.0, "gramloop": 51.0}, "mIoU", classes=arrays, labelled=labelled)
        for each in find_suite("ade20k-c").conditions
    )
    categories = dict(enumerate(reversed(rows)))  # not in the order of gains
    backwards = tuple(
        ConditionResults(
            one.condition,
            one.images,
            one.scores,
            classes={name: values[::-1] for name, values in arrays.items()},
            labelled=labelled[::-1],
        )
        for one in cells
    )
    return Run("ade20k-c", Path("c"), plan("ade20k-c", categories=categories), backwards)


def counted_run(name: str, images: int = 11782) -> Run:
    """One path of the cost table, with the blocks that it prints."""
    blocks = PAPER["cost"][PLACES[name]][0]
    one = ConditionResults(Condition("clean"), images, {name: {"AP": 60.0}}, blocks={name: blocks * images})
    return Run(f"coco {name}", Path(name), plan("coco", (name,)), (one,))
