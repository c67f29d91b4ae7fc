"""What an evaluation is of and how it is run: options of commands, and keywords of `gramloop.evaluate` and others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gramloop.errors import GramLoopError
from gramloop.tasks.options import ModelOptions
from gramloop.util.options import MANY, group, option

if TYPE_CHECKING:
    from gramloop.evaluate.engines import Engine

CALIBRATION_HELP = "statistics of in-distribution images, as gramloop calibrate writes them"
WORKERS_HELP = "processes (all cores or GPUs)"


@dataclass(frozen=True, kw_only=True)
class ShiftOptions:
    """Which shifts."""

    conditions: Sequence[str] = option(
        "some conditions only, or a group: noise, blur, weather, digital; can be repeated",
        [],
        metavar="NAME",
        name="condition",
    )
    severities: Sequence[int] = option(
        "some severities only; can be repeated", [], metavar="N", name="severity"
    )


@dataclass(frozen=True, kw_only=True)
class TruthOptions(ShiftOptions):
    """Which shifts and images, and what predictions on them are compared with."""

    images: int | None = option(
        "the first N of each condition; for scenes, how many (100)", None, metavar="N", limits=(1, MANY)
    )
    truth: Literal["labels", "clean"] = option(
        "compare with the labels, or with the model's prediction on the clean image; that needs no labels, so DIR may be "
        "any folder of photographs (labels)",
        "labels",
    )


@dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """How a set is read and its shifted images are made."""

    split: str = option("of a set of label pictures (validation)", "validation")
    classes: Path | None = option("class list of a set of label pictures", None, metavar="FILE")
    encoding: Literal["png", "jpg"] = option(
        "of generated images: png keeps the exact pixels; jpg (quality 95) is how the released -P sets were stored (png)",
        "png",
        name="format",
    )
    frost_textures: Path | None = option("your own frost pictures", None, metavar="DIR")
    partial: bool = option("accept a part of COCO or ADE20K", False)


@dataclass(frozen=True, kw_only=True)
class DataOptions(TruthOptions, ReadingOptions):
    """Which images, and what predictions on them are compared with."""

    data: Path | None = option("the set; scenes are drawn where it is missing", None, metavar="DIR")
    origin: Literal["auto", "folders", "generated"] = option(
        "shifted images from folders, or made from the clean ones (auto: folders where there are any)", "auto"
    )
    truth_score: float | None = option(
        "boxes or masks of the clean prediction that score at least P count as objects (0.5)",
        None,
        metavar="P",
    )


@dataclass(frozen=True, kw_only=True)
class PlannedWork:
    """How the work is cut; numbers depend on the threads, and may on the batch."""

    shards: int | None = option("parts of each condition (of 50 images)", None, metavar="N", limits=(1, MANY))
    batch: int = option(
        "images of one size given to the model at once (1); the plan records it",
        1,
        metavar="N",
        limits=(1, MANY),
    )
    threads: int = option("threads per process (1); numbers depend on it", 1, metavar="N", limits=(1, 1024))


@dataclass(frozen=True, kw_only=True)
class WorkOptions(PlannedWork):
    """Where and how the work is done."""

    workers: int | None = option(WORKERS_HELP, None, metavar="N", limits=(1, 4096))
    prepare: int | None = option(
        "processes that prepare images for each of them, 0 for a thread (0 on the CPU, else the cores divided by the GPUs)",
        None,
        metavar="N",
        limits=(0, 4096),
    )
    engine: Literal["local", "ray", "slurm"] = option("where units run (local)", "local")
    address: str = option("of the Ray cluster (auto: this machine's)", "auto", metavar="A")
    jobs: int = option("jobs in the Slurm array (8)", 8, metavar="N", limits=(1, MANY))
    slurm: list[str] = option(
        "an option of sbatch: partition=gpu, time=600, …; can be repeated", [], metavar="NAME=VALUE"
    )

    def check(self, device: str | None) -> None:
        """Refuse options that do not fit the engine, whether or not anything is run."""
        if self.slurm and self.engine != "slurm":
            raise GramLoopError(
                f"--slurm {self.slurm[0]} belongs to --engine slurm, not to --engine {self.engine}"
            )
        for text in self.slurm:
            if text.find("=") < 1:
                raise GramLoopError(f"--slurm takes NAME=VALUE, such as partition=gpu, not {text!r}")
        if self.engine != "local" and ":" in (device or ""):
            raise GramLoopError(
                f"--device {device} is one GPU of this machine; --engine {self.engine} assigns GPUs itself: --device cuda"
            )

    def open_engine(self) -> Engine | None:
        """Where the units run; None is this machine."""
        if self.engine == "ray":
            from gramloop.evaluate.ray_engine import check_address, run_ray

            check_address(self.address)
            return partial(run_ray, address=self.address)
        if self.engine == "slurm":
            from gramloop.evaluate.slurm import run_slurm

            return partial(run_slurm, jobs=self.jobs, settings=self.slurm)
        return None


@dataclass(frozen=True, kw_only=True)
class StoredOptions:
    """What is stored."""

    diagnostics: bool = option(
        "store mean drift, gate and drift after gating of every image, and run the first Gram-gated method also ungated "
        "and with its mean strength for every patch",
        False,
    )
    pictures: int = option(
        "keep predictions and the replay's maps of the first N images of every condition (4)",
        4,
        metavar="N",
        limits=(0, MANY),
    )
    keep: Sequence[str] = option(
        "keep the same of the image with this id under every condition; can be repeated",
        [],
        metavar="ID",
        name="keep-image",
    )


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """What is evaluated, or which folder is continued."""

    out: Path = option("folder for plan and results", metavar="DIR")
    suite: str | None = option("scenes-c, coco-c, ade20k-p, coco-o, nyu-c, my-set-c, …", None, metavar="NAME")
    methods: Sequence[str] = option(
        "baseline, gramloop (both by default), ungated, uniform, matched, loop-loop, final-final, "
        "NAME:window=5-7,replays=3,… or NAME:FILE.json; any mitigations, as recentre:0.3 or NAME=recentre:0.3+gramloop "
        "(docs/mitigations.md); can be repeated",
        [],
        metavar="NAME",
        name="method",
    )
    calibration: Path | None = option(CALIBRATION_HELP, None, metavar="FILE")
    alignment: Literal["none", "median", "scale-shift"] | None = option(
        "how predicted depth is aligned with the true one, image by image (none; scale-shift for models of disparity)",
        None,
        name="align",
    )
    data: DataOptions = group(DataOptions, "images")
    model: ModelOptions = group(ModelOptions, "model")
    work: WorkOptions = group(WorkOptions, "work")
    stored: StoredOptions = group(StoredOptions, "results")
