"""Where results are kept: one Parquet file per unit, whole or absent, next to the plan and a manifest.

    plan.json       what is evaluated; its hash is in every unit's file
    manifest.json   who ran it: versions, checksums of weights, seed, devices, one entry per start
    units/          <condition>-<severity>/<method>/<first>-<last + 1>.parquet
    results.csv     the scores, in full precision

A unit is one method on some images of one condition (`gramloop.evaluate.plan.Unit`). Its file carries the hash of the
plan, or of any `Subject`, and the settings of its method, so a method can be added to a folder at any time and only
that is run; `gramloop.evaluate.runner` shows how units of any subject are run and read.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from gramloop.errors import GramLoopError
from gramloop.evaluate.plan import (
    CalibrationSplit,
    Part,
    Plan,
    Subject,
    Unit,
    difference,
    merged,
    parse_plan,
    read_plan,
)
from gramloop.evaluate.rows import Facts, Failure, MethodRows, content_digest, unit_schema
from gramloop.tasks.base import AnyTask
from gramloop.util.files import atomic_write, is_taken, remove_leftovers
from gramloop.util.json_files import read_checked

PLAN, MANIFEST, UNITS, RESULTS = "plan.json", "manifest.json", "units", "results.csv"
SCENES = "scenes"  # where scenes are drawn in a folder of results
_KEY, _SEAL = b"gramloop", b"gramloop.sha256"  # our entries in the metadata of a Parquet file


D = TypeVar("D", bound=Plan | Subject)


class UnusableFile(GramLoopError):  # noqa: N818 - the state of a file
    """A unit's file that is torn, damaged or of another plan."""


class ForeignFile(UnusableFile):
    """A whole file that belongs elsewhere: it is quarantined, never overwritten."""


