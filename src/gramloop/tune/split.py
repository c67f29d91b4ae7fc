"""Which images and which shift families serve the search, the decision and the holdout; fixed before anything runs.

Images are ordered by a hash of their ids and cut, so that the order of files decides nothing. Where neighbours resemble
each other, as the frames of a video do, ``block`` consecutive images stay together. Images of another place, drive or
camera can be kept for the holdout: parts of one drive resemble each other more than another drive.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from gramloop.data.suites import Condition
from gramloop.errors import GramLoopError

CLEAN = "clean"
SHARES = {"search": 0.4, "decide": 0.25, "verdict": 0.35}  # of the images
UNSEEN_SHARE = 1 / 3  # of the families
MIN_UNITS = 3  # images, or blocks of them, in each part


@dataclass(frozen=True)
class Sample:
    """An image of one condition."""

    position: int  # among the condition's records
    image_id: str
    unit: int  # the image or its block: what is left out or resampled together


SearchCell = tuple[str, Sample]  # a condition, and an image of it


@dataclass(frozen=True)
class Split:
    """Parts of the images, and the families that the search sees or not."""

    images: Mapping[str, Mapping[str, tuple[Sample, ...]]]  # part: condition: images, in order of use
    seen: tuple[str, ...]
    unseen: tuple[str, ...]
    block: int

    def conditions(self, part: str) -> list[str]:
        """The conditions that the images of a part are shown under."""
        families = (CLEAN, *self.seen, *(self.unseen if part == "verdict" else ()))
        return [key for key in self.images[part] if family(key) in families]

    def size(self, part: str) -> int:
        """Images that every condition of a part has."""
        return min(len(self.images[part][key]) for key in self.conditions(part))

    def cells(self, part: str, images: int) -> list[SearchCell]:
        """The first images of a part, each under every condition of the part."""
        samples = self.images[part]
        return [(key, samples[key][place]) for key in self.conditions(part) for place in range(images)]

    def search_cells(self) -> list[SearchCell]:
        """All cells of the search, ordered so that any first few cover many images and many conditions."""
        keys, samples = self.conditions("search"), self.images["search"]
        turns = [(turn, place) for turn in range(len(keys)) for place in range(self.size("search"))]
        shown = [(keys[(place + turn) % len(keys)], place) for turn, place in turns]
        return [(key, samples[key][place]) for key, place in shown]

    def as_json(self) -> dict[str, Any]:
        """What decides the split, by checksum."""
        digest = hashlib.sha256()
        for part, conditions in self.images.items():
            for key, samples in conditions.items():
                places = [(one.position, one.image_id) for one in samples]
                digest.update(f"{part}\t{key}\t{places}\n".encode())
        return {
            "images": {part: max(map(len, each.values())) for part, each in self.images.items()},
            "block": self.block,
            "seen families": list(self.seen),
            "unseen families": list(self.unseen),
            "sha256": digest.hexdigest(),
        }


def family(key: str) -> str:
    """The shift of a condition: ``fog`` of ``fog/3``."""
    name, _, severity = key.partition("/")
    return Condition(name, int(severity or 0)).family


def split_data(
    images: Mapping[str, Sequence[str]],
    *,
    block: int = 1,
    unseen: Sequence[str] | None = None,
    judge_on: str | None = None,
    seed: int = 0,
) -> Split:
    """Split the images of every condition, and the families.

    Args:
        images: image ids by condition (``fog/3``, ``clean``), in the order in which they were taken.
        block: how many consecutive images belong together.
        unseen: families to keep from the search; by default a third of them, by hash.
        judge_on: a pattern of image ids such as ``drive7_*``; only the holdout sees these, and it sees no others.
        seed: another split of the same data.
    """
    if block < 1:
        raise GramLoopError(f"a block has at least 1 image, not {block}")
    families = list(dict.fromkeys(name for name in map(family, images) if name != CLEAN))
    if not families:
        raise GramLoopError("tuning needs shifted images; with clean ones alone there is nothing to gain")
    kept = _unseen(families, unseen, seed)
    seen = tuple(name for name in families if name not in kept)
    if not seen:
        raise GramLoopError("every family is kept from the search; leave it at least one")
    parts: dict[str, dict[str, tuple[Sample, ...]]] = {part: {} for part in SHARES}
    for key, ids in images.items():
        for part, samples in _cut(key, [str(each) for each in ids], block, judge_on, seed).items():
            parts[part][key] = samples
    return Split(parts, seen, tuple(name for name in families if name in kept), block)


def _unseen(families: Sequence[str], unseen: Sequence[str] | None, seed: int) -> Sequence[str]:
    if unseen is None:
        ordered = sorted(families, key=lambda name: _hash(seed, "family", name))
        return ordered[: int(len(families) * UNSEEN_SHARE)]
    for name in unseen:
        if name not in families:
            raise GramLoopError(
                f"there is no family {name!r} to keep from the search; there are {', '.join(families)}"
            )
    return unseen


def _cut(
    key: str, ids: Sequence[str], block: int, judge_on: str | None, seed: int
) -> dict[str, tuple[Sample, ...]]:
    """The images of one condition by part."""
    if len(set(ids)) != len(ids):
        raise GramLoopError(f"two images of {key} have one id; a split by id could put them on both sides")
    kept = {place for place, name in enumerate(ids) if judge_on is not None and fnmatchcase(name, judge_on)}
    units = _blocks([place for place in range(len(ids)) if place not in kept], block)
    what = "images" if block == 1 else f"blocks of {block} images"
    shares = {part: share for part, share in SHARES.items() if judge_on is None or part != "verdict"}
    counts = _counts(len(units), shares)
    if min(counts.values()) < MIN_UNITS:
        least = next(many for many in range(1, 100) if min(_counts(many, shares).values()) >= MIN_UNITS)
        others = "" if judge_on is None else f" without those that {judge_on} keeps for the holdout"
        raise GramLoopError(
            f"{key} has {len(units)} {what}{others}, too few for {', '.join(shares)} on different ones; "
            f"at least {least} are needed"
        )
    order, parts = _shuffled(ids, units, seed), {}
    for part, count in counts.items():
        parts[part], order = _interleaved(ids, units, order[:count]), order[count:]
    if judge_on is not None:
        units = _blocks(sorted(kept), block)
        if len(units) < MIN_UNITS:
            raise GramLoopError(
                f"{judge_on} keeps {len(units)} {what} of {key} for the holdout; at least {MIN_UNITS} are needed"
            )
        parts["verdict"] = _interleaved(ids, units, _shuffled(ids, units, seed))
    return parts


def _counts(units: int, shares: Mapping[str, float]) -> dict[str, int]:
    """How many units each part gets; the last has what rounding leaves."""
    whole = sum(shares.values())
    counts = {part: round(share / whole * units) for part, share in shares.items()}
    counts[list(shares)[-1]] += units - sum(counts.values())
    return counts


def _blocks(places: Sequence[int], block: int) -> list[Sequence[int]]:
    return [places[start : start + block] for start in range(0, len(places), block)]


def _shuffled(ids: Sequence[str], units: Sequence[Sequence[int]], seed: int) -> list[int]:
    """Units ordered by the hash of their first id, so that conditions that share images agree."""
    return sorted(range(len(units)), key=lambda unit: _hash(seed, "image", ids[units[unit][0]]))


def _interleaved(
    ids: Sequence[str], units: Sequence[Sequence[int]], chosen: Sequence[int]
) -> tuple[Sample, ...]:
    """One image of each block in turn, so that the first few are of many blocks."""
    longest = max(len(units[unit]) for unit in chosen)
    return tuple(
        Sample(units[unit][turn], ids[units[unit][turn]], place)
        for turn in range(longest)
        for place, unit in enumerate(chosen)
        if turn < len(units[unit])
    )


def _hash(seed: int, kind: str, name: str) -> str:
    return hashlib.sha256(f"{seed}\t{kind}\t{name}".encode()).hexdigest()
