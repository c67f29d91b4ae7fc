"""A run goes on only with what it began with: weights and versions are compared before anything is run or moved.

Images are compared where they are opened (`gramloop.evaluate.sources`) and again as each is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gramloop.errors import GramLoopError
from gramloop.evaluate.plan import Plan
from gramloop.evaluate.sources import checksums, versions, weight_files
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor
from gramloop.tasks.user_fingerprints import object_fingerprints, user_fingerprints
from gramloop.util.checksums import save_checksums

_AGAIN = "or choose another folder for the results"


def refuse_other_origin(plan: Plan) -> None:
    """Refuse other versions of packages, and other weights in files, than those that a plan was made with."""
    now = versions()
    for name, then in plan.versions.items():
        if now.get(name, "none") != then:
            raise GramLoopError(
                f"the evaluation was planned with {name} {then}, and here is {now.get(name, 'none')}; numbers of both "
                f"must not be mixed: install {then} again, {_AGAIN}"
            )
    stored = {name: value for name, value in plan.model.sha256.items() if _is_file(plan, name)}
    _refuse_other_weights(plan, stored, checksums(plan.model.files, plan.task))


def refuse_other_model(plan: Plan, predictor: Predictor[Prediction]) -> None:
    """Refuse a loaded model that is no file: its code or its weights are not those that were planned."""
    files = plan.model.files
    stored = {name: value for name, value in plan.model.sha256.items() if not _is_file(plan, name)}
    if "make" in files:
        _refuse_other_weights(plan, stored, user_fingerprints(files["make"], predictor))
    if "object" in files:
        _refuse_other_weights(plan, stored, object_fingerprints(predictor))


def _is_file(plan: Plan, name: str) -> bool:
    kind = name.split("/")[0]
    return kind in plan.model.files and kind not in ("make", "object")


def _refuse_other_weights(plan: Plan, planned: Mapping[str, str], found: Mapping[str, str]) -> None:
    for name in {**planned, **found}:
        then, now = planned.get(name), found.get(name)
        if then != now:
            raise GramLoopError(
                f"{_where(plan, name)} changed since the evaluation was planned: it is {_short(now)}, "
                f"and was {_short(then)}; put it back, {_AGAIN}"
            )


def _where(plan: Plan, name: str) -> str:
    kind, _, below = name.partition("/")
    if kind in plan.model.files:
        return str(Path(plan.model.files[kind], below) if below else plan.model.files[kind])
    return f"{name!r} of {next(iter(plan.model.files.values()))}"


def _short(value: str | None) -> str:
    if value is None:
        return "not there"
    return f"sha256 {value[:12]}…" if len(value) == 64 else value


def remember_files(plan: Plan, folder: Path) -> None:
    """Keep in the results what is known of weights and images, so that no worker need read them to compare them."""
    save_checksums(folder, [*weight_files(plan.model.files, plan.task).values(), Path(plan.data.root)])
