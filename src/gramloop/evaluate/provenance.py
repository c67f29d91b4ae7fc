"""What a run depends on, opened and compared with what was planned: versions, weights, images and annotations.

A run resumes only with what it began with, in every process and on every machine. Files are read for this once, when
the evaluation is planned; each image is compared again as it is read (`gramloop.evaluate.loader`).
"""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

from filelock import FileLock

from gramloop import __version__
from gramloop.data.checks import frost_fingerprint, package_versions, with_contents
from gramloop.data.opening import OpenSuite, ReadOptions, open_suite
from gramloop.data.records import DataSet, Image8, LabelledImage, Record, shift_record
from gramloop.data.scenes import RECIPE, SUITE, scene
from gramloop.data.suites import Condition
from gramloop.errors import GramLoopError
from gramloop.evaluate.plan import (
    CalibrationSplit,
    DataSource,
    Plan,
    Positions,
    Workload,
    condition_of,
)
from gramloop.mitigations.calibration import (
    MIN_IMAGES,
    SPLIT_IMAGES,
    CalibrationStats,
    calibrate,
    split_for_calibration,
)
from gramloop.models.tiny import DEPTH_HEAD
from gramloop.shifts.common import RECIPE_VERSION
from gramloop.tasks.base import read_labelled
from gramloop.tasks.graphs import runtime_versions
from gramloop.tasks.identity import check_identity, first_change, is_user_code
from gramloop.tasks.loading import TRUSTED, kind_of, load_predictor, name_conclusions
from gramloop.tasks.predictor import AnyPredictor
from gramloop.util.device import deterministic
from gramloop.util.files import file_digest, files_below, first_changed, load_checksums, save_checksums

_SUGGESTION = "replay.json"  # may lie next to weights, and decides no prediction
_WEIGHT_SUFFIXES = (".json", ".safetensors", ".pth")
_OTHER_SUFFIXES = (".bin", ".pt", ".txt")  # that transformers may have, too
CLEAN_SET = "clean"  # the checksums of the set that conditions are made from
FROST = "frost textures"  # the checksum of the user's
CALIBRATION = "calibration.safetensors"  # in the results folder
# the beginning of the sha256 in the name of a released file, such as dinov3_vitl16-8aa4cbdd.pth; a date is none
_NAMED_DIGEST = re.compile(r"-(?!20\d{6}\.)([0-9a-f]{8,64})\.(pth|safetensors)$")
_SCENE_SPLIT = "calibration"  # of drawn scenes


def changed_since(what: object, was: str | None = "", now: str | None = "") -> GramLoopError:
    """The one error of everything that is not what an evaluation was planned with."""
    values = "" if was == now else f": it is {_short(now)}, and was {_short(was)}"
    return GramLoopError(
        f"{what} changed since the evaluation was planned{values}; put it back, or choose another folder for the results"
    )


def _short(value: str | None) -> str:
    if value is None:
        return "not there"
    return f"sha256 {value[:12]}…" if len(value) == 64 else value


def plan_workload(plan: Plan, folder: Path | None = None) -> Workload:
    """A plan as workers open it; ``folder``, that of the results, may hold checksums that were computed before."""
    same = ("hash", "task", "label_free", "truth_score", "alignment", "batch", "pictures", "diagnostics")
    return Workload(
        **{name: getattr(plan, name) for name in same},
        categories=plan.classes,
        match_names=not plan.label_free and kind_of(plan.model.files) not in ("tiny", "files"),
        load_predictor=partial(load_planned, plan, folder),
        open_images=partial(PlannedImages, plan),
        load_task=plan.load_task,
        load_calibration=partial(_planned_stats, plan, folder),
        keep=frozenset(plan.keep),
        device=plan.model.device,
        threads=plan.model.threads,
    )


def load_planned(plan: Plan, folder: Path | None = None, device: str | None = None) -> AnyPredictor:
    """The model of a plan in whatever process; other versions, code or weights than planned are refused."""
    if folder is not None:
        load_checksums(folder)
    check_origin(plan)
    model = plan.model
    device = device or model.device
    predictor = load_predictor(cast(Any, plan.task), model.files, model.sizes, device, dtype=model.dtype)
    if model.behaviour is not None:
        with deterministic(model.threads):
            changed = check_identity(model.files, predictor, device, model.sha256, model.behaviour)
        if changed:
            raise changed_since(f"{changed} of {next(iter(model.files.values()))}")
    return predictor


def _planned_stats(
    plan: Plan, folder: Path | None, predictor: AnyPredictor, images: PlannedImages
) -> CalibrationStats | None:
    """The statistics that methods of a plan use: of a file, or learnt from the plan's calibration split.

    The first process learns them, and the folder of the results keeps them.
    """
    if plan.calibration_split is None or not any(method.calibration for method in plan.methods):
        return load_calibration(plan)
    with deterministic(plan.model.threads):
        if folder is None:
            return calibrate(predictor, _calibration_images(plan, images.whole))
        path = folder / CALIBRATION
        with FileLock(path.with_suffix(".lock")):
            if not path.is_file():
                calibrate(predictor, _calibration_images(plan, images.whole)).save(path)
        return CalibrationStats.read(path)


