"""What is tuned and how candidates are compared: options of ``gramloop tune``, and keywords of `gramloop.tune`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gramloop.evaluate.options import DataOptions
from gramloop.tasks.options import ModelOptions
from gramloop.util.options import MANY, check_limits, group, option


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How candidates are compared."""

    stacking: bool = option("try no combinations of winners of different stages", True)
    max_cost: float | None = option(
        "at most the work of X baseline forwards, such as 1.5; a block on twice the area counts twice, the time of filters "
        "is not counted",
        None,
        metavar="X",
        limits=(1, MANY),
    )
    clean_tolerance: float | None = option(
        "points that clean images may lose (0.1); with --truth clean, points by which their predictions may change (any, "
        "since a change need not be a loss)",
        None,
        metavar="P",
        limits=(0, MANY),
    )
    confidence: float = option(
        "that the choice beats nothing, over all finalists together (0.95)",
        0.95,
        metavar="P",
        limits=(0.5, 0.9999),
    )
    finalists: int = option("in the decision (3)", 3, metavar="N", limits=(1, MANY))
    block: int = option(
        "N consecutive images belong together, as video frames do (1)", 1, metavar="N", limits=(1, MANY)
    )
    unseen: Sequence[str] | None = option(
        "a shift, or a group such as noise, that only the verdict sees; can be repeated (a third of them)",
        None,
        metavar="FAMILY",
        name="keep-unseen",
    )
    judge_on: str | None = option(
        "images that only the verdict sees, by id, such as 'drive7_*': another place or camera says more than other frames "
        "of the same one (a part of all images)",
        None,
        metavar="PATTERN",
    )
    seed: int = option("another split of the same data (0)", 0, metavar="N")

    def __post_init__(self) -> None:
        check_limits(self)


@dataclass(frozen=True, kw_only=True)
class SpaceOptions:
    """What is tried."""

    mitigation: Sequence[str] = option(
        "these instead of the default: recentre:c=1 recentre:0.3 denoise median flip resize:1.1 gramloop …, or several "
        "joined by a plus; with --try, in addition to its replays (recentre, norms, denoise, median, levels, sharpen, "
        "resize and flip as far as the model can take them, and the replays of eight single blocks)",
        [],
        metavar="TEXT",
        several=True,
    )
    values: Sequence[str] = option(
        "replays, and no other mitigations that are not named: values of any setting, window=3-3,2-4 strength=0.2,1 "
        "replays=1,2 gate=gram,uniform gate_at=end,final; can be repeated (all windows of one or two blocks, one "
        "replay, strengths 0.15, 0.5 and 1)",
        [],
        metavar="SETTING=V,V,…",
        name="try",
    )
    calibration: Path | None = option(
        "statistics of in-distribution images, as gramloop calibrate writes them (learnt from clean images of the search)",
        None,
        metavar="FILE",
    )


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """What is tuned on what."""

    out: Path = option("folder for plan and results", metavar="DIR")
    suite: str = option("scenes-c, coco-c, ade20k-p, my-set-c, …", metavar="NAME")
    budget: int = option("predictions, everything included (2000)", 2000, metavar="N", limits=(1, MANY))
    workers: int | None = option("processes (all cores or GPUs)", None, metavar="N", limits=(1, 4096))
    threads: int = option("threads per process (1)", 1, metavar="N", limits=(1, 1024))
    space: SpaceOptions = group(SpaceOptions, "candidates")
    choice: SearchOptions = group(SearchOptions, "choice")
    data: DataOptions = group(DataOptions, "images")
    model: ModelOptions = group(ModelOptions, "model")
