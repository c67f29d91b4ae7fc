"""``gramloop.tune(model, data, suite=…, out=…)``: what makes this model better on these data under shift, at what cost.

A folder of a search holds plan.json, the units of everything measured (as `gramloop.evaluate.store` keeps them),
calibration.safetensors where it was needed, and in the end best.json: the choice with its evidence.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from gramloop.errors import GramLoopError
from gramloop.evaluate.engines import start_workers
from gramloop.evaluate.evaluation import Model, options_for
from gramloop.evaluate.plan import check_behaviour
from gramloop.evaluate.provenance import CALIBRATION
from gramloop.evaluate.runner import Runner
from gramloop.evaluate.store import PLAN, UNITS, Store
from gramloop.mitigations.calibration import CalibrationStats, calibrate, read_stats
from gramloop.tasks.base import read_labelled
from gramloop.tasks.identity import Behaviour
from gramloop.tune.options import SearchOptions, TuneOptions
from gramloop.tune.planning import PLAN_WORDS, UNHASHED, Search, read_search_plan, search_suite
from gramloop.tune.result import RESULT, Tuning
from gramloop.tune.schedule import CLEAN
from gramloop.tune.search import Measurements, run_search
from gramloop.tune.space import Space
from gramloop.util.device import deterministic, numbered_device
from gramloop.util.files import atomic_write, file_digest, locked, remove_leftovers
from gramloop.util.json_files import checked, first_difference


def tune(
    model: Model,
    data: Path | str | None = None,
    *,
    suite: str,
    out: Path | str,
    budget: int = 2000,
    space: Space | None = None,
    options: SearchOptions | None = None,
    workers: int | None = None,
    calibration: Path | str | None = None,
    advance: Callable[[int], None] = lambda _: None,
    **more: Any,
) -> Tuning:
    """Find mitigations within a budget of predictions, and judge them on images and shifts not searched.

    Args:
        model: as for `gramloop.evaluate`.
        data: the folder of the set; nothing for scenes, which are drawn.
        suite: such as "scenes-c", "coco-c" or "my-set-c".
        out: a folder for plan, measurements and result; the same call resumes there after an interruption.
        budget: predictions, everything included; never exceeded.
        space: what to choose from; by default cheap mitigations and some replays.
        options: how candidates are compared.
        workers: processes; as many as the cores hold, by default. One for a model in memory.
        calibration: a file of calibration statistics; by default they are learnt from clean images of the search.
        advance: called with the number of predictions that were made or found.
        more: any other field of `TuneOptions` and its groups (severity 3 by default).
    """
    more |= {"suite": suite, "out": out, "budget": budget, "calibration": calibration, "workers": workers}
    asked, held = options_for(TuneOptions, model, data, **more)
    asked = asked if options is None else replace(asked, choice=options)
    search, device = search_suite(asked, held=held, space=space), numbered_device(asked.model.device)
    return run_tuning(search, asked.out, workers=asked.workers, device=device, advance=advance)


def run_tuning(
    search: Search,
    folder: Path,
    *,
    workers: int | None = 1,
    device: str | None = None,
    advance: Callable[[int], None] = lambda _: None,
    command: str = "",
) -> Tuning:
    """Run a planned search, or resume it in its folder, and store the result there.

    ``advance`` is called with the number of predictions that were made or found; ``command`` was typed, for the report.
    """
    with locked(folder):
        plan = _begin(folder, search, command)
        stats = _find_calibration(search, folder, device)
        advance(search.schedule.calibration)
        workload = replace(search.workload, load_calibration=partial(_load_stats, stats))
        store = Store(folder, workload)
        with start_workers(workload, store, workers, device) as processes:
            digest = "" if stats is None else file_digest(stats)
            outcome = run_search(search, Measurements(search, store, processes, digest, advance))
        tuning = Tuning(search, outcome, plan["begun"], stats)
        tuning.write(folder / RESULT)
    return tuning


def _load_stats(stats: Path | None, *_: object) -> CalibrationStats | None:
    return read_stats(stats)


def _begin(folder: Path, search: Search, command: str) -> dict[str, Any]:
    """The plan of the folder, with the day on which it was begun; refuses the folder of another search."""
    remove_leftovers(folder)
    found = read_search_plan(folder)
    if found is None:
        if (folder / UNITS).exists():
            raise GramLoopError(f"{folder} has {UNITS} but no {PLAN}; choose another folder")
        asked = {**search.target.asked, **({"command": command} if command else {})}
        plan = {**search.plan, "begun": datetime.now(UTC).date().isoformat(), "asked": asked}
        atomic_write(folder / PLAN, (json.dumps(plan, indent=1) + "\n").encode(), durable=True)
        return plan
    if difference := first_difference(found, search.plan, skip=UNHASHED):
        raise GramLoopError(
            f"{folder} holds a search with {difference}; choose another folder, or the settings it was begun with"
        )
    before = checked(found.get("behaviour"), Behaviour | None, str(folder / PLAN), PLAN_WORDS)  # type: ignore[arg-type]
    known = "version" in found["subject"].get("model", {})
    check_behaviour(before, search.target.behaviour, known, f"{folder} holds a search")
    return found


def _find_calibration(search: Search, folder: Path, device: str | None) -> Path | None:
    """The file of calibration statistics: a given one is copied; else they are learnt from clean images of the search.

    Units carry its checksum, so that statistics that come out differently are not mixed.
    """
    path = folder / CALIBRATION
    if search.target.calibration is not None:
        atomic_write(path, Path(search.target.calibration).read_bytes())
        return path
    if not search.schedule.calibration:
        return None
    if path.is_file():
        with suppress(GramLoopError):  # a damaged file is made again
            read_stats(path)
            return path
    samples = search.split.images["search"][CLEAN][: search.schedule.calibration]
    runner = Runner(search.workload, device=device)
    with deterministic(search.workload.threads):
        records = runner.images.records(CLEAN, tuple(sample.position for sample in samples))
        images = [read_labelled(record, search.workload.task, labels=False) for record in records]
        # an image that cannot be read is reported where it is measured
        calibrate(runner.predictor, [each.pixels for each in images if not isinstance(each, str)]).save(path)
    return path
