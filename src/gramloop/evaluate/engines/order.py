"""The order in which units run where images are prepared beside the model.

Some shifts take twenty times as long as others. Condition by condition, the model would wait for all of the slow ones,
and the preparing processes would have nothing to do beside the fast ones. So units of all conditions of one severity
take turns, neighbours in the list of conditions far apart. No result depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from gramloop.evaluate.plan import Plan, Unit, condition_of
from gramloop.evaluate.sources import CLEAN


def mixed(plan: Plan, units: Iterable[Unit]) -> tuple[Unit, ...]:
    """The units in turns; as they are where shifted images are read from folders, which all take alike."""
    if CLEAN not in plan.data.fingerprints:
        return tuple(units)
    names = list(dict.fromkeys(condition_of(key).name for key in plan.conditions))
    place = {name: turn for turn, name in enumerate(_apart(names))}

    def turn(unit: Unit) -> tuple[int, int, int]:
        condition = condition_of(unit.condition)
        return condition.severity, unit.shard, place[condition.name]

    return tuple(sorted(units, key=turn))


def _apart(names: list[str]) -> list[str]:
    """The names in steps of about the root of their number."""
    many = len(names)
    step = max(1, round(math.sqrt(many)))
    while math.gcd(step, many) > 1:
        step += 1
    return [names[index * step % many] for index in range(many)]
