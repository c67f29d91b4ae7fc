"""The choice of a mitigation on two drives, by a rule that was written first, and its judgement on the third.

For every drive that judges, the other two choose between themselves: a head and source statistics of one are shown
frames of the other, clean and under the searched families, and the other way round. What is chosen is then judged
with a head and source statistics of both, on the drive that none of it has seen, under all families.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from evidence_study import SEARCHED
from gramloop.metrics.bootstrap import Interval, cluster_bootstrap, image_draws, mean_interval, miou_score
from gramloop.metrics.miou import mean_iou
from mitigation_heads import RECENTRINGS, Heads, join, recentre
from mitigation_passes import DRIVES, STACKS, Fitted

CANDIDATES = tuple(join(stack, recentre(each)) for stack in ("", *STACKS) for each in RECENTRINGS)
TOLERANCE = 0.1  # points that clean frames may lose on either search drive
LABELS, AGREEMENT = 0, 1  # what a prediction is compared with
Stacked = NDArray[np.int64]  # (frames, 3, classes)


class Tables:
    """Counts of all items, and what follows from them."""

    def __init__(self, heads: Heads) -> None:
        self.heads, self.sizes = heads, heads.passes.sizes

    @cached_property
    def counts(self) -> dict[tuple[str, str, int, str], Stacked]:
        """Under drive, family, severity and ``drives|head|way``: (frames, truths, 3, classes)."""
        found = defaultdict(list)
        for item in self.heads.passes.items():
            if self.heads.passes.path(item, "counts").exists():
                for name, counts in self.heads.read(item).items():
                    found[item.drive, item.family, item.severity, name].append(counts)
        return {key: np.stack(each).astype(np.int64) for key, each in found.items()}

    def has(self, drive: str, fitted: Fitted, kind: str, way: str, severity: int) -> bool:
        return (drive, "fog", severity, f"{' '.join(fitted)}|{kind}|{way}") in self.counts

    def pair(
        self,
        drive: str,
        family: str,
        severity: int,
        fitted: Fitted,
        kind: str,
        way: str,
        truth: int,
        frames: int | None = None,
    ) -> tuple[Stacked, Stacked]:
        names = (f"{' '.join(fitted)}|{kind}|{each}" for each in ("", way))
        plain, changed = (self.counts[drive, family, severity, name][:, truth] for name in names)
        many = min(len(changed), frames or len(changed))  # what costs a pass was shown to the first few
        return plain[:many], changed[:many]

    def gain(
        self, drive: str, family: str, severity: int, fitted: Fitted, kind: str, way: str, truth: int = LABELS
    ) -> float:
        plain, changed = self.pair(drive, family, severity, fitted, kind, way, truth)
        return float(mean_iou(changed.sum(0)) - mean_iou(plain.sum(0)))

    # choosing

    @property
    def candidates(self) -> list[str]:
        """Those that were run."""
        one, two = DRIVES[:2]
        return [way for way in CANDIDATES if (one, "clean", 0, f"{two}|linear|{way}") in self.counts]

    def searched(self, judge: str, way: str, truth: int) -> tuple[list[float], float]:
        """Gains on clean frames of either search drive, and the mean gain under the searched families."""
        one, two = search_drives(judge)
        turns = (one, (two,)), (two, (one,))
        clean = [self.gain(drive, "clean", 0, fitted, "linear", way) for drive, fitted in turns]
        shifted = [
            self.gain(drive, family, self.sizes.middle, fitted, "linear", way, truth)
            for drive, fitted in turns
            for family in SEARCHED
        ]
        return clean, float(np.mean(shifted))

    def choose(self, judge: str, truth: int = LABELS) -> str:
        """The highest mean gain; with labels, among those that hold clean frames of both drives."""
        standings = {}
        for way in self.candidates:
            clean, gain = self.searched(judge, way, truth)
            if truth == AGREEMENT or min(clean) >= -TOLERANCE:
                standings[way] = gain
        return max(standings, key=standings.__getitem__)

    @cached_property
    def chosen(self) -> dict[str, str]:
        return {drive: self.choose(drive) for drive in DRIVES}

    @cached_property
    def blindly(self) -> dict[str, str]:
        return {drive: self.choose(drive, AGREEMENT) for drive in DRIVES}

    # judging

    def clean(self, ways: Mapping[str, str], kind: str) -> tuple[Interval, dict[str, float]]:
        each = {drive: self.draws(drive, ["clean"], 0, ways[drive], kind) for drive in DRIVES}
        return mean_interval(list(each.values()), self.sizes.judged * 3), {
            drive: float(d[0]) for drive, d in each.items()
        }

    def draws(
        self,
        drive: str,
        families: Sequence[str],
        severity: int,
        way: str,
        kind: str,
        frames: int | None = None,
    ):  # type: ignore[no-untyped-def]
        """The gain on all frames of a drive, then on draws of them; all families see the same draw."""
        fitted, seed = search_drives(drive), 100 + DRIVES.index(drive)
        found = []
        for family in families:
            plain, changed = map(
                miou_score, self.pair(drive, family, severity, fitted, kind, way, LABELS, frames)
            )
            many = frames or len(self.counts[drive, family, severity, f"{' '.join(fitted)}|{kind}|{way}"])
            found.append(
                image_draws(lambda w, p=plain, c=changed: c(w) - p(w), many, replicates=1000, seed=seed)
            )
        return np.mean(found, axis=0)

    def judged(
        self,
        ways: Mapping[str, str],
        kind: str,
        families: Sequence[str],
        severities: Sequence[int],
        frames: int | None = None,
    ) -> tuple[Interval, Interval, dict[str, float]]:
        """The mean gain over families, with intervals over families and over frames; and by drive."""
        frames = self.sizes.fewer if len(severities) > 1 else frames
        table = {
            family: [
                np.mean([self._some(drive, family, severity, ways[drive], kind, frames) for drive in DRIVES])
                for severity in severities
            ]
            for family in families
        }
        by_drive = {
            drive: np.mean(
                [self.draws(drive, families, each, ways[drive], kind, frames) for each in severities], axis=0
            )
            for drive in DRIVES
        }
        over_frames = mean_interval(list(by_drive.values()), len(DRIVES) * (frames or self.sizes.shifted))
        return (
            cluster_bootstrap(table),
            over_frames,
            {drive: float(each[0]) for drive, each in by_drive.items()},
        )

    def _some(self, drive: str, family: str, severity: int, way: str, kind: str, frames: int | None) -> float:
        plain, changed = self.pair(drive, family, severity, search_drives(drive), kind, way, LABELS, frames)
        return float(mean_iou(changed.sum(0)) - mean_iou(plain.sum(0)))

    def family(self, family: str, severity: int, ways: Mapping[str, str], kind: str = "linear") -> float:
        return float(
            np.mean([self._some(drive, family, severity, ways[drive], kind, None) for drive in DRIVES])
        )

    def plain(self, kind: str, severity: int) -> tuple[float, float]:
        """mIoU of the plain model on clean frames and under shift, mean of drives."""

        def score(drive: str, family: str, severity: int) -> float:
            return float(
                mean_iou(self.pair(drive, family, severity, search_drives(drive), kind, "", LABELS)[0].sum(0))
            )

        clean = [score(drive, "clean", 0) for drive in DRIVES]
        return float(np.mean(clean)), float(
            np.mean([score(d, f, severity) for d in DRIVES for f in self.sizes.families])
        )


def search_drives(judge: str) -> Fitted:
    return tuple(drive for drive in DRIVES if drive != judge)


def everywhere(way: str) -> dict[str, str]:
    return dict.fromkeys(DRIVES, way)
