"""Effective robustness: what a detector keeps on COCO-O beyond what its AP on COCO lets one expect."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gramloop.errors import GramLoopError
from gramloop.evaluate.beginning import plan_in
from gramloop.evaluate.plan import Plan
from gramloop.evaluate.results import Results, collect
from gramloop.evaluate.store import PLAN, Store
from gramloop.metrics.robustness import coco_o_map, effective_robustness

SHIFTED, CLEAN = "coco-o", "coco"  # the suites
OPTION = f"--coco-results DIR, a finished evaluation of the suite {CLEAN}"


@dataclass(frozen=True)
class Effective:
    """ER in percent points by method, or one sentence about why it is not known."""

    values: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""


def check_use(plan: Plan, clean: Path | None) -> None:
    """Refuse results on COCO beside another suite, or of another model, before any work is done."""
    if clean is None:
        return
    if plan.suite != SHIFTED or plan.task != "detection":
        raise GramLoopError(
            f"--coco-results belongs to --suite {SHIFTED} --task detect, not to {plan.suite}, {plan.task}"
        )
    if reason := misfit(plan, clean_plan(clean, OPTION), clean, CLEAN, "ER"):
        raise GramLoopError(reason)


def effective(results: Results, clean: Path | None) -> Effective:
    """ER = mAP on COCO-O - 0.45 AP on COCO, for every method."""
    if clean is None:
        return Effective(reason=f"ER is not known without results on COCO; give {OPTION}")
    try:
        plan = clean_plan(clean, OPTION)
        if reason := misfit(results.plan, plan, clean, CLEAN, "ER"):
            return Effective(reason=reason)
        found = collect(Store(clean, plan)).conditions
        ordinary = {name: values["AP"] for name, values in found[0].scores.items()} if found else {}
        if not ordinary or not all(map(math.isfinite, ordinary.values())):
            return Effective(reason=f"ER is not known: the evaluation in {clean} is not finished")
        values = {}
        for method in results.plan.methods:
            domains = {one.condition: one.scores[method.name]["AP"] for one in results.conditions}
            values[method.name] = effective_robustness(coco_o_map(domains), ordinary[method.name])
    except GramLoopError as error:
        return Effective(reason=f"ER is not known: {error}")
    return Effective(values)


def clean_plan(folder: Path, option: str) -> Plan:
    """The plan of an evaluation on clean images that an option names."""
    if not (folder / PLAN).is_file():
        raise GramLoopError(f"{folder} holds no evaluation; give {option}")
    return plan_in(folder)


def misfit(shifted: Plan, clean: Plan, folder: Path, suite: str, what: str) -> str:
    """Why an evaluation on the clean images of a suite does not belong to one on shifted ones, or nothing."""
    if (clean.suite, clean.task) != (suite, shifted.task):
        return f"{folder} evaluates {clean.suite}, {clean.task}; {what} needs {suite}, {shifted.task}"
    if clean.truth != shifted.truth:
        return f"{folder} compares with {clean.truth}, not with {shifted.truth}; {what} needs the same"
    if dict(clean.model.sha256) != dict(shifted.model.sha256):
        return f"{folder} was made with other weights; {what} needs those of this evaluation"
    if dict(clean.model.sizes) != dict(shifted.model.sizes):
        return f"{folder} shows images in other sizes ({dict(clean.model.sizes)}, not {dict(shifted.model.sizes)})"
    there = {method.name: method for method in clean.methods}
    for method in shifted.methods:
        if method.name not in there:
            return f"{folder} has no method {method.name}; {what} needs every method of this evaluation there"
        if there[method.name] != method:
            return f"the method {method.name} has other settings in {folder}; {what} needs the same"
    return ""
