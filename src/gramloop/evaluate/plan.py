"""What an evaluation consists of: a model, images under conditions, methods; in a small file whose hash names the results.

The hash covers everything that decides the numbers of a method (weights, images, settings, versions) and nothing that
does not: where the files lie, how many workers run, which other methods there are. So moved files and other machines
resume where one stopped, and a method can be added to a finished folder.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import msgspec

from gramloop.data.suites import Condition
from gramloop.errors import GramLoopError
from gramloop.evaluate.methods import Method, check_methods, companions_of
from gramloop.metrics.scores import Alignment
from gramloop.mitigations.calibration import CalibrationStats
from gramloop.tasks.base import AnyTask, Categories, get_task, task_names
from gramloop.tasks.identity import Behaviour, first_change
from gramloop.tasks.loading import WeightPrecision
from gramloop.tasks.predictor import AnyPredictor
from gramloop.util.device import RUN_SEED
from gramloop.util.json_files import checked, first_difference, read_json

LAYOUT = 4
PICTURES = 4  # images of every condition that keep what a figure needs
TRUTH_SCORE = 0.5  # a box or mask of a clean prediction that scores less is not taken for an object
AGREEMENT = "agreement"  # before the name of every metric of a run without labels
AGREEMENT_NOTE = (
    "every number is agreement with the clean prediction, that is with what the plain model predicts on the clean image; "
    "none is accuracy"
)
TruthKind = Literal["labels", "clean"]  # what predictions are compared with
Count = Annotated[int, msgspec.Meta(ge=1, le=10**9)]
Positions = range | tuple[int, ...]  # of images in a condition, rising
_WHAT = "a plan written by gramloop evaluate"


@dataclass(frozen=True)
class DataSource:
    """The images: how the folder ``root`` is read, and checksums of what it held.

    ``contents`` are checksums of every byte that is read, by condition, or of the clean set; one is of frost textures.
    """

    root: str
    split: str = "validation"
    classes: str | None = None  # the file with the class list, where it is not in the set
    origin: str = "auto"
    encoding: str = "png"
    partial: bool = False
    contents: Mapping[str, str] = field(default_factory=dict)
    frost_textures: str | None = None  # a folder


@dataclass(frozen=True)
class PlannedModel:
    """The model: its files with their checksums, how it is given images, and on what it runs."""

    kind: str  # "tiny", "files" (a backbone and a head), "hf", "graph", "make" or "object"
    files: Mapping[str, str]  # as `gramloop.tasks.load_predictor` takes them
    sha256: Mapping[str, str]
    depth: int
    sizes: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"  # its type; numbers of different types must not be mixed
    threads: int = 1  # per worker; sums depend on it
    dtype: WeightPrecision = "float32"  # of the backbone's weights
    behaviour: Behaviour | None = None  # of a model of the user's code: what it predicts on trial images


@dataclass(frozen=True)
class CalibrationSplit:
    """Clean images that calibration statistics are learnt from, and that are not judged.

    positions: in the whole clean set; empty where scenes are drawn for it.
    contents: a checksum over the images.
    side: of drawn scenes.
    """

    positions: tuple[int, ...]
    contents: str
    side: int = 0

    def __str__(self) -> str:
        images = f"{len(self.positions)} clean images" if self.positions else "scenes drawn for it"
        return f"calibration statistics are learnt from {images} that are not judged"


@dataclass(frozen=True)
class Unit:
    """What is stored or not: one method on some images of one condition."""

    condition: str
    method: Method
    images: Positions

    @property
    def name(self) -> str:
        """Its file below the folder of units, without the suffix."""
        return f"{self.condition.replace('/', '-')}/{self.method.name}/{_positions_name(self.images)}"

    def __len__(self) -> int:
        return len(self.images)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Part:
    """What a worker takes at once: some images of one condition, and the methods to run on them."""

    condition: str
    images: Positions
    methods: tuple[Method, ...]

    @property
    def units(self) -> tuple[Unit, ...]:
        """What is stored of it."""
        return tuple(Unit(self.condition, method, self.images) for method in self.methods)

    def __len__(self) -> int:
        return len(self.images)

    def __str__(self) -> str:
        return f"{self.condition.replace('/', '-')}/{_positions_name(self.images)}"


def _positions_name(images: Positions) -> str:
    if isinstance(images, range) and images.step == 1:
        return f"{images.start:06d}-{images.stop:06d}"
    digest = hashlib.sha256(json.dumps(list(images)).encode()).hexdigest()[:12]
    return f"{images[0]:06d}-{len(images)}-{digest}"


def load_task(name: str, files: Mapping[str, str]) -> AnyTask:
    """The task of a model; one that is not built in is registered by importing the model's own code."""
    if name not in task_names() and "make" in files:
        from gramloop.tasks.custom import find_make

        find_make(files["make"])
    return get_task(name)


