"""What sets two records of plain values apart, in words: plans of evaluations and searches, manifests of sets."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

_ABSENT = "nothing"
_LONGEST = 64  # characters of a value; a checksum stays whole


def first_difference(found: Mapping[str, Any], wanted: Mapping[str, Any], skip: Collection[str] = ()) -> str:
    """The first entry that differs, as in ``shards 3, not 4`` or ``versions: torch = 2, not 3``.

    Args:
        found: what is there, plain values as JSON knows them.
        wanted: what was asked for.
        skip: entries that may differ.

    Returns:
        An empty string where nothing else differs.
    """
    before, now = json.loads(json.dumps([found, wanted]))  # a tuple and the list it is stored as are equal
    for name in {**before, **now}:
        old, new = before.get(name, _ABSENT), now.get(name, _ABSENT)
        if name in skip or old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            pairs = {key: (old.get(key, _ABSENT), new.get(key, _ABSENT)) for key in {**old, **new}}
            key, (old, new) = next((key, pair) for key, pair in pairs.items() if pair[0] != pair[1])
            return f"{name}: {key} = {_short(old)}, not {_short(new)}"
        return f"{name} {_short(old)}, not {_short(new)}"
    return ""


def _short(value: object) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
