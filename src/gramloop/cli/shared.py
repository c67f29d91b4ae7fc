"""Options that several commands share, in the same words: which model, which images, and where the work is done."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gramloop.cli.options import MANY, option
from gramloop.cli.output import note
from gramloop.errors import GramLoopError, did_you_mean, then

if TYPE_CHECKING:
    from gramloop.evaluate.engines import Engine
    from gramloop.evaluate.plan import DataSource
    from gramloop.evaluate.planning import Request
    from gramloop.tasks.images import ImageFile
    from gramloop.tasks.prediction import Prediction
    from gramloop.tasks.predictor import Predictor

MODEL_HELP = (
    "tiny (embedded; it knows drawn scenes only), hf:FOLDER (transformers; hf:NAME downloads it), model.onnx, model.xml, "
    "my_models.py:make, package.module:make, or a name of gramloop list models"
)
CALIBRATION_HELP = "statistics of in-distribution images, as gramloop calibrate writes them"
DEVICE_HELP = "cpu, cuda, cuda:1, mps or auto: the GPU where there is one, else the CPU (auto)"
METHOD_HELP = "a mitigation: gramloop, recentre:c=2, denoise+levels, replay:window=5-7,replays=3, or the file that gramloop tune wrote"
_SIZES = ("short_side", "crop", "stride", "whole", "side", "flip")
_LABELS = ("annotations", "labels", "masks", "depth")
_OWNERS = {
    "crop": ("semantic",),
    "stride": ("semantic",),
    "whole": ("semantic",),
    "side": ("panoptic", "instance"),
    "flip": ("depth",),
}  # sizes that some tasks alone have


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Which model, and how images are shown to it."""

    model: str = option(MODEL_HELP, "tiny", metavar="SPEC")
    task: str | None = option(
        "semantic, detection, depth, panoptic or instance, where the model has several (semantic)",
        None,
        metavar="TASK",
    )
    backbone: str | None = option("DINOv3 weights, or a transformers folder", None, metavar="FILE")
    head: str | None = option("the head's weights, in place of --model", None, metavar="FILE")
    dtype: Literal["float32", "bfloat16"] = option(
        "of the backbone's weights; bfloat16 halves their memory and rounds (float32)", "float32"
    )
    device: str | None = option(DEVICE_HELP, None, metavar="NAME")
    short_side: int | None = option(
        "size in which images are shown: 896 to segment (512 to a PMT head), 2048 to detect, 768 to Meta's depth head",
        None,
        metavar="N",
    )
    crop: int | None = option("side of a segmentation window (896)", None, metavar="N")
    stride: int | None = option("distance between windows (596)", None, metavar="N")
    whole: bool = option("segment the whole image at once", False)
    side: int | None = option("of the square that panoptic and instance heads see (640)", None, metavar="N")
    flip: bool = option("depth: the mean with the mirror image, as for NYU", False)
    model_version: str = option(
        "what you call a model of your own code, where its content may change or its predictions vary",
        "",
        metavar="NAME",
    )
    trust_remote_code: bool = option(
        "let hf:FOLDER run Python code that it holds; read the code first", False
    )
    verify_weights: bool = option("compare weight files with the sha256 in their names", False)

    def files(self) -> dict[str, str]:
        """The model as `gramloop.tasks.load_predictor` takes it."""
        if self.head is not None:
            if self.model != "tiny":
                raise GramLoopError(f"--model {self.model} is a whole model; leave it out, or --head")
            given = {"backbone": self.backbone, "head": self.head}
            return {name: str(Path(path).resolve()) for name, path in given.items() if path is not None}
        if self.backbone is not None:
            raise GramLoopError("--head FILE is missing: a backbone alone predicts nothing")
        from gramloop.tasks.loading import model_files

        return model_files(self.model, self.trust_remote_code)

    def chosen_task(self) -> str | None:
        """The task; None where the model has one alone."""
        if self.task is None:
            return "semantic" if "folder" in self.files() else None
        from gramloop.tasks.base import task_names

        if self.task not in task_names():
            known = task_names()
            meant = did_you_mean("semantic" if self.task == "segmentation" else self.task, known)
            wrong = f"there is no task {self.task!r}{meant}"
            raise GramLoopError(then(wrong, f"tasks are {', '.join(known)}"))
        return self.task

    def sizes(self) -> dict[str, object]:
        """How images are shown to the model, where an option says so."""
        given = {name: getattr(self, name) for name in _SIZES}
        sizes = {name: value for name, value in given.items() if value is not None and value is not False}
        for name in sizes:
            owners = _OWNERS.get(name)
            if owners and self.task is not None and self.task not in owners:
                raise GramLoopError(f"--{name} belongs to --task {' or '.join(owners)}")
        if "crop" in sizes or "stride" in sizes:
            sizes["mode"] = "slide"
        if sizes.pop("whole", False):
            sizes["mode"] = "whole"
        return sizes

    def load(self) -> Predictor[Prediction]:
        """The predictor."""
        from gramloop.tasks.loading import load_predictor
        from gramloop.util.device import choose_device

        return load_predictor(
            self.chosen_task(),
            self.files(),
            self.sizes(),
            choose_device(self.device),
            dtype=self.dtype,
            verify=self.verify_weights,
        )


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Which images, and what predictions on them are compared with."""

    data: Path | None = option("the set; scenes are drawn where it is missing", None, metavar="DIR")
    condition: list[str] = option(
        "some conditions only, or a group: noise, blur, weather, digital; can be repeated", [], metavar="NAME"
    )
    severity: list[int] = option("some severities only; can be repeated", [], metavar="N")
    images: int | None = option(
        "the first N of each condition; for scenes, how many (100)", None, metavar="N", limits=(1, MANY)
    )
    split: str = option("of a set of label pictures (validation)", "validation")
    classes: Path | None = option("class list of a set of label pictures", None, metavar="FILE")
    origin: Literal["auto", "folders", "generated"] = option(
        "shifted images from folders, or made from the clean ones (auto: folders where there are any)", "auto"
    )
    format: Literal["png", "jpg"] = option("of generated images (png)", "png")
    frost_textures: Path | None = option("your own frost pictures", None, metavar="DIR")
    truth: Literal["labels", "clean"] = option(
        "compare with the labels, or with the model's prediction on the clean image; that needs no labels, so DIR may be "
        "any folder of photographs (labels)",
        "labels",
    )
    truth_score: float | None = option(
        "boxes or masks of the clean prediction that score at least P count as objects (0.5)",
        None,
        metavar="P",
    )
    partial: bool = option("accept a part of COCO or ADE20K", False)

    def source(self, suite: str, scenes: Path, split: str) -> DataSource:
        """The images of a suite; scenes of a split are drawn where a suite of scenes has no folder."""
        from gramloop.data.scenes.files import COUNT, SUITE, SceneFiles, draw_scenes
        from gramloop.data.suites import find_suite
        from gramloop.evaluate.plan import DataSource

        if self.data is None and find_suite(suite).base != SUITE:
            raise GramLoopError(f"--data DIR is missing: the folder of {suite}")
        if self.truth == "labels" and self.data is not None and has_photographs_alone(self.data):
            raise GramLoopError(
                f"--data {self.data} holds photographs without labels; add --truth clean, which compares predictions on "
                "shifted photographs with those on the clean ones"
            )
        many = COUNT if self.images is None else self.images
        root = self.data or draw_scenes(scenes, SceneFiles(many, split=split))
        return DataSource(
            str(root.resolve()),
            split=self.split,
            classes=str(self.classes) if self.classes else None,
            origin=self.origin,
            encoding=self.format,
            partial=self.partial,
            frost_textures=str(self.frost_textures.resolve()) if self.frost_textures else None,
        )


@dataclass(frozen=True)
class WorkOptions:
    """Where and how the work is done."""

    shards: int | None = option("parts of each condition (of 50 images)", None, metavar="N", limits=(1, MANY))
    workers: int | None = option("processes (all cores or GPUs)", None, metavar="N", limits=(1, 4096))
    prepare: int | None = option(
        "processes that prepare images for each of them, 0 for a thread (0 on the CPU, else the cores divided by the GPUs)",
        None,
        metavar="N",
        limits=(0, 4096),
    )
    batch: int = option(
        "images of one size given to the model at once (1); the plan records it",
        1,
        metavar="N",
        limits=(1, MANY),
    )
    engine: Literal["local", "ray", "slurm"] = option("where units run (local)", "local")
    address: str = option("of the Ray cluster (auto: this machine's)", "auto", metavar="A")
    jobs: int = option("jobs in the Slurm array (8)", 8, metavar="N", limits=(1, MANY))
    slurm: list[str] = option(
        "an option of sbatch: partition=gpu, time=600, …; can be repeated", [], metavar="NAME=VALUE"
    )
    threads: int = option("threads per process (1); numbers depend on it", 1, metavar="N", limits=(1, 1024))


def request_of(
    suite: str,
    data: DataOptions,
    model: ModelOptions,
    scenes: Path,
    *,
    split: str = "val",
    threads: int = 1,
    elsewhere: bool = False,
) -> Request:
    """The evaluation of a model on a suite; scenes of a split are drawn where a suite of scenes has no folder."""
    from gramloop.data.suites import find_suite
    from gramloop.evaluate.plan import TRUTH_SCORE
    from gramloop.evaluate.planning import Request
    from gramloop.tasks.base import get_task

    find_suite(suite).select(data.condition, data.severity)  # a typo is reported before scenes are drawn
    if data.data is not None:
        note_embedded(model, [data.data])
    task = model.chosen_task()
    thresholded = task is None or get_task(task).thresholded
    if data.truth_score is not None and not (data.truth == "clean" and thresholded):
        raise GramLoopError("--truth-score belongs to --truth clean with --task detection or instance")
    return Request(
        suite=suite,
        task=task,
        files=model.files(),
        data=data.source(suite, scenes, split),
        conditions=data.condition,
        severities=data.severity,
        images=data.images,
        sizes=model.sizes(),
        device=device_kind(model.device, elsewhere),
        threads=threads,
        dtype=model.dtype,
        truth=data.truth,
        truth_score=TRUTH_SCORE if data.truth_score is None else data.truth_score,
        version=model.model_version,
    )


def has_photographs_alone(folder: Path) -> bool:
    """Whether a folder holds images and nothing that could be labels or a list of them."""
    from gramloop.tasks.images import SUFFIXES

    endings = {path.suffix.lower() for path in folder.glob("*") if path.is_file()}
    labelled = endings & {".txt", ".json", ".csv"} or any((folder / name).is_dir() for name in _LABELS)
    return bool(endings & set(SUFFIXES)) and not labelled


def note_embedded(model: ModelOptions, images: Iterable[Path]) -> None:
    """Say what the embedded model is where it is given images that were not drawn by `gramloop scenes`."""
    from gramloop.data.scenes.files import SETTINGS_FILE

    if model.model != "tiny" or model.head is not None or model.backbone is not None:
        return
    folders = {parent for path in images for parent in (path.absolute(), *path.absolute().parents[:3])}
    if not any((folder / SETTINGS_FILE).is_file() for folder in folders):
        note(
            "gramloop: note: the embedded model knows drawn scenes only, so its predictions on photographs mean nothing; "
            "--model names another, such as examples/saliency.py:make"
        )


def device_kind(device: str | None, elsewhere: bool) -> str:
    """The type of the device that is asked for; that of a dry run or of a cluster may be on another machine."""
    from gramloop.util.device import choose_device

    named = re.fullmatch(r"(cuda|mps)(:\d+)?", device or "") if elsewhere else None
    return choose_device(device).type if named is None else named[1]


def each_image(
    files: Sequence[ImageFile], doing: str, work: Callable[[ImageFile], None]
) -> list[dict[str, str]]:
    """Do the work on every image.

    Returns:
        The images that failed, with the reason of each, which is printed too.
    """
    from torch import OutOfMemoryError

    from gramloop.util.progress import progress_bar

    failures = []
    with progress_bar(doing, len(files)) as advance:
        for file in files:
            try:
                work(file)
            except (GramLoopError, MemoryError, OutOfMemoryError) as error:
                known = isinstance(error, GramLoopError)
                reason = str(error) if known else "it does not fit into memory; try a smaller --short-side"
                failures.append({"image": str(file.path), "reason": reason})
                print(reason if str(file.path) in reason else f"{file.path}: {reason}", file=sys.stderr)
            advance(file.path.name)
    return failures


def check_engine(work: WorkOptions, device: str | None) -> None:
    """Refuse options that do not fit the engine, whether or not anything is run."""
    device = device or ""
    if work.slurm and work.engine != "slurm":
        raise GramLoopError(
            f"--slurm {work.slurm[0]} belongs to --engine slurm, not to --engine {work.engine}"
        )
    if work.engine != "local" and ":" in device:
        raise GramLoopError(
            f"--device {device} is one GPU of this machine; --engine {work.engine} assigns GPUs itself: --device cuda"
        )


def engine_of(work: WorkOptions) -> Engine | None:
    """Where the units run; None is this machine."""
    if work.engine == "ray":
        from gramloop.evaluate.engines.ray import check_address, run_ray

        check_address(work.address)
        return partial(run_ray, address=work.address)
    if work.engine == "slurm":
        from gramloop.evaluate.engines.slurm import run_slurm

        return partial(run_slurm, jobs=work.jobs, settings=dict(_sbatch_option(text) for text in work.slurm))
    return None


def _sbatch_option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise GramLoopError(f"--slurm takes NAME=VALUE, such as partition=gpu, not {text!r}")
    return name, int(value) if value.isdecimal() else value