@dataclass(frozen=True)
class Workload:
    """A model and its images, described so that every worker process can open them; it pickles where these do.

    `gramloop.evaluate.provenance.plan_workload` makes one of a plan; any other may be made by hand.
    """

    hash: str  # over everything that decides a method's numbers; it is written into every unit's file
    task: str
    categories: Categories  # the classes that are scored
    load_predictor: Callable[[str | None], AnyPredictor] = field(repr=False)  # on a device, or on `device`
    # `records` of a condition at positions, and `clean_records` where the truth is the clean prediction
    open_images: Callable[[], Any] = field(repr=False)
    load_task: Callable[[], AnyTask] = field(repr=False)  # in a process that may not have registered it yet
    # reads or learns the statistics of in-distribution images, where methods use some
    load_calibration: Callable[[AnyPredictor, Any], CalibrationStats | None] | None = None
    match_names: bool = False  # bring the model's class numbers to those of the set, by name
    label_free: bool = False  # compare with the baseline's prediction on the clean image, and read no labels
    truth_score: float = TRUTH_SCORE  # of a clean prediction's box or mask that counts as an object
    alignment: Alignment = "auto"  # of predicted depth with the true one
    batch: int = 1  # images of one size that the model is given at once
    pictures: int = 0  # first images of every condition that keep what figures show
    keep: frozenset[str] = frozenset()  # ids of more images that do
    diagnostics: bool = False  # store means of what replays measure
    # an error of mitigations is kept as a refusal of that image, and the run continues
    keep_refusals: bool = False
    device: str = "cpu"
    threads: int = 1
    # makes what runs it, from itself, a store, a device and the number of preparing processes
    runner: Callable[..., Any] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Plan:
    """Methods on the conditions of a suite, cut into shards."""

    suite: str
    task: str
    methods: tuple[Method, ...]
    conditions: Annotated[dict[str, Count], msgspec.Meta(min_length=1)]  # key: number of images
    shards: Count  # per condition
    categories: dict[int, str]
    data: DataSource
    model: PlannedModel
    versions: dict[str, str] = field(default_factory=dict)
    diagnostics: bool = False
    pictures: Annotated[int, msgspec.Meta(ge=0, le=10**9)] = PICTURES
    seed: int = RUN_SEED
    alignment: Alignment = "auto"  # of predicted depth with the true one, image by image
    truth: TruthKind = "labels"
    truth_score: Annotated[float, msgspec.Meta(gt=0, lt=1)] = TRUTH_SCORE
    things: tuple[int, ...] = ()  # of a panoptic set: countable categories, unlike stuff
    batch: Count = 1  # images of one size that the model is given at once
    calibration: str | None = None  # the file with statistics of in-distribution images
    calibration_split: CalibrationSplit | None = None  # what they are learnt from, where no file is given
    keep: tuple[str, ...] = ()  # ids of more images that keep what figures show

    def __post_init__(self) -> None:
        check_methods(self.methods)

    @property
    def label_free(self) -> bool:
        """Whether predictions are compared with clean ones, so that scores are agreement and not accuracy."""
        return self.truth == "clean"

    @property
    def classes(self) -> Categories:
        """The classes that predictions are scored in."""
        return Categories(self.categories, frozenset(self.things))

    @property
    def parts(self) -> tuple[Part, ...]:
        """Everything there is to do, condition after condition; every image is in exactly one part of each."""
        return tuple(part for key in self.conditions for part in self.parts_of(key))

    def parts_of(self, key: str) -> tuple[Part, ...]:
        """The shards of one condition that hold images, with all methods."""
        images = self.conditions[key]
        edges = [shard * images // self.shards for shard in range(self.shards + 1)]
        shards = [range(start, stop) for start, stop in itertools.pairwise(edges) if start < stop]
        return tuple(Part(key, shard, self.methods) for shard in shards)

    @property
    def units(self) -> tuple[Unit, ...]:
        """Everything that is stored in the end."""
        return tuple(unit for part in self.parts for unit in part.units)

    @property
    def images(self) -> int:
        """Images over all conditions."""
        return sum(self.conditions.values())

    @cached_property
    def hash(self) -> str:
        """Sixteen hexadecimal digits over everything that decides the numbers of a method."""
        text = json.dumps(self.identity(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def identity(self) -> dict[str, Any]:
        """What the hash is over: all but methods, diagnostics, where files lie, and what is compared with a tolerance."""
        content = self.as_json()
        for name in ("methods", "diagnostics", "calibration", "calibration_split"):
            del content[name]
        del content["data"]["root"], content["data"]["classes"], content["model"]["files"]
        del content["data"]["frost_textures"], content["model"]["behaviour"]
        return content

    def as_json(self) -> dict[str, Any]:
        """The plan as plain values."""
        return {
            "layout": LAYOUT,
            **{each.name: getattr(self, each.name) for each in fields(self)},
            "methods": {method.name: method.as_json() for method in self.methods},
            "conditions": dict(self.conditions),
            "categories": {str(number): name for number, name in self.categories.items()},
            "data": asdict(self.data),
            "model": asdict(self.model),
            "versions": dict(self.versions),
            "calibration_split": self.calibration_split and asdict(self.calibration_split),
        }

    def text(self) -> str:
        """The text of the plan file."""
        return json.dumps(self.as_json(), indent=1) + "\n"

    def load_task(self) -> AnyTask:
        """The task, registered where it is the model's own."""
        return load_task(self.task, self.model.files)


def condition_of(key: str) -> Condition:
    """The condition behind a key such as ``fog/3`` or ``sketch``."""
    name, _, severity = key.partition("/")
    return Condition(name, int(severity or 0))


def trajectories_of(plan: Plan) -> Mapping[str, tuple[str, str, str]]:
    """Methods that diagnostics compare, raw, uniform and gated, by the name of the Gram-gated one."""
    return companions_of(plan.methods) if plan.diagnostics else {}


def difference(found: Plan, wanted: Plan) -> str:
    """The first thing in which two plans differ, in words; an empty string if their results fit together."""
    if changed := first_change(found.model.sha256, wanted.model.sha256):
        return f"another model: {changed} differs"
    if wanted.calibration_split is not None and found.calibration_split is None and found.data != wanted.data:
        return (
            "all images, of which none is left to learn calibration statistics from (--calibration FILE gives "
            "statistics of others)"
        )
    return first_difference(found.identity(), wanted.identity())


def merged(found: Plan, wanted: Plan, folder: Path) -> Plan:
    """The plan of a folder with the methods and diagnostics of another one of the same hash added to it."""
    versioned = "version" in found.model.sha256
    check_behaviour(found.model.behaviour, wanted.model.behaviour, versioned, f"{folder} holds results")
    known = {method.name: method for method in found.methods}
    for method in wanted.methods:
        if known.get(method.name, method) != method:
            raise GramLoopError(
                f"{folder} holds the method {method.name} with other settings; give this one another name"
            )
    methods = (*found.methods, *(method for method in wanted.methods if method.name not in known))
    if len({method.calibration for method in methods if method.calibration}) > 1:
        raise GramLoopError(f"{folder} holds methods with another calibration; choose another folder")
    return replace(
        wanted,
        methods=methods,
        diagnostics=found.diagnostics or wanted.diagnostics,
        calibration=wanted.calibration or found.calibration,
        calibration_split=wanted.calibration_split or found.calibration_split,
        model=replace(wanted.model, behaviour=found.model.behaviour),
    )


def check_behaviour(before: Behaviour | None, now: Behaviour | None, known: bool, what: str) -> None:
    """Refuse to add to results (``what``) of another model, or of one that is neither recognised nor ``known`` by a version."""
    if before is None or now is None:
        return
    if not before.repeatable and not known:
        raise GramLoopError(
            f"{what} of a model that does not always predict the same for one image, so it cannot be recognised; give it a version "
            '(--model-version v1, in Python version="v1") and another folder'
        )
    if not now.same_as(before):
        raise GramLoopError(
            f"{what} of another model: this one predicts other things on the trial images; choose another folder"
        )


def read_plan(path: Path) -> Plan:
    """The plan of a file."""
    content = read_json(path, _WHAT)
    if isinstance(content, dict) and content.get("layout", LAYOUT) != LAYOUT:
        raise GramLoopError(
            f"{path} was written by another version of gramloop: its layout is {content['layout']}, not {LAYOUT}"
        )
    stored: Any = checked(content, _StoredPlan, str(path), _WHAT)
    given = {each.name: getattr(stored, each.name) for each in fields(Plan)}
    try:
        methods = tuple(Method.from_json(*pair) for pair in stored.methods.items())
        return Plan(**{**given, "methods": methods})
    except GramLoopError as error:
        raise GramLoopError(f"{path}: {error}") from error


# a plan as `Plan.as_json` makes it
_StoredPlan = msgspec.defstruct(
    "_StoredPlan",
    [("layout", int), *({**get_type_hints(Plan, include_extras=True), "methods": dict[str, Any]}.items())],
    forbid_unknown_fields=True,
)
