"""A suite and a model from files as the subject of a search, opened anew in every worker process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from gramloop.data.records import Record
from gramloop.evaluate.plan import Plan
from gramloop.evaluate.planning import Request, plan_and_model
from gramloop.evaluate.provenance import PlannedImages, load_planned
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor
from gramloop.tune.search.subject import Subject, about_truth
from gramloop.tune.search.worth import CLEAN

SCENE_SPLIT = "tune"  # scenes that neither evaluate nor the demonstration shows


def suite_subject(request: Request, device: str | None = None) -> Subject:
    """The model and the data of a request, checked against each other as an evaluation would.

    ``device`` names one of several of the request's type, such as cuda:1.
    """
    plan, predictor = plan_and_model(replace(request, methods=("baseline",)))
    records = _Records(plan)
    return Subject(
        task=plan.task,
        depth=len(predictor.blocks),
        categories=tuple(plan.categories),
        images=records.ids(),
        make_predictor=partial(_planned_predictor, plan, device),
        open_records=records,
        about={
            "suite": plan.suite,
            "data": dict(plan.data.contents),
            "model": dict(plan.model.sha256),
            "sizes": dict(plan.model.sizes),
            "device": plan.model.device,
            **({} if plan.model.dtype == "float32" else {"dtype": plan.model.dtype}),
            "versions": dict(plan.versions),
            **about_truth(plan.task, plan.truth, plan.truth_score),
        },
        threads=plan.model.threads,
        taps=predictor.taps,
        truth=plan.truth,
        truth_score=plan.truth_score,
        source=plan.calibration,
        sketch=predictor,
    )


def _planned_predictor(plan: Plan, device: str | None = None) -> Predictor[Prediction]:
    """The model of a plan, in whatever process; other weights or versions than planned are refused."""
    return load_planned(plan, None, device)


@dataclass
class _Records:
    """The records of a condition; the suite is opened when first asked for, and not sent to other processes."""

    plan: Plan
    images: PlannedImages | None = field(default=None, repr=False)

    def __call__(self, key: str) -> Sequence[Record]:
        images = self._open()
        if key == CLEAN and images.opened.clean is not None:
            return images.opened.clean[: max(self.plan.conditions.values())]
        return images.data(key)[: self.plan.conditions[key]]

    def ids(self) -> dict[str, tuple[str, ...]]:
        """Image ids by condition, clean first where the clean set is known."""
        if self._open().opened.clean is None:
            return {key: tuple(str(one.image_id) for one in self(key)) for key in self.plan.conditions}
        shared = tuple(str(one.image_id) for one in self(CLEAN))
        return dict.fromkeys((CLEAN, *self.plan.conditions), shared)

    def __getstate__(self) -> dict[str, Any]:
        return {"plan": self.plan, "images": None}

    def _open(self) -> PlannedImages:
        if self.images is None:
            self.images = PlannedImages(self.plan)
        return self.images
