"""Where results are kept: one Parquet file per unit, whole or absent, beside the plan and a manifest.

plan.json       what is evaluated; its hash stands in every unit's file
manifest.json   who ran it: versions, checksums of weights, seed, devices, one entry per start
units/          <condition>-<severity>/<shard>-of-<shards>.parquet
results.csv     the scores, in full precision
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from gramloop.errors import GramLoopError
from gramloop.evaluate.plan import Plan, Unit, plan_of
from gramloop.evaluate.rows import Failure, content_digest, schema_of
from gramloop.util.files import atomic_write
from gramloop.util.json_files import read_checked

PLAN, MANIFEST, UNITS, RESULTS = "plan.json", "manifest.json", "units", "results.csv"
_KEY, _SEAL = b"gramloop", b"gramloop.sha256"  # our entries in the metadata of a Parquet file


@dataclass(frozen=True)
class Facts:
    """What a unit cost: for the cost tables, and no part of the scores."""

    seconds: float  # of wall time, everything included
    predict_seconds: Mapping[str, float]  # by the methods of one call, such as "baseline+gramloop"
    blocks: int  # transformer blocks executed, counted
    peak_memory: int  # bytes, of the process, or of the GPU where one was used
    device: str
    host: str
    alone: Mapping[str, float] = field(default_factory=dict)  # shares of a shared call, see `shares_alone`


@dataclass(frozen=True)
class StoredUnit:
    """A unit's file, read and checked."""

    table: Any  # pyarrow.Table, see gramloop.evaluate.rows
    failures: tuple[Failure, ...]
    facts: Facts


@dataclass(frozen=True)
class _Manifest:
    """What is read again of a manifest."""

    starts: list[dict[str, Any]]


class UnusableFile(GramLoopError):  # noqa: N818 - it is a state of a file, told as a sentence
    """A unit's file that is torn, damaged or of another plan."""


class ForeignFile(UnusableFile):
    """A whole file that belongs elsewhere: it is put aside, never overwritten."""


class Store:
    """The results of one plan in a folder."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder, self.plan = folder, plan

    @cached_property
    def _record(self) -> str:
        """The plan in few characters, for every unit's file: a lost plan is made again from any of them."""
        return base64.b64encode(zlib.compress(self.plan.text().encode(), 9)).decode()

    def path(self, unit: Unit) -> Path:
        """The unit's file."""
        return self.folder / UNITS / f"{unit.name}.parquet"

    def write(self, unit: Unit, table: Any, failures: Sequence[Failure], facts: Facts) -> None:
        """Store a finished unit under a temporary name, then give it its own."""
        about = {
            "plan": self.plan.hash,
            "unit": asdict(unit),
            "made_with": self._record,
            "failures": [asdict(failure) for failure in failures],
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
            raise UnusableFile(f"{path} is torn or damaged ({_first_line(error)})") from error
        return self._checked(unit, path, table)

    def _checked(self, unit: Unit, path: Path, table: Any) -> StoredUnit:
        entries = table.schema.metadata or {}
        if _KEY not in entries:
            raise ForeignFile(f"{path} was not written by gramloop evaluate")
        if entries.get(_SEAL) != _seal(entries[_KEY].decode(errors="replace"), table):
            raise UnusableFile(f"{path} is damaged: its checksum is another")
        try:
            about = json.loads(entries[_KEY])
            owner, described = about["plan"], about["unit"]
            failures = tuple(Failure(**each) for each in about["failures"])
            facts = Facts(**about["facts"])
        except (KeyError, ValueError, TypeError) as error:
            raise ForeignFile(f"{path} was written by another version of gramloop") from error
        if owner != self.plan.hash:
            raise ForeignFile(f"{path} belongs to the plan {owner}, not to {self.plan.hash}")
        if described != asdict(unit):
            raise ForeignFile(f"{path} holds another part of the plan ({described})")
        if not table.schema.equals(schema_of(self.plan.task, self.plan.label_free)):
            raise ForeignFile(f"{path} has other columns than this version of gramloop writes")
        lost = {failure.position for failure in failures}
        expected = [
            (position, method.name)
            for position in range(unit.start, unit.stop)
            if position not in lost
            for method in self.plan.methods
        ]
        found = list(zip(table["position"].to_pylist(), table["method"].to_pylist(), strict=True))
        if found != expected:
            raise UnusableFile(f"{path} does not hold every image of its part once")
        return StoredUnit(table, failures, facts)

    def state(self, key: str) -> tuple[tuple[int, ...], ...] | None:
        """What tells the files of a condition from others that may take their place; None unless all are there."""
        try:
            found = [self.path(unit).stat() for unit in self.plan.units_of(key)]
        except OSError:
            return None
        return tuple((each.st_ino, each.st_size, each.st_mtime_ns, each.st_ctime_ns) for each in found)

    def put_aside(self, unit: Unit) -> Path:
        """Rename a foreign file, so that the unit can be computed and nothing is lost."""
        path = self.path(unit)
        number = 1
        while (aside := path.with_name(f"{path.name}.foreign-{number}")).exists():
            number += 1
        path.rename(aside)
        return aside

    def note_start(self, engine: Mapping[str, Any]) -> None:
        """Add this start to the manifest."""
        path = self.folder / MANIFEST
        starts: list[Any] = []
        if path.is_file():
            starts = read_checked(path, _Manifest, "a manifest written by gramloop evaluate").starts
        content = {
            "plan": self.plan.hash,
            "configuration": {method.name: method.as_json() for method in self.plan.methods},
            "versions": dict(self.plan.versions),
            "weights": dict(self.plan.model.sha256),
            "seed": self.plan.seed,
            "starts": [*starts, dict(engine)],
        }
        atomic_write(path, (json.dumps(content, indent=1) + "\n").encode(), durable=True)


def _seal(text: str, table: Any) -> bytes:
    return hashlib.sha256(f"{text}\n{content_digest(table)}".encode()).hexdigest().encode()


def owner_of(path: Path) -> str | None:
    """The hash of the plan that a unit's file belongs to; None where it does not say."""
    try:
        state = path.stat()
    except OSError:
        return None
    return _owner(path, state.st_size, state.st_mtime_ns)


@lru_cache(1 << 16)
def _owner(path: Path, size: int, written: int) -> str | None:
    """The owner of a file of this size and time: a start asks more than once, and a suite has thousands."""
    about = _about(path)
    return about.get("plan") if about is not None else None


def recorded_plan(path: Path) -> Plan | None:
    """The plan that a unit's file was made with; None where it holds none."""
    about = _about(path)
    if about is None or "made_with" not in about:
        return None
    try:
        return plan_of(zlib.decompress(base64.b64decode(about["made_with"])).decode(), path)
    except (ValueError, TypeError, zlib.error, GramLoopError):
        return None


def _about(path: Path) -> dict[str, Any] | None:
    """What the file of a unit says about itself, from its last bytes alone."""
    try:
        found = json.loads((pq.read_metadata(path).metadata or {})[_KEY])
    except (pa.ArrowException, OSError, ValueError, KeyError):
        return None
    return found if isinstance(found, dict) else None


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