def load_calibration(plan: Plan) -> CalibrationStats | None:
    """The statistics of in-distribution images in the file of a plan."""
    if plan.calibration is None:
        return None
    found = file_digest(Path(plan.calibration))
    for method in plan.methods:
        if method.calibration not in ("", found):
            raise changed_since(plan.calibration, method.calibration, found)
    return CalibrationStats.read(plan.calibration)


def check_origin(plan: Plan) -> None:
    """Refuse other versions of packages, and other weights in files, than those that a plan was made with."""
    files, planned = plan.model.files, plan.model.sha256
    versions = {name: now for name, now in origin_versions().items() if name in plan.versions}
    if changed := first_change(plan.versions, versions):
        raise changed_since(f"the version of {changed}", plan.versions.get(changed), versions.get(changed))
    if is_user_code(files):
        return
    found = file_checksums(files, plan.task)
    if changed := first_change(planned, found):
        kind, _, below = changed.partition("/")
        place = Path(files[kind], below) if kind in files else f"the {changed}"
        raise changed_since(place, planned.get(changed), found.get(changed))


def weight_files(files: Mapping[str, str], task: str | None = None) -> dict[str, Path]:
    """Every weight file that takes part in a task, by the name of its checksum. Code is no weight."""
    found = {}
    # the depth head decides predictions of depth alone
    passed_over = (_SUGGESTION,) if task == "depth" else (_SUGGESTION, DEPTH_HEAD)
    for name, place in files.items():
        if name in ("make", "object", TRUSTED):
            continue
        path, endings = Path(place), list(_WEIGHT_SUFFIXES)
        if name == "hf":
            endings += (*_OTHER_SUFFIXES, ".py") if TRUSTED in files else _OTHER_SUFFIXES
        if not path.exists():
            raise GramLoopError(f"the {name} {path} does not exist")
        if not path.is_dir():
            found[name] = path
            continue
        for part in files_below(path):
            if part.suffix in endings and part.name not in passed_over:
                found[f"{name}/{part.relative_to(path).as_posix()}"] = part
    return found


def file_checksums(files: Mapping[str, str], task: str | None = None) -> dict[str, str]:
    """The sha256 of every weight file that takes part in a task, what names decide, and the version of what runs a graph.

    A file whose name ends in the beginning of another sha256, as names of released files do, is refused.
    """
    places = weight_files(files, task)
    found = {name: file_digest(path) for name, path in places.items()}
    for name, path in places.items():
        named = _NAMED_DIGEST.search(path.name)
        if named and not found[name].startswith(named[1]):
            raise GramLoopError(
                f"{path} is damaged or renamed: its sha256 begins with {found[name][:8]}, its name says {named[1]}"
            )
    runtime = runtime_versions(Path(files["graph"])) if "graph" in files else {}
    return {**found, **name_conclusions(files), **runtime}


def save_known_checksums(plan: Plan, folder: Path) -> None:
    """Keep in the results what is known of weights and images, so that no worker need read them to compare them."""
    save_checksums(folder, [*weight_files(plan.model.files, plan.task).values(), Path(plan.data.root)])


