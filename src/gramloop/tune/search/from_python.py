"""``gramloop.tune(model, data, suite=…, out=…)``: a search in one call, of a model by name or in memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Unpack

from gramloop.data.suites import find_suite
from gramloop.evaluate.evaluation import Model, SetOptions, request_for
from gramloop.tune.search.options import Options
from gramloop.tune.search.space import Space
from gramloop.tune.search.suites import SCENE_SPLIT, suite_subject
from gramloop.tune.search.tuning import Tuning, tune
from gramloop.util.device import numbered_device

SEVERITY = 3  # where nothing else is said


def tune_model(
    model: Model,
    data: Path | str | None = None,
    *,
    suite: str,
    out: Path | str,
    workers: int | None = None,
    budget: int = 2000,
    space: Space | None = None,
    options: Options | None = None,
    source: Path | str | None = None,
    **given: Unpack[SetOptions],
) -> Tuning:
    """Find mitigations for a model over a suite, or go on where an earlier call stopped.

    Args:
        model, data, suite, out, workers: as for `gramloop.evaluate.evaluate_model`.
        budget: image predictions, everything included.
        space, options: what to choose from, and how candidates are compared.
        source: what ordinary images look like, as `CalibrationStats.save` stores it; learnt from clean images
            of the search where a candidate needs it and nothing is given.
        given: see `gramloop.evaluate.from_python.SetOptions`; severity 3 where none is given.
    """
    request, many = request_for(model, data, suite, Path(out), workers, SCENE_SPLIT, **given)
    if not request.severities and find_suite(suite).generated:
        request = replace(request, severities=[SEVERITY])
    if source is not None:
        request = replace(request, files={**request.files, "source": str(Path(source).resolve())})
    subject = suite_subject(request, numbered_device(given.get("device")))
    return tune(subject, space=space, budget=budget, options=options, out=out, workers=many)
