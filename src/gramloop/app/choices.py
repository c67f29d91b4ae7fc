"""What the page offers, and what a choice means: shifts by name, mitigations as text, a replay's settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from gramloop.data.shifted import Shift
from gramloop.data.suites import SEVERITIES, display_name, find_suite
from gramloop.errors import GramLoopError, short_repr
from gramloop.mitigations.base import Mitigation
from gramloop.mitigations.replay import REPLAYS, SUBSTEPS, Replay
from gramloop.mitigations.stack import KINDS, parse_mitigations
from gramloop.replay.config import RULE, ReplayConfig, field_of, split_setting
from gramloop.shifts.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from gramloop.shifts.perturbations import PERTURBATIONS

NO_SHIFT = "none"
REPLAY = Replay.name  # alone, it has the settings of the page's sliders
LONGEST_TEXT = 400  # characters of mitigations
_EXAMPLES = {  # kinds that say nothing without a number
    "scales": "scales:0.75,1,1.25",
    "resize": "resize:1.25",
    "recentre": "recentre:0.3",
    "norms": "norms:0.1",
    SUBSTEPS: "substeps:3",
}


Order = Literal["gain", "loss", "condition"]
ORDERS: dict[str, Order] = {
    "largest gain first": "gain",
    "largest loss first": "loss",
    "as evaluated": "condition",
}
EVERY = "all conditions"


def shift_choices() -> list[tuple[str, str]]:
    """Names as people say them, with what `shift_of` takes: corruptions first, then perturbations."""
    corruptions = [(display_name(name), f"c:{name}") for name in (*CORRUPTIONS, *EXTRA_CORRUPTIONS)]
    perturbations = [(f"{display_name(name)} (perturbation)", f"p:{name}") for name in PERTURBATIONS]
    return [("none", NO_SHIFT), *corruptions, *perturbations]


def shift_of(choice: str, severity: int) -> Shift | None:
    """The shift of a choice; None for none."""
    if choice == NO_SHIFT:
        return None
    kind, colon, name = choice.partition(":")
    if not colon or kind not in ("c", "p"):
        raise GramLoopError(f"there is no shift {choice!r}; the list has all there are")
    if severity not in SEVERITIES:
        raise GramLoopError(
            f"severity {short_repr(severity)} is not offered here; {SEVERITIES[0]} to {SEVERITIES[-1]} are"
        )
    suite = find_suite(f"image-{kind}")
    (condition,) = suite.select([name], [severity])
    return Shift(suite.name, suite.kind, condition)


def mitigation_choices() -> list[str]:
    """Every kind of mitigation, replays by name among them, each ready to be used."""
    kinds = [_EXAMPLES.get(name, name) for name in KINDS]
    return [*kinds, _EXAMPLES[SUBSTEPS], *REPLAYS]


def mitigations_of(chosen: Sequence[str], replay: ReplayConfig) -> tuple[Mitigation, ...]:
    """The mitigations of a list of texts; ``replay`` by itself has the given settings. Empty for none."""
    text = "+".join(part for each in chosen if (part := str(each).strip()))
    if not text:
        return ()
    if len(text) > LONGEST_TEXT:
        raise GramLoopError(f"mitigations are at most {LONGEST_TEXT} characters here, not {len(text)}")
    if ".json" in text.lower() or "/" in text or "\\" in text:  # a visitor names no file of this machine
        raise GramLoopError("files cannot be named here; write out the settings, such as replay:window=2-3")
    stack = parse_mitigations("+".join(part.strip() for part in text.split("+")))
    bare = any(part.strip() == REPLAY for part in text.split("+"))
    return tuple(Replay(replay) if bare and isinstance(each, Replay) else each for each in stack)


def replay_settings(
    base: ReplayConfig, controls: Mapping[str, object], rule: Sequence[object], more: str = ""
) -> ReplayConfig:
    """The replay that the page's controls describe.

    Args:
        base: what is not on the page.
        controls: by name: window, replays, gate, strength.
        rule: the adaptive signal, off and full; a signal of "none" replays every image.
        more: other settings as text, ``eps=1e-6,until=10``.
    """
    if len(more) > LONGEST_TEXT:
        raise GramLoopError(f"further settings are at most {LONGEST_TEXT} characters, not {len(more)}")
    given: dict[str, object] = {**base.as_json(), **controls}
    given["adaptive"] = None if rule[0] == "none" else dict(zip(RULE, rule, strict=True))
    for part in more.split(",") if more.strip() else ():
        name, value = split_setting(part)
        given[name] = field_of(name).parse(name, value)
    return ReplayConfig.from_json(given)
