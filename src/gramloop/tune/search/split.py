"""Which images and which shift families serve the search, the decision and the verdict; fixed before anything runs.

Images are ordered by a hash of their ids and cut, so that the order of files decides nothing. Where neighbours
resemble each other, as the frames of a video do, ``block`` consecutive images are kept together. Images of another
place, drive or camera can be kept for the verdict: parts of one drive resemble each other more than another drive.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from gramloop.data.suites import Condition
from gramloop.errors import GramLoopError

SHARES = {"search": 0.4, "decide": 0.25, "verdict": 0.35}  # of the images
UNSEEN = 1 / 3  # of the families
LEAST = 3  # images, or blocks of them, in each part
FOLDS = 8  # of images, at most


@dataclass(frozen=True)
class Sample:
    """An image of one condition: its place among the condition's records, and the fold that it is in."""

    position: int
    image_id: str
    unit: int  # the image itself, or its block; what is left out or drawn together


@dataclass(frozen=True)
class Split:
    """Parts of the images, and families that the search sees (``seen``) or not."""

    images: Mapping[str, Mapping[str, tuple[Sample, ...]]]  # part: condition: images, in order of use
    seen: tuple[str, ...]
    unseen: tuple[str, ...]
    block: int

    def as_json(self) -> dict[str, Any]:
        """What decides the split, by checksum."""
        digest = hashlib.sha256()
        for part, conditions in self.images.items():
            for key, samples in conditions.items():
                digest.update(
                    f"{part}\t{key}\t{[(one.position, one.image_id) for one in samples]}\n".encode()
                )
        return {
            "images": {part: max(map(len, each.values())) for part, each in self.images.items()},
            "block": self.block,
            "seen families": list(self.seen),
            "unseen families": list(self.unseen),
            "sha256": digest.hexdigest(),
        }


def split(
    images: Mapping[str, Sequence[str]],
    *,
    block: int = 1,
    unseen: Sequence[str] | None = None,
    judge_on: str | None = None,
    seed: int = 0,
) -> Split:
    """Split the images of every condition and the families.

    Args:
        images: image ids by condition (``fog/3``, ``clean``), in the order in which they were taken.
        block: how many consecutive images belong together.
        unseen: families to keep from the search; a third of them, by hash, where nothing is said.
        judge_on: a pattern of image ids such as ``drive7_*``; the verdict sees these, and nothing else does.
        seed: another split of the same data.
    """
    if block < 1:
        raise GramLoopError(f"a block has at least 1 image, not {block}")
    families = list(dict.fromkeys(name for name in map(family, images) if name != "clean"))
    if not families:
        raise GramLoopError("tuning needs shifted images; with clean ones alone there is nothing to gain")
    seen, kept = _families(families, unseen, seed)
    parts: dict[str, dict[str, tuple[Sample, ...]]] = {part: {} for part in SHARES}
    for key, ids in images.items():
        for part, samples in _cut(key, [str(each) for each in ids], block, judge_on, seed).items():
            parts[part][key] = samples
    return Split(parts, seen, kept, block)


def family(key: str) -> str:
    """The shift of a condition's key: ``fog`` of ``fog/3``."""
    name, _, severity = key.partition("/")
    return Condition(name, int(severity or 0)).family


def _families(
    families: Sequence[str], unseen: Sequence[str] | None, seed: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if unseen is None:
        ordered = sorted(families, key=lambda name: _hash(seed, "family", name))
        unseen = ordered[: int(len(families) * UNSEEN)]
    for name in unseen:
        if name not in families:
            raise GramLoopError(
                f"there is no family {name!r} to keep from the search; there are {', '.join(families)}"
            )
    seen = tuple(name for name in families if name not in unseen)
    if not seen:
        raise GramLoopError("every family is kept from the search; leave it at least one")
    return seen, tuple(name for name in families if name in unseen)


def _cut(
    key: str, ids: Sequence[str], block: int, judge_on: str | None, seed: int
) -> dict[str, tuple[Sample, ...]]:
    if len(set(ids)) != len(ids):
        raise GramLoopError(f"two images of {key} have one id; a split by id could put them on both sides")
    what = "images" if block == 1 else f"blocks of {block} images"
    kept = (
        [] if judge_on is None else [place for place, name in enumerate(ids) if fnmatchcase(name, judge_on)]
    )
    others = sorted(set(range(len(ids))) - set(kept))
    units = _blocks(others, block)
    shares = dict(SHARES)
    if judge_on is not None:
        del shares["verdict"]
    whole = sum(shares.values())
    counts = {part: round(share / whole * len(units)) for part, share in shares.items()}
    last = list(shares)[-1]
    counts[last] += len(units) - sum(counts.values())
    if min(counts.values()) < LEAST:
        purposes = "search, decide and judge" if judge_on is None else "search and decide"
        beside = "" if judge_on is None else f" beside those that {judge_on} keeps for the verdict"
        raise GramLoopError(
            f"{key} has {len(units)} {what}{beside}, too few to {purposes} on different ones; "
            f"at least {_fewest(shares)} are needed"
        )
    found, first, order = {}, 0, _shuffled(ids, units, seed)
    for part, count in counts.items():
        found[part] = _interleaved(ids, units, order[first : first + count])
        first += count
    if judge_on is not None:
        units = _blocks(kept, block)
        if len(units) < LEAST:
            raise GramLoopError(
                f"{judge_on} keeps {len(units)} {what} of {key} for the verdict; at least {LEAST} are needed"
            )
        found["verdict"] = _interleaved(ids, units, _shuffled(ids, units, seed))
    return found


def _blocks(places: Sequence[int], block: int) -> list[Sequence[int]]:
    return [places[start : start + block] for start in range(0, len(places), block)]


def _shuffled(ids: Sequence[str], units: Sequence[Sequence[int]], seed: int) -> list[int]:
    """The units in an order of their own; the first id names one, so conditions that share images agree."""
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


def _fewest(shares: Mapping[str, float]) -> int:
    many, whole = LEAST, sum(shares.values())
    while True:
        counts = [round(share / whole * many) for share in shares.values()]
        if min(*counts[:-1], many - sum(counts[:-1])) >= LEAST:
            return many
        many += 1


def _hash(seed: int, kind: str, name: str) -> str:
    return hashlib.sha256(f"{seed}\t{kind}\t{name}".encode()).hexdigest()
