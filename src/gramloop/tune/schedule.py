"""How a search uses its images and its budget: which part sees what, and how many predictions each stage gets.

Images are ordered by a hash of their ids and cut, so that the order of files decides nothing. Where neighbours resemble
each other, as the frames of a video do, ``block`` consecutive images stay together. Images of another place, drive or
camera can be kept for the holdout: parts of one drive resemble each other more than another drive.

The budget counts predictions: one image under one condition with one candidate. It is spent on successive halving over
rungs, then a decision between finalists, then a verdict. Where all candidates are replays, the baseline prediction comes
out of the pass that the first of them needs anyway, and is not counted; otherwise it counts as one, and so does every
image that calibration statistics are learnt from. A candidate keeps what it has been measured on, so a rung pays for new
cells only (a cell is an image under a condition); combinations that join a rung catch up on the cells before.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from gramloop.data.suites import SHIFT_GROUPS
from gramloop.errors import GramLoopError
from gramloop.evaluate.plan import condition_of
from gramloop.util.files import sha256

CLEAN = "clean"
SHARES = {"search": 0.4, "decide": 0.25, "verdict": 0.35}  # of the images
UNSEEN_SHARE = 1 / 3  # of the families
MIN_PART_UNITS = 3  # images, or blocks of them, in each part

CLEAN_TOLERANCE = 0.1  # points that clean images may lose
ANY_CHANGE = 100.0  # points by which clean predictions may change where no label says what a change is worth
FINALISTS = 3
ETA = 3  # a rung keeps one in so many
RUNGS_SHARE, DECIDE_SHARE = 0.4, 0.25  # of the budget; the verdict gets the rest, and what is left over
JOINING = (3, 2)  # combinations that the second and the third rung have room for
MIN_CELLS = 8  # that a candidate is measured on in the first rung
MIN_STAGE_IMAGES = 3  # in the decision and in the verdict


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
        cells = [(keys[(place + turn) % len(keys)], place) for turn, place in turns]
        return [(key, samples[key][place]) for key, place in cells]

    def as_json(self) -> dict[str, Any]:
        """What decides the split, by checksum."""
        placed = "".join(
            f"{part}\t{key}\t{[(one.position, one.image_id) for one in samples]}\n"
            for part, conditions in self.images.items()
            for key, samples in conditions.items()
        )
        return {
            "images": {part: max(map(len, each.values())) for part, each in self.images.items()},
            "block": self.block,
            "seen families": list(self.seen),
            "unseen families": list(self.unseen),
            "sha256": sha256(placed.encode()),
        }


def family(key: str) -> str:
    """The shift of a condition: ``fog`` of ``fog/3``."""
    return condition_of(key).family


def split_data(
    images: Mapping[str, Sequence[str]],
    *,
    block: int = 1,
    unseen: Sequence[str] | None = None,
    judge_on: str | None = None,
    seed: int = 0,
) -> Split:
    """Split the images of every condition, and the families; the arguments are those of `SearchOptions`."""
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
    kept: list[str] = []
    for name in unseen:  # a group stands for those of its shifts that are there
        groups = [members[name] for members in SHIFT_GROUPS.values() if name in members]
        found = [each for each in families if each == name or any(each in members for members in groups)]
        if not found:
            raise GramLoopError(
                f"there is no family {name!r} to keep from the search; there are {', '.join(families)}"
            )
        kept += found
    return kept


def _cut(
    key: str, ids: Sequence[str], block: int, judge_on: str | None, seed: int
) -> dict[str, tuple[Sample, ...]]:
    """The images of one condition by part."""
    if len(set(ids)) != len(ids):
        raise GramLoopError(f"two images of {key} have one id; a split by id could put them on both sides")
    pools: list[tuple[list[int], Mapping[str, float], str]] = [(list(range(len(ids))), SHARES, "")]
    if judge_on is not None:
        kept = [place for place, name in enumerate(ids) if fnmatchcase(name, judge_on)]
        others = sorted({*range(len(ids))} - {*kept})
        shares = {part: share for part, share in SHARES.items() if part != "verdict"}
        pools = [
            (others, shares, f" without those that {judge_on} keeps for the verdict"),
            (kept, {"verdict": 1.0}, f" that {judge_on} keeps for the verdict"),
        ]
    parts: dict[str, tuple[Sample, ...]] = {}
    for places, shared, which in pools:
        units = [places[start : start + block] for start in range(0, len(places), block)]
        counts = _counts(len(units), shared)
        if min(counts.values()) < MIN_PART_UNITS:
            least = next(many for many in range(100) if min(_counts(many, shared).values()) >= MIN_PART_UNITS)
            what = "images" if block == 1 else f"blocks of {block} images"
            raise GramLoopError(
                f"{key} has {len(units)} {what}{which}, too few for {', '.join(shared)} on different ones; "
                f"at least {least} are needed"
            )
        # by the hash of their first id, so that conditions that share images agree
        order = sorted(range(len(units)), key=lambda unit: _hash(seed, "image", ids[units[unit][0]]))
        for part, count in counts.items():
            parts[part], order = _interleaved(ids, units, order[:count]), order[count:]
    return parts


def _counts(units: int, shares: Mapping[str, float]) -> dict[str, int]:
    """How many units each part gets; the last has what rounding leaves."""
    whole = sum(shares.values())
    counts = {part: round(share / whole * units) for part, share in shares.items()}
    counts[list(shares)[-1]] += units - sum(counts.values())
    return counts


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
    return sha256(f"{seed}\t{kind}\t{name}".encode())


@dataclass(frozen=True)
class StageSize:
    """Images of a stage, and the conditions that each is shown under."""

    images: int
    conditions: int

    @property
    def cells(self) -> int:
        """Images under a condition."""
        return self.images * self.conditions


@dataclass(frozen=True)
class Rung:
    """Candidates that are compared on the first ``cells`` cells of the search, ``fresh`` of them new."""

    candidates: int
    cells: int
    fresh: int
    joining: int = 0  # combinations that join, at most; they have seen no cell yet

    @property
    def predictions(self) -> int:
        """What it costs, at most."""
        return self.candidates * self.fresh + self.joining * self.cells


@dataclass(frozen=True)
class Schedule:
    """The whole search, before it begins."""

    budget: int
    offered: int  # candidates of the space; the first rung may take fewer
    rungs: tuple[Rung, ...]
    finalists: int
    decide: StageSize  # as many images as will be used
    verdict: StageSize
    judged: int = 1  # candidates of the verdict, at most
    baseline: int = 0  # predictions per cell without any candidate
    calibration: int = 0  # predictions that calibration statistics are learnt from

    @property
    def candidates(self) -> int:
        """How many candidates are tried at all."""
        return self.rungs[0].candidates if self.rungs else self.finalists

    @property
    def stages(self) -> list[tuple[str, int | None, int, int]]:
        """Each stage: its name, its candidates, images under a condition, and predictions, at most."""
        found: list[tuple[str, int | None, int, int]] = []
        if self.calibration:
            found.append(("calibration", None, self.calibration, self.calibration))
        for number, rung in enumerate(self.rungs, 1):
            price = rung.predictions + self.baseline * rung.fresh
            found.append((f"rung {number}", rung.candidates + rung.joining, rung.cells, price))
        for name, many, size in (
            ("decision", self.finalists, self.decide),
            ("verdict", self.judged, self.verdict),
        ):
            found.append((name, many, size.cells, (many + self.baseline) * size.cells))
        return found

    @property
    def predictions(self) -> int:
        """What everything costs; never more than the budget."""
        return sum(predictions for *_, predictions in self.stages)


def plan_schedule(
    budget: int,
    candidates: int,
    search: StageSize,
    decide: StageSize,
    verdict: StageSize,
    *,
    finalists: int = FINALISTS,
    joining: Sequence[int] = (),
    judged: int = 1,
    baseline: int = 0,
    calibration: int = 0,
) -> Schedule:
    """Divide a budget; if it is too small for all candidates, the first rung takes as many as it can compare.

    ``search``, ``decide`` and ``verdict`` are the images that there are, ``joining`` the combinations that may join the
    second rung, the third, and so on. The other numbers are fields of `Schedule`.
    """
    fewest = finalists if joining else min(finalists, candidates)
    judging = (judged + baseline) * verdict.conditions
    # an image of either stage must fit into its share of what the rungs leave, rounding included
    shares = {DECIDE_SHARE: (fewest + baseline) * decide.conditions, 1 - RUNGS_SHARE - DECIDE_SHARE: judging}
    least = (
        1 + calibration + math.ceil(max(MIN_STAGE_IMAGES * each / share for share, each in shares.items()))
    )
    if budget < least:
        raise GramLoopError(
            f"a budget of {budget} predictions is too small: deciding between {fewest} finalists and judging the "
            f"choice needs {least}; give more, or fewer conditions or finalists"
        )
    left = budget - calibration
    most = (fewest + baseline) * decide.cells + judging * verdict.images
    for_rungs = max(int(left * RUNGS_SHARE), left - most)
    rungs = _most_rungs(for_rungs, search.cells, candidates, finalists, baseline, joining)
    kept = fewest if rungs else min(finalists, candidates)
    left -= _price(rungs, baseline)
    price = (kept + baseline) * decide.conditions
    decided = min(decide.images, int(left * DECIDE_SHARE / (1 - RUNGS_SHARE)) // price)
    seen = min(verdict.images, (left - decided * price) // judging)
    left -= decided * price + seen * judging
    decided = min(decide.images, decided + left // price)  # where the verdict ran out of images
    stages = StageSize(decided, decide.conditions), StageSize(seen, verdict.conditions)
    return Schedule(budget, candidates, rungs, kept, *stages, judged, baseline, calibration)


def _most_rungs(
    budget: int, cells: int, candidates: int, finalists: int, baseline: int, joining: Sequence[int]
) -> tuple[Rung, ...]:
    """The rungs of as many candidates as can be compared; room for combinations is given up first."""
    best: tuple[Rung, ...] = ()
    for many in range(len(joining), -1, -1):
        for tried in range(candidates, min(finalists, candidates) - 1, -1):
            sizes = _rung_sizes(tried, finalists, joining[:many])
            rungs = _equal_rungs(budget, cells, baseline, sizes)
            if rungs and rungs[0].cells >= min(MIN_CELLS, cells):
                best = rungs if not best or tried > best[0].candidates else best
                break
    return best


def _rung_sizes(candidates: int, finalists: int, joining: Sequence[int]) -> list[tuple[int, int]]:
    """Candidates of each rung, and combinations that join it."""
    sizes, together = [(candidates, 0)], candidates
    for room in itertools.chain(joining, itertools.repeat(0)):
        carried = min(together, max(finalists, math.ceil(together / ETA)))
        if carried <= finalists and not room:
            break
        sizes.append((carried, room))
        together = carried + room
    return sizes if candidates > finalists or joining else []


def _equal_rungs(
    budget: int, cells: int, baseline: int, sizes: Sequence[tuple[int, int]]
) -> tuple[Rung, ...]:
    """Rungs of about equal price; where the cells run out, earlier rungs get more, as far as the budget goes."""

    def at_price(price: int) -> tuple[Rung, ...]:
        used, rungs = 0, []
        for carried, joining in sizes:
            affordable = max(0, price - joining * used) // (carried + joining + baseline)
            fresh = min(cells - used, affordable)
            used += fresh
            rungs.append(Rung(carried, used, fresh, joining))
        return tuple(rungs)

    low, high = 0, budget  # the price of one rung: `low` is affordable, above `high` is not
    while low < high:
        price = (low + high + 1) // 2
        if _price(at_price(price), baseline) <= budget:
            low = price
        else:
            high = price - 1
    return at_price(low)


def _price(rungs: Sequence[Rung], baseline: int) -> int:
    return sum(rung.predictions for rung in rungs) + baseline * (rungs[-1].cells if rungs else 0)
