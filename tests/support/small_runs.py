"""Evaluations that take seconds: a random backbone of six blocks on a few drawn scenes."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from gramloop.data.scenes import STUFF, THINGS, SceneFiles, write_scenes
from gramloop.evaluate.engines import Job
from gramloop.evaluate.plan import DataSource, Plan
from gramloop.evaluate.planning import Request, make_plan
from gramloop.evaluate.provenance import plan_workload
from gramloop.evaluate.rows import MethodRows
from gramloop.evaluate.runner import Finished, Runner
from gramloop.evaluate.store import Store, read_condition
from gramloop.models.backbone import Backbone, BackboneShape, LinearHead
from gramloop.models.tiny import DenseDetectConfig, DenseDetectHead, TinyModel
from tiny_model import save_tiny

SIDE = 64
SHAPE = BackboneShape(
    depth=6,
    width=32,
    head_dim=16,
    hidden=64,
    gated=False,
    qkv_bias=True,
    local_cls_norm=False,
    registers=2,
    patch=8,
)


def write_model(folder: Path, seed: int = 0) -> Path:
    """Random weights, large enough that a replay changes predictions."""
    torch.manual_seed(seed)
    detect = DenseDetectHead(DenseDetectConfig(channels=32, classes=len(THINGS), stride=8, width=16))
    model = TinyModel(
        Backbone(SHAPE), LinearHead(32, len(STUFF) + len(THINGS), [2, 5]), detect, STUFF, THINGS
    )
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "layer_scale" in name:
                value.fill_(0.7)
            elif value.ndim > 1:
                value.normal_(std=0.2)
        detect.score.bias.zero_()
    save_tiny(model.eval(), folder)
    return folder


def write_scene_set(folder: Path, count: int) -> Path:
    write_scenes(folder, SceneFiles(count, size=SIDE), workers=1)
    return folder


def small_request(model: Path, folder: Path, task: str = "semantic", **changes: object) -> Request:
    wanted = {
        "suite": "scenes-c",
        "task": task,
        "files": {"folder": str(model)},
        "data": DataSource(str(folder)),
        "conditions": ["fog", "impulse_noise", "pixelate"],
        "severities": [3],
        "sizes": {"short_side": SIDE} if task == "semantic" else {},
        "shards": 3,
    }
    return Request(**{**wanted, **changes})


def small_plan(model: Path, folder: Path, task: str = "semantic", **changes: object) -> Plan:
    return make_plan(small_request(model, folder, task, **changes))


def runner_of(plan: Plan, folder: Path | None = None, **options: object) -> Runner:
    """A runner of a plan; with a folder it can store."""
    store = None if folder is None else Store(folder, plan)
    return Runner(plan_workload(plan, folder), store, **options)


def job_of(plan: Plan, folder: Path, **options: object) -> Job:
    """Everything of a plan, to be run into a folder."""
    return Job(plan_workload(plan, folder), Store(folder, plan), plan.parts, **options)


def rows_of(plan: Plan, finished: Finished, method: str) -> MethodRows:
    """The rows of a part that was run and not stored, as if they were read."""
    found = finished.rows[method]
    facts = (finished.facts[method],)
    return MethodRows(plan.load_task(), found.table(), tuple(found.failures), tuple(found.refused), facts)


def counts_of(rows: MethodRows) -> NDArray[np.int64]:
    """Pixels of a segmentation, (images, 3, classes)."""
    return np.stack([rows.rows.matrix(name) for name in ("intersection", "prediction", "label")], axis=1)


def stored_counts(folder: Path, plan: Plan, key: str, method: str) -> NDArray[np.int64]:
    """The same of a stored condition."""
    stored = read_condition(Store(folder, plan), key)
    assert stored is not None
    return counts_of(stored.methods[method])
