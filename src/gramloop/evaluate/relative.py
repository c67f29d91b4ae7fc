"""rPC and mCE of an evaluation: what is left of the clean score, and errors against the baseline of the same run.

Neither is in results.csv, whose bytes stay what they were: rPC needs a second evaluation, and mCE follows from the rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gramloop.data.suites import Condition, find_suite
from gramloop.errors import GramLoopError
from gramloop.evaluate.effective import clean_plan, misfit
from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.plan import Plan, condition_of
from gramloop.evaluate.results import Results, collect
from gramloop.evaluate.store import Store
from gramloop.metrics.robustness import mean_corruption_error, relative_performance

CLEAN = "clean"
MCE_WORDS = "mCE: errors (100 - score) against the baseline's, by shift, in percent; 100 is the baseline, lower is better."


@dataclass(frozen=True)
class Relative:
    """rPC and mCE in percent by method; empty where they are not known, and then perhaps a sentence why."""

    rpc: Mapping[str, float] = field(default_factory=dict)
    mce: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""


def option_of(plan: Plan) -> str:
    """What has to be given for rPC."""
    return f"--clean-results DIR, a finished evaluation of the suite {find_suite(plan.suite).base}"


def check_clean_results(plan: Plan, clean: Path | None) -> None:
    """Refuse results on clean images that do not belong to a plan, before any work is done."""
    if clean is None:
        return
    suite = find_suite(plan.suite)
    if not suite.generated or plan.label_free:
        told = "without labels, agreement is relative to the clean prediction as it is" * plan.label_free
        raise GramLoopError(
            f"--clean-results belongs to a -c or -p suite with labels: {told or f'{plan.suite} is none'}"
        )
    found = clean_plan(clean, option_of(plan))
    if reason := misfit(plan, found, clean, suite.base, "rPC") or other_images(plan, found, str(clean)):
        raise GramLoopError(reason)


def other_images(shifted: Plan, clean: Plan, name: str) -> str:
    """How an evaluation on clean images shows others than one on shifted images was made from, or nothing."""
    [many] = set(clean.conditions.values())
    if set(shifted.conditions.values()) != {many}:
        asked = ", ".join(map(str, sorted(set(shifted.conditions.values()))))
        return f"{name} has {many} images; rPC needs the {asked} of this evaluation"
    here, there = shifted.data.contents.get(CLEAN), clean.data.contents.get(CLEAN)
    if here is not None and there is not None and here != there:
        return f"{name} was made with other images; rPC needs those of this evaluation, unshifted"
    return ""


def relative(results: Results, clean: Path | None = None) -> Relative:
    """rPC where the clean score is known, mCE where the baseline is among the methods."""
    suite, names = find_suite(results.plan.suite), [method.name for method in results.plan.methods]
    means = {name: mean for name in names if (mean := results.mean(name)) is not None}
    if not suite.generated or len(means) < len(names):
        return Relative()
    scores = {name: scores_of(results, name) for name in names}
    expected = [condition_of(key) for key in results.plan.conditions]
    reasons, rpc, mce = [], {}, {}
    try:
        if BASELINE in names:
            mce = {name: mean_corruption_error(scores[name], scores[BASELINE], expected) for name in names}
    except GramLoopError as error:
        reasons.append(f"mCE is not known: {error}")
    try:
        if ordinary := _clean_scores(results, clean):
            rpc = {name: relative_performance(means[name], ordinary[name]) for name in names}
    except GramLoopError as error:
        reasons.append(f"rPC is not known: {error}")
    return Relative(rpc, mce, "; ".join(reasons))


def scores_of(results: Results, method: str) -> dict[Condition, float]:
    """The main metric of every complete condition."""
    return {condition_of(one.condition): one.scores[method][results.metric] for one in results.conditions}


def _clean_scores(results: Results, clean: Path | None) -> dict[str, float]:
    """The scores on clean images by method; empty where nobody knows them."""
    own = next((one for one in results.conditions if one.condition == CLEAN), None)
    if clean is not None:
        check_clean_results(results.plan, clean)
        found = collect(Store(clean, clean_plan(clean, option_of(results.plan)))).conditions
        own = found[0] if found else None
        if own is None:
            raise GramLoopError(f"the evaluation in {clean} is not finished")
    if own is None or results.plan.label_free:
        return {}
    scores = {name: values[results.metric] for name, values in own.scores.items()}
    if not all(map(math.isfinite, scores.values())):
        raise GramLoopError("clean images have no score for every method")
    return scores
