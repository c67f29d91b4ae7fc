"""Where results are kept: one Parquet file per unit, whole or absent, next to the plan and a manifest.

    plan.json       what is evaluated; its hash is in every unit's file
    manifest.json   who ran it: versions, checksums of weights, seed, devices, one entry per start
    units/          <condition>-<severity>/<method>/<first>-<last + 1>.parquet
    results.csv     the scores, in full precision

A unit is one method on some images of one condition (`gramloop.evaluate.plan.Unit`). Its file carries the hash of the
plan, or of any `Workload`, and the settings of its method, so a method can be added to a folder at any time and only
that is run; `gramloop.evaluate.runner` shows how units of any workload are run and read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from gramloop.errors import GramLoopError
from gramloop.evaluate.plan import (
    Part,
    Plan,
    Unit,
    Workload,
    difference,
    merged,
    read_plan,
)
from gramloop.evaluate.rows import Facts, Failure, MethodRows, content_digest, unit_schema
from gramloop.mitigations.stack import replay_of
from gramloop.tasks.base import AnyTask
from gramloop.util.files import atomic_write, is_taken, remove_leftovers
from gramloop.util.json_files import read_checked

PLAN, MANIFEST, UNITS, RESULTS = "plan.json", "manifest.json", "units", "results.csv"
SCENES = "scenes"  # where scenes are drawn in a folder of results
_KEY, _SEAL = b"gramloop", b"gramloop.sha256"  # our entries in the metadata of a Parquet file

D = TypeVar("D", bound=Plan | Workload)


class UnusableFile(GramLoopError):  # noqa: N818 - the state of a file
    """A unit's file that is torn or damaged; it is computed again."""


class ForeignFile(GramLoopError):  # noqa: N818 - the state of a file
    """A whole file that belongs to another plan, and is never overwritten."""


@dataclass(frozen=True)
class StoredCondition:
    """A complete condition: the rows of every method on the images that all of them could be scored on."""

    key: str
    failures: tuple[Failure, ...]  # images that are left out for all methods
    methods: Mapping[str, MethodRows]

    @property
    def image_ids(self) -> list[str]:
        """Of the images that were scored, in order of position."""
        return next(iter(self.methods.values())).image_ids