@dataclass(frozen=True)
class StoredUnit:
    """A unit's file, read and checked."""

    table: Any  # pyarrow.Table, see gramloop.evaluate.rows
    failures: tuple[Failure, ...]
    refused: tuple[Failure, ...]
    facts: Facts


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
    """The results of a plan, or of any subject, in a folder."""

    def __init__(self, folder: Path, plan: D) -> None:
        self.folder, self.plan = folder, plan

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "plan": self.plan}  # a custom task may not pickle

    @cached_property
    def task(self) -> AnyTask:
        """The task of the plan."""
        return self.plan.load_task()

    @cached_property
    def _description(self) -> str:
        """The plan in few characters, for every unit's file: a lost one is restored from any of them."""
        return base64.b64encode(zlib.compress(self.plan.description.encode(), 9)).decode()

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
            "made_with": self._description,
            "failures": [asdict(failure) for failure in failures],
            "refused": [asdict(failure) for failure in refused],
            "facts": asdict(facts),
        }
        text = json.dumps(about)
        marked = table.replace_schema_metadata({_KEY: text.encode(), _SEAL: _seal(text, table)})
        sink = pa.BufferOutputStream()
        pq.write_table(marked, sink, compression="zstd")
        atomic_write(self.path(unit), sink.getvalue().to_pybytes(), durable=True)

    def read(self, unit: Unit) -> StoredUnit | None:
        """A finished unit, None if it is not there, `UnusableFile` if what is there cannot be used."""
        path = self.path(unit)
        if not path.is_file():
            return None
        try:
            table = pq.read_table(path, partitioning=None)
            table.validate(full=True)
        except (pa.ArrowException, OSError, ValueError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise UnusableFile(f"{path} is torn or damaged ({reason})") from error
        return self._checked(unit, path, table)

    def _checked(self, unit: Unit, path: Path, table: Any) -> StoredUnit | None:
        entries = table.schema.metadata or {}
        if _KEY not in entries:
            raise ForeignFile(f"{path} was not written by gramloop evaluate")
        if entries.get(_SEAL) != _seal(entries[_KEY].decode(errors="replace"), table):
            raise UnusableFile(f"{path} is damaged: its checksum is another")
        try:
            about = json.loads(entries[_KEY])
            owner, described, measured = about["plan"], about["unit"], about["diagnostics"]
            failures = tuple(Failure(**each) for each in about["failures"])
            refused = tuple(Failure(**each) for each in about["refused"])
            facts = Facts(**about["facts"])
        except (KeyError, ValueError, TypeError) as error:
            raise ForeignFile(f"{path} was written by another version of gramloop") from error
        if owner != self.plan.hash:
            raise ForeignFile(f"{path} belongs to the plan {owner}, not to {self.plan.hash}")
        if described != _described(unit):
            raise ForeignFile(f"{path} holds another part of the plan ({described})")
        if not table.schema.equals(unit_schema(self.task, self.plan.label_free)):
            raise ForeignFile(f"{path} has other columns than this version of gramloop writes")
        lost = {failure.position for failure in (*failures, *refused)}
        if table["position"].to_pylist() != [each for each in unit.images if each not in lost]:
            raise UnusableFile(f"{path} does not hold every image of its part once")
        if self.plan.diagnostics and unit.method.has_replay and not measured:
            return None  # it is run again, with what its replay measures
        return StoredUnit(table, failures, refused, facts)

    def missing(self, parts: Iterable[Part]) -> list[Part]:
        """What is not stored of some parts; a file that cannot be used counts as not stored."""
        left = (
            replace(part, methods=tuple(unit.method for unit in part.units if not self.holds(unit)))
            for part in parts
        )
        return [part for part in left if part.methods]

    def holds(self, unit: Unit) -> bool:
        """Whether a unit is stored and can be used."""
        try:
            return self.read(unit) is not None
        except UnusableFile:
            return False

    def rows(self, units: Sequence[Unit]) -> MethodRows | None:
        """The rows of units of one method, in order of position; None while one of them is not stored."""
        found = [self.read(unit) for unit in units]
        stored = [unit for unit in found if unit is not None]
        if len(stored) < len(units):
            return None
        table = pa.concat_tables([unit.table.replace_schema_metadata() for unit in stored])
        positions = table["position"].to_numpy()
        if (positions[1:] < positions[:-1]).any():  # sorting copies every box
            table = table.sort_by("position")
        return MethodRows(
            self.task,
            table.combine_chunks(),
            tuple(failure for unit in stored for failure in unit.failures),
            tuple(failure for unit in stored for failure in unit.refused),
            tuple(unit.facts for unit in stored),
        )

    def image_ids(self, unit: Unit) -> list[str]:
        """The ids of a unit's images, read without anything else; none while it is not stored."""
        path = self.path(unit)
        try:
            found: list[str] = pq.read_table(path, columns=["image_id"], partitioning=None)[
                "image_id"
            ].to_pylist()
        except FileNotFoundError:
            return []
        except (pa.ArrowException, OSError, ValueError) as error:
            raise UnusableFile(f"{path} is torn or damaged ({error})") from error
        return found

    def quarantine(self, unit: Unit) -> Path:
        """Rename a foreign file, so that the unit can be computed and nothing is lost."""
        path = self.path(unit)
        number = 1
        while (aside := path.with_name(f"{path.name}.foreign-{number}")).exists():
            number += 1
        path.rename(aside)
        return aside


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


def file_states(store: Store[Plan], key: str) -> tuple[tuple[int, ...], ...] | None:
    """What distinguishes the files of a condition from others that may take their place; None unless all are there."""
    try:
        found = [store.path(unit).stat() for part in store.plan.parts_of(key) for unit in part.units]
    except OSError:
        return None
    return tuple((each.st_ino, each.st_size, each.st_mtime_ns, each.st_ctime_ns) for each in found)


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
    plan = check_folder(folder, plan)
    path, text = folder / PLAN, plan.description.encode()
    if not path.is_file() or path.read_bytes() != text:
        atomic_write(path, text, durable=True)
    remove_leftovers(
        folder
    )  # only of processes that ended: jobs of a cluster outlive the run that started them
    return Store(folder, plan)


def check_folder(folder: Path, plan: Plan) -> Plan:
    """The plan with what the folder holds already; refuses a folder with results of another one. Nothing is written."""
    owners = unit_owners(folder)
    if plan.hash in owners:  # whatever became of plan.json
        return merged(_recorded(owners[plan.hash]) or plan, plan, folder)
    found = plan_in(folder) if (folder / PLAN).is_file() or owners else None
    if found is None:
        if is_taken(folder, SCENES):
            raise GramLoopError(
                f"{folder} is not empty and has no {PLAN}; choose a new folder for the results"
            )
        return plan
    if found.hash != plan.hash:
        raise GramLoopError(
            f"{folder} holds results of the plan {found.hash}, not of {plan.hash}: it was made with "
            f"{difference(found, plan)}; choose another folder, or ask for what it was made with"
        )
    return merged(found, plan, folder)


def split_in(folder: Path) -> CalibrationSplit | None:
    """The calibration split that the evaluation in a folder holds out, if there is one."""
    with suppress(GramLoopError):  # what is wrong with the folder is reported when it is checked
        return plan_in(folder).calibration_split
    return None


def check_before_drawing(folder: Path, scenes: Path) -> None:
    """Refuse a folder that cannot be meant, before scenes are drawn into it."""
    if (folder / PLAN).is_file() or unit_owners(folder):
        if Path(plan_in(folder).data.root) != scenes.resolve() and scenes.is_relative_to(folder):
            raise GramLoopError(
                f"{folder} holds an evaluation of {plan_in(folder).data.root}, not of scenes drawn there; choose another "
                "folder, or give --data"
            )
    elif is_taken(folder, SCENES):
        raise GramLoopError(f"{folder} is not empty and has no {PLAN}; choose a new folder for the results")


def plan_in(folder: Path) -> Plan:
    """The plan of a results folder: its plan.json, or where that is gone what its units hold. Nothing is written."""
    owners, path = unit_owners(folder), folder / PLAN
    if not path.is_file():
        if not owners:
            raise GramLoopError(f"{folder} holds no evaluation; gramloop evaluate --suite NAME begins one")
        if len(owners) != 1 or (plan := _recorded(next(iter(owners.values())))) is None:
            raise GramLoopError(
                f"{folder} has no {PLAN}, and its units belong to {' and '.join(owners)}; run the command "
                "that began the evaluation again"
            )
        return plan
    again = f"move {path} away, and gramloop evaluate --out {folder} restores it from the units, of which none is lost"
    try:
        found = read_plan(path)
    except GramLoopError as error:
        raise GramLoopError(f"{error}; {again}" if owners else str(error)) from error
    if owners and found.hash not in owners:
        owner, files = next(iter(owners.items()))
        earlier = _recorded(files)
        changed = "" if earlier is None else f": they were made with {difference(earlier, found)}"
        raise GramLoopError(
            f"{path} was changed: its units belong to the plan {owner}, not to {found.hash}{changed}; {again}"
        )
    return found


def unit_owners(folder: Path) -> dict[str, list[Path]]:
    """The plans that stored units belong to, by hash: one file of each condition and method; the commonest plan first."""
    found: dict[str, list[Path]] = {}
    for place in sorted((folder / UNITS).glob("*/*/")):
        first = min(place.glob("*.parquet"), default=None)
        about = None if first is None else _about(first)
        if first is not None and about is not None and isinstance(about.get("plan"), str):
            found.setdefault(about["plan"], []).append(first)
    return dict(sorted(found.items(), key=lambda pair: -len(pair[1])))


def seconds_per_image(folder: Path) -> float | None:
    """How long an image took with all methods, by one unit of each condition and method; None where none is stored."""
    found = [_about(path) or {} for files in unit_owners(folder).values() for path in files]
    paces = [each["facts"]["wall_seconds"] / len(each["unit"]["images"]) for each in found if "facts" in each]
    return sum(paces) / len(paces) if paces else None


def _recorded(files: Sequence[Path]) -> Plan | None:
    """The plan that units were made with; the one with most methods, since methods are only ever added."""
    plans = []
    for path in files:
        try:
            about = _about(path) or {}
            plans.append(parse_plan(zlib.decompress(base64.b64decode(about["made_with"])).decode(), path))
        except (KeyError, ValueError, TypeError, zlib.error, GramLoopError):
            continue
    return max(plans, key=lambda plan: len(plan.methods), default=None)


def _about(path: Path) -> dict[str, Any] | None:
    """What the file of a unit says about itself, from its last bytes alone."""
    try:
        found = json.loads((pq.read_metadata(path).metadata or {})[_KEY])
    except (pa.ArrowException, OSError, ValueError, KeyError):
        return None
    return found if isinstance(found, dict) else None


def _described(unit: Unit) -> dict[str, Any]:
    method = unit.method
    return {"condition": unit.condition, "method": {method.name: method.hash}, "images": list(unit.images)}


def _seal(text: str, table: Any) -> bytes:
    return hashlib.sha256(f"{text}\n{content_digest(table)}".encode()).hexdigest().encode()
