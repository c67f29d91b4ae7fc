"""What an evaluation consists of: methods, conditions and shards, in a small file whose hash names the results.

The hash covers everything that decides the numbers (weights, images, settings, versions) and nothing that
does not (where the files lie, how many workers run), so moved files and other machines go on where one stopped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import msgspec

from gramloop.data.records import TASKS, Task
from gramloop.data.suites import Condition
from gramloop.errors import GramLoopError
from gramloop.evaluate.methods import Method, check_methods
from gramloop.evaluate.truth import CLEAN_PREDICTION, LABELS, SCORE, SCORED, TruthKind, check_truth
from gramloop.metrics.depth import ALIGNMENTS, Alignment
from gramloop.tasks.loading import Precision
from gramloop.util.json_files import checked, first_difference, parse_json, read_json, refuse_unknown

LAYOUT = 2
PICTURES = 4  # images of every condition that keep what a figure needs
_WHAT = "a plan written by gramloop evaluate"
SEED = 100  # kept for provenance: no prediction depends on it


@dataclass(frozen=True)
class DataSource:
    """The images: how the folder ``root`` is read, and checksums of what it held.

    ``fingerprints`` are of names, sizes and annotations, ``contents`` of every byte that is read; both by condition, or
    of the clean set.
    """

    root: str
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    split: str = "validation"
    classes: str | None = None  # the file with the class list, where it is not in the set
    origin: str = "auto"
    encoding: str = "png"
    partial: bool = False
    contents: Mapping[str, str] = field(
        default_factory=dict
    )  # empty in plans that were made before there were any


@dataclass(frozen=True)
class ModelSource:
    """The model: its files with their checksums, how images are shown to it, and on what it runs."""

    kind: str  # "tiny", "files" (a backbone and a head), "hf" or "make", as `gramloop.tasks.loading.kind_of` says
    files: Mapping[str, str]  # as `gramloop.tasks.load_predictor` takes them
    sha256: Mapping[str, str]
    depth: int
    sizes: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"  # its type; numbers of different types must not be mixed
    threads: int = 1  # per worker; sums depend on it
    dtype: Precision = "float32"  # of the backbone's weights


@dataclass(frozen=True)
class Unit:
    """The piece of work that is done or not: some images of one condition, with all methods."""

    condition: str
    shard: int
    shards: int
    start: int
    stop: int

    @property
    def name(self) -> str:
        """Its file below the folder of units, without the suffix."""
        return f"{self.condition.replace('/', '-')}/{self.shard:04d}-of-{self.shards:04d}"

    def __len__(self) -> int:
        return self.stop - self.start

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Plan:
    """Methods on the conditions of a suite, cut into shards."""

    suite: str
    task: Task
    methods: tuple[Method, ...]
    conditions: Mapping[str, int]  # key: number of images
    shards: int  # per condition
    categories: Mapping[int, str]
    data: DataSource
    model: ModelSource
    versions: Mapping[str, str] = field(default_factory=dict)
    diagnostics: bool = False
    pictures: int = PICTURES  # first images of every condition that keep label maps and the replay's maps
    seed: int = SEED
    alignment: Alignment = "auto"  # of predicted depth with the true one, image by image
    truth: TruthKind = "labels"  # what predictions are compared with
    truth_score: float = SCORE  # of a clean prediction's box or mask that counts as an object
    things: tuple[int, ...] = ()  # of a panoptic set: the categories that are counted, unlike stuff
    batch: int = 1  # images of one size that are shown to the model at once

    def __post_init__(self) -> None:
        check_methods(self.methods)
        check_truth(self.truth, self.truth_score)
        if not self.conditions or min(self.conditions.values()) < 1:
            raise GramLoopError(f"the plan of {self.suite} needs conditions with at least one image each")
        if self.shards < 1:
            raise GramLoopError(f"the number of shards must be at least 1, not {self.shards}")
        if self.batch < 1:
            raise GramLoopError(f"the batch must be at least 1 image, not {self.batch}")
        if self.pictures < 0:
            raise GramLoopError(f"the number of pictures must be at least 0, not {self.pictures}")
        if self.task not in TASKS:
            raise GramLoopError(f"the task must be {', '.join(TASKS[:-1])} or {TASKS[-1]}, not {self.task!r}")
        if self.alignment not in ALIGNMENTS:
            raise GramLoopError(f"the alignment is one of {', '.join(ALIGNMENTS)}, not {self.alignment!r}")
        if self.alignment != "auto" and self.task != "depth":
            raise GramLoopError(
                f"an alignment belongs to depth; leave {self.alignment!r} out for {self.task}"
            )

    @property
    def label_free(self) -> bool:
        """Whether predictions are compared with clean ones, so that scores are agreement and not accuracy."""
        return self.truth == CLEAN_PREDICTION

    @property
    def units(self) -> tuple[Unit, ...]:
        """All units, condition after condition; every image is in exactly one of each condition."""
        return tuple(unit for key in self.conditions for unit in self.units_of(key))

    def units_of(self, key: str) -> Iterator[Unit]:
        """The shards of one condition that hold images."""
        images = self.conditions[key]
        for shard in range(self.shards):
            start, stop = shard * images // self.shards, (shard + 1) * images // self.shards
            if start < stop:
                yield Unit(key, shard, self.shards, start, stop)

    @property
    def images(self) -> int:
        """Images over all conditions."""
        return sum(self.conditions.values())

    @cached_property
    def hash(self) -> str:
        """Sixteen hexadecimal digits over everything that decides the results."""
        content = self.as_json()
        del content["where"]
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def as_json(self) -> dict[str, Any]:
        """The plan as plain values, in the order in which one would read it."""
        data, model = asdict(self.data), asdict(self.model)
        where = {
            "data": data.pop("root"),
            "classes": data.pop("classes"),
            "model": dict(model.pop("files")),
        }
        if model["dtype"] == "float32":  # came later, too
            del model["dtype"]
        if not data["contents"]:  # came later: plans without them stay what they were
            del data["contents"]
        truth: dict[str, Any] = {} if self.truth == LABELS else {"truth": self.truth}
        if truth and self.task in SCORED:
            truth["truth_score"] = self.truth_score
        return {
            "layout": LAYOUT,
            "suite": self.suite,
            "task": self.task,
            **truth,  # came later: plans with labels stay what they were
            "methods": {method.name: method.as_json() for method in self.methods},
            "conditions": dict(self.conditions),
            "shards": self.shards,
            "diagnostics": self.diagnostics,
            "pictures": self.pictures,
            "seed": self.seed,
            **({"alignment": self.alignment} if self.task == "depth" else {}),
            **({"things": sorted(self.things)} if self.task == "panoptic" else {}),
            **({"batch": self.batch} if self.batch != 1 else {}),  # came later, as the truth did
            "data": data,
            "model": model,
            "where": where,
            "versions": dict(self.versions),
            "categories": {str(number): name for number, name in self.categories.items()},
        }

    def text(self) -> str:
        """The plan file."""
        return json.dumps(self.as_json(), indent=1) + "\n"


def condition_of(key: str) -> Condition:
    """The condition behind a key such as ``fog/3`` or ``sketch``."""
    name, _, severity = key.partition("/")
    return Condition(name, int(severity or 0))


def read_plan(path: Path) -> Plan:
    """The plan of a file, or a sentence about what is wrong with it."""
    return _plan(read_json(path, _WHAT), path)


def plan_of(text: str, path: Path) -> Plan:
    """The plan of a text that came from a file, or a sentence about what is wrong with it."""
    return _plan(parse_json(text.encode(), str(path), _WHAT), path)


def _plan(content: Any, path: Path) -> Plan:
    if isinstance(content, dict) and content.get("layout", LAYOUT) != LAYOUT:
        raise GramLoopError(
            f"{path} was written by another version of gramloop: its layout is {content['layout']}, not {LAYOUT}"
        )
    stored = checked(content, _StoredPlan, str(path), _WHAT)
    where = {"root": stored.where.data, "classes": stored.where.classes}
    for part, kind in ((stored.data, DataSource), (stored.model, ModelSource)):
        refuse_unknown(part, kind.__dataclass_fields__, str(path), _WHAT)
    data = checked({**stored.data, **where}, DataSource, f"data of {path}", _WHAT)
    model = checked({**stored.model, "files": stored.where.model}, ModelSource, f"model of {path}", _WHAT)
    given = {name: getattr(stored, name) for name in Plan.__dataclass_fields__ if hasattr(stored, name)}
    try:
        methods = tuple(Method.from_json(*pair) for pair in stored.methods.items())
        return Plan(**{**given, "methods": methods, "data": data, "model": model})
    except GramLoopError as error:
        raise GramLoopError(f"{path}: {error}") from error


class _Where(msgspec.Struct, forbid_unknown_fields=True):
    data: str
    classes: str | None
    model: dict[str, str]


class _StoredPlan(msgspec.Struct, forbid_unknown_fields=True):
    """A plan as `Plan.as_json` makes it."""

    layout: int
    suite: str
    task: Task
    methods: dict[str, Any]
    conditions: dict[str, Annotated[int, msgspec.Meta(ge=1, le=10**9)]]
    shards: Annotated[int, msgspec.Meta(ge=1, le=10**6)]
    diagnostics: bool
    pictures: Annotated[int, msgspec.Meta(ge=0, le=10**9)]
    seed: int
    data: dict[str, Any]
    model: dict[str, Any]
    where: _Where
    versions: dict[str, str]
    categories: dict[int, str]
    alignment: Alignment = "auto"
    truth: TruthKind = "labels"
    truth_score: float = SCORE
    things: tuple[int, ...] = ()
    batch: Annotated[int, msgspec.Meta(ge=1, le=10**6)] = 1


def fitting(plan: Plan, found: Plan) -> Plan:
    """A new plan as a folder would have it that was planned before images were known by their content."""
    return plan if found.data.contents else replace(plan, data=replace(plan.data, contents={}))


def difference(found: Plan, wanted: Plan) -> str:
    """The first thing in which two plans differ, in words; an empty string if their results fit together."""
    return first_difference(found.as_json(), wanted.as_json(), skip=("where",))