class Store(Generic[D]):
    """The results of a plan, or of any workload, in a folder."""

    def __init__(self, folder: Path, plan: D) -> None:
        self.folder, self.plan = folder, plan

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "plan": self.plan}  # a custom task may not pickle

    @cached_property
    def task(self) -> AnyTask:
        """The task of the plan."""
        return self.plan.load_task()

    @cached_property
    def scored(self) -> dict[str, Any]:
        """The scores of conditions, as `gramloop.evaluate.results.collect` keeps them."""
        return {}

    def path(self, unit: Unit) -> Path:
        """The unit's file."""
        return self.folder / UNITS / f"{unit.name}.parquet"

    def write(
        self, unit: Unit, table: Any, failures: Sequence[Failure], refused: Sequence[Failure], facts: Facts
    ) -> None:
        """Store a finished unit under a temporary name, then give it its own."""
        about = {
            "plan": self.plan.hash,
            "unit": _described(unit),
            "diagnostics": self.plan.diagnostics,
            "failures": [asdict(failure) for failure in failures],
            "refused": [asdict(failure) for failure in refused],
            "facts": asdict(facts),
        }
        text = json.dumps(about)
        marked = table.replace_schema_metadata({_KEY: text.encode(), _SEAL: _seal(text, table)})
        sink = pa.BufferOutputStream()
        pq.write_table(marked, sink, compression="zstd")
        atomic_write(self.path(unit), sink.getvalue().to_pybytes(), durable=True)

    def read(self, unit: Unit) -> MethodRows | None:
        """A finished unit, None if it is not there; `UnusableFile` if it is damaged, `ForeignFile` if it is another's."""
        path = self.path(unit)
        if not path.is_file():
            return None
        try:
            table = pq.read_table(path, partitioning=None)
            table.validate(full=True)
        except (pa.ArrowException, OSError, ValueError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise UnusableFile(f"{path} is torn or damaged ({reason})") from error
        entries = table.schema.metadata or {}
        if _KEY not in entries:  # damage may hide the key, but no single one renames every column
            if not {*unit_schema(self.task, self.plan.label_free).names} & {*table.column_names}:
                raise _foreign(path, "was not written by gramloop evaluate")
            raise UnusableFile(f"{path} is damaged: what it says about itself is lost")
        if entries.get(_SEAL) != _seal(entries[_KEY].decode(errors="replace"), table):
            raise UnusableFile(f"{path} is damaged: its checksum is another")
        return self._checked(unit, path, table, json.loads(entries[_KEY]))

    def _checked(self, unit: Unit, path: Path, table: Any, about: Mapping[str, Any]) -> MethodRows | None:
        if about.get("plan") != self.plan.hash:
            raise _foreign(path, f"belongs to the plan {about.get('plan')}, not to {self.plan.hash}")
        if about["unit"] != _described(unit):
            raise _foreign(path, f"holds another part of the plan ({about['unit']})")
        if not table.schema.equals(unit_schema(self.task, self.plan.label_free)):
            raise UnusableFile(f"{path} has other columns than this version of gramloop writes")
        failures = tuple(Failure(**each) for each in about["failures"])
        refused = tuple(Failure(**each) for each in about["refused"])
        lost = {failure.position for failure in (*failures, *refused)}
        if table["position"].to_pylist() != [each for each in unit.images if each not in lost]:
            raise UnusableFile(f"{path} does not hold every image of its part once")
        if self.plan.diagnostics and replay_of(unit.method.stack) and not about["diagnostics"]:
            return None  # it is run again, with what its replay measures
        facts = (Facts(**about["facts"]),)
        return MethodRows(self.task, table.replace_schema_metadata(), failures, refused, facts)

    def survey(self, parts: Iterable[Part]) -> tuple[list[Part], list[str]]:
        """What is not stored of some parts, and which files are damaged, which count as not stored."""
        missing, damaged = list[Part](), list[str]()
        for part in parts:
            lacking = []
            for unit in part.units:
                try:
                    lacking += [unit.method] if self.read(unit) is None else []
                except UnusableFile as problem:
                    lacking.append(unit.method)
                    damaged.append(str(problem))
            missing += [replace(part, methods=tuple(lacking))] if lacking else []
        return missing, damaged

    def missing(self, parts: Iterable[Part]) -> list[Part]:
        """What is not stored of some parts."""
        return self.survey(parts)[0]

    def rows(self, units: Sequence[Unit]) -> MethodRows | None:
        """The rows of units of one method, in order of position; None while one of them is not stored."""
        found = [self.read(unit) for unit in units]
        stored = [unit for unit in found if unit is not None]
        if len(stored) < len(units):
            return None
        table = pa.concat_tables([unit.table for unit in stored])
        positions = table["position"].to_numpy()
        if (positions[1:] < positions[:-1]).any():  # sorting copies every box
            table = table.sort_by("position")
        return MethodRows(
            self.task,
            table.combine_chunks(),
            tuple(failure for unit in stored for failure in unit.failures),
            tuple(failure for unit in stored for failure in unit.refused),
            tuple(each for unit in stored for each in unit.facts),
        )

    def image_ids(self, unit: Unit) -> list[str]:
        """The ids of a unit's images; none while it is not stored."""
        found = self.read(unit)
        return [] if found is None else found.image_ids


def read_condition(store: Store[Plan], key: str) -> StoredCondition | None:
    """A condition of a plan; None unless every unit of every method is stored.

    An image that one method could not be scored on is left out for all of them, so that their scores stay comparable.
    """
    parts = store.plan.parts_of(key)
    found: dict[str, MethodRows] = {}
    for method in store.plan.methods:
        rows = store.rows([Unit(key, method, part.images) for part in parts])
        if rows is None:
            return None
        found[method.name] = rows
    failures: dict[int, Failure] = {}
    for rows in found.values():
        for failure in (*rows.failures, *rows.refused):
            failures.setdefault(failure.position, failure)
    kept = {name: rows.without(set(failures)) for name, rows in found.items()}
    return StoredCondition(key, tuple(failures[position] for position in sorted(failures)), kept)


@dataclass(frozen=True)
class _Manifest:
    starts: list[dict[str, Any]]


def record_start(store: Store[Plan], start: Mapping[str, Any]) -> None:
    """Add this start to the manifest."""
    path, plan = store.folder / MANIFEST, store.plan
    starts: list[Any] = []
    if path.is_file():
        starts = read_checked(path, _Manifest, "a manifest written by gramloop evaluate").starts
    content = {
        "plan": plan.hash,
        "configuration": {method.name: method.as_json() for method in plan.methods},
        "versions": dict(plan.versions),
        "weights": dict(plan.model.sha256),
        "seed": plan.seed,
        "starts": [*starts, dict(start)],
    }
    atomic_write(path, (json.dumps(content, indent=1) + "\n").encode(), durable=True)


def open_folder(folder: Path, plan: Plan) -> Store[Plan]:
    """The store of a plan: the one that the folder holds, with new methods added to it, or a new one."""
    plan = plan_with_stored(folder, plan)
    path, text = folder / PLAN, plan.text().encode()
    if not path.is_file() or path.read_bytes() != text:
        atomic_write(path, text, durable=True)
    remove_leftovers(folder)  # of processes that ended: jobs of a cluster outlive the run that started them
    return Store(folder, plan)


def plan_with_stored(folder: Path, plan: Plan) -> Plan:
    """The plan with what the folder holds already; refuses a folder with results of another one. Nothing is written."""
    if not (folder / PLAN).is_file():
        _refuse_taken(folder)
        return plan
    found = plan_in(folder)
    if found.hash != plan.hash:
        raise GramLoopError(
            f"{folder} holds results of the plan {found.hash}, not of {plan.hash}: it was made with "
            f"{difference(found, plan)}; choose another folder, or ask for what it was made with"
        )
    return merged(found, plan, folder)


def _refuse_taken(folder: Path) -> None:
    if is_taken(folder, SCENES):
        raise GramLoopError(f"{folder} is not empty and has no {PLAN}; choose a new folder for the results")


def plan_in(folder: Path) -> Plan:
    """The plan of a results folder."""
    if not (folder / PLAN).is_file():
        raise GramLoopError(f"{folder} holds no evaluation; gramloop evaluate --suite NAME begins one")
    return read_plan(folder / PLAN)


def check_before_drawing(folder: Path, scenes: Path) -> None:
    """Refuse a folder that cannot be meant, before scenes are drawn into it."""
    if not (folder / PLAN).is_file():
        _refuse_taken(folder)
    elif Path(root := plan_in(folder).data.root) != scenes.resolve() and scenes.is_relative_to(folder):
        raise GramLoopError(
            f"{folder} holds an evaluation of {root}, not of scenes drawn there; choose another folder, or give --data"
        )


def _foreign(path: Path, reason: str) -> ForeignFile:
    return ForeignFile(f"{path} {reason}; move it away, or choose another folder for the results")


def _described(unit: Unit) -> dict[str, Any]:
    method = unit.method
    return {"condition": unit.condition, "method": {method.name: method.hash}, "images": list(unit.images)}


def _seal(text: str, table: Any) -> bytes:
    return hashlib.sha256(f"{text}\n{content_digest(table)}".encode()).hexdigest().encode()