def origin_versions() -> dict[str, str]:
    """Versions of everything that takes part in making images and predictions."""
    found = {"gramloop": __version__, "shifts": str(RECIPE_VERSION), "python": platform.python_version()}
    for name in ("torch", "transformers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return {**found, **package_versions()}


def open_data(
    suite: str,
    data: DataSource,
    annotations: str | None,
    conditions: Sequence[Condition],
    labels: bool = True,
) -> OpenSuite:
    """The suite of a plan with these conditions; annotations are read where they are the truth."""
    names = list(dict.fromkeys(condition.name for condition in conditions))
    severities = sorted({condition.severity for condition in conditions if condition.severity})
    return open_suite(
        suite,
        data.root,
        conditions=names or None,
        severities=severities or None,
        origin=cast(Any, data.origin),
        options=ReadOptions(
            split=data.split,
            classes=Path(data.classes) if data.classes else None,
            task=cast(Any, annotations),
            partial=data.partial,
            labels=labels,
        ),
        encoding=cast(Any, data.encoding),
        frost_textures=Path(data.frost_textures) if data.frost_textures else None,
    )


class PlannedImages:
    """The images of a plan, which must be those that were planned."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        conditions = [condition_of(key) for key in plan.conditions]
        annotations = plan.load_task().annotations
        self.whole = open_data(plan.suite, plan.data, annotations, conditions, not plan.label_free)
        images, textures = max(plan.conditions.values()), plan.data.frost_textures
        if textures and frost_fingerprint(Path(textures)) != plan.data.contents.get(FROST):
            raise changed_since(f"a frost texture in {textures}")
        opened = hold_out(self.whole, plan.calibration_split, images)
        if opened.clean is not None:
            opened = replace(opened, clean=self._unchanged(CLEAN_SET, opened.clean, images))
        self.opened = opened
        self.data = lru_cache(maxsize=1)(self._open)  # parts come condition by condition

    def _open(self, key: str) -> DataSet:
        """The set of one condition."""
        data = self.opened.open(condition_of(key))
        return (
            data if self.opened.clean is not None else self._unchanged(key, data, self.plan.conditions[key])
        )

    def records(self, condition: str, images: Positions) -> list[Record]:
        """The images at these positions; only these are shifted where the condition is made from the clean set."""
        clean, key = self.opened.clean, condition_of(condition)
        if clean is None or key in self.opened.ready:
            data = self.data(condition)
            return [data[position] for position in images]
        shift = self.opened.shift(key)
        return [shift_record(clean[position], shift) for position in images]

    def clean_records(self, condition: str, images: Positions) -> list[Record]:
        """The same images without their shift."""
        clean = self.opened.clean
        return self.records(condition, images) if clean is None else [clean[each] for each in images]

    def _unchanged(self, key: str, data: DataSet, images: int) -> DataSet:
        """The set, whose records know what their files held."""
        marked, contents = with_contents(data, images)
        if contents == self.plan.data.contents.get(key):
            return marked
        other = first_changed(path for record in data for path in record.files)
        raise changed_since(other or f"an image or an annotation in {data.root}")


# The clean images that calibration statistics are learnt from where methods need some and none are given. They are never
# judged: images of the set beyond those asked for; where there are too few of these, images held out of the set; for
# drawn scenes, scenes of a split of their own.


def choose_split(opened: OpenSuite, images: int | None) -> CalibrationSplit:
    """The calibration split of a suite of which the first ``images`` are to be judged."""
    data = _clean_set(opened)
    if opened.suite.base == SUITE:
        side = data[0].height
        recipe = f"{SPLIT_IMAGES} scenes {RECIPE} {side} {_SCENE_SPLIT}"
        return CalibrationSplit((), hashlib.sha256(recipe.encode()).hexdigest(), side)
    judged = len(data) if images is None else min(images, len(data))
    rest = len(data) - judged
    first, share = (judged, 1.0) if rest >= MIN_IMAGES else (0, 0.5)
    chosen, _ = split_for_calibration([str(one.image_id) for one in data[first:]], share=share)
    positions = tuple(first + place for place in chosen)
    return CalibrationSplit(positions, _contents(data, positions))


def hold_out(opened: OpenSuite, split: CalibrationSplit | None, images: int | None) -> OpenSuite:
    """The suite without the images of its calibration split, where the first ``images`` of the rest are judged."""
    if split is None or not split.positions or (images is not None and min(split.positions) >= images):
        return opened
    data, held = _clean_set(opened), set(split.positions)
    left = replace(data, records=tuple(one for place, one in enumerate(data) if place not in held))
    if opened.clean is not None:
        return replace(opened, clean=left)
    return replace(opened, ready=dict.fromkeys(opened.ready, left))


def _calibration_images(plan: Plan, opened: OpenSuite) -> list[Image8]:
    split = plan.calibration_split
    assert split is not None
    if not split.positions:
        return [scene(index, split.side, _SCENE_SPLIT).image for index in range(SPLIT_IMAGES)]
    data = _clean_set(opened)
    if max(split.positions) >= len(data) or _contents(data, split.positions) != split.contents:
        raise changed_since(f"an image in {data.root} that calibration statistics are learnt from")
    read = [read_labelled(data[position], plan.task, labels=False) for position in split.positions]
    if broken := [each for each in read if isinstance(each, str)]:
        raise GramLoopError(f"an image to calibrate on cannot be used: {broken[0]}")
    return [each.pixels for each in read if isinstance(each, LabelledImage)]


def _clean_set(opened: OpenSuite) -> DataSet:
    """The clean images of a suite, which alone are in distribution."""
    if opened.clean is not None:
        return opened.clean
    if opened.suite.kind == "clean":
        return next(iter(opened.ready.values()))
    raise GramLoopError(
        f"{opened.root} holds no clean images to learn calibration statistics from; learn them from others "
        f"(gramloop calibrate, at least {MIN_IMAGES} in-distribution images) and give --calibration FILE"
    )


def _contents(data: DataSet, positions: Sequence[int]) -> str:
    held = replace(data, records=tuple(data[position] for position in positions))
    return with_contents(held, len(held))[1]
