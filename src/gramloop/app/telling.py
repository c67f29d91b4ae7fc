"""What the page says of a trial: pictures, and numbers in small tables."""

from __future__ import annotations

import numpy as np
import torch

from gramloop.app import words
from gramloop.app.cache import Cache
from gramloop.app.panes import (
    Pane,
    Panes,
    agreement_of,
    compared_image,
    compared_panes,
    maps_pane,
    photo_pane,
)
from gramloop.app.trial import Outcome
from gramloop.data.suites import display_name
from gramloop.mitigations.pixels import appearance, noise_level
from gramloop.replay.adaptive import share
from gramloop.replay.config import SIGNALS
from gramloop.replay.cost import route
from gramloop.tasks.base import get_task
from gramloop.tasks.diagnosis import Spread
from gramloop.util.plotting import percent_of
from gramloop.util.table import Cell, Column, Table

TRUTH = "clean prediction"
METHODS = ("baseline", "mitigated")
_SHOWN = {
    "noise": "noise, by the model's pixels",
    "length": "length of patches",
    "spread": "spread of these lengths",
}


def say(outcome: Outcome, cache: Cache) -> str:
    """Everything about a trial as HTML."""
    parts = [words.paragraph(outcome.clean.note), _pictures(outcome, cache), words.heading("Numbers")]
    parts.append(words.beside(words.table(scores(outcome)), words.table(signals(outcome))))
    if outcome.maps is not None:
        parts += [words.heading("Drift and gate of the replay"), _maps(outcome, cache)]
    elif outcome.replay is not None:
        parts.append(words.paragraph(_without_maps(outcome)))
    return "".join(parts)


def caption(outcome: Outcome) -> str:
    """The trial in a line, mitigations as other commands take them."""
    shifted = "clean" if outcome.shift is None else outcome.shift.condition.display_name
    treated = outcome.mitigations or "no mitigation"
    return f"{outcome.opened.name} · {get_task(outcome.task).title} · {shifted} · {treated}"


def _key(outcome: Outcome) -> tuple[str, ...]:
    clean, shown = outcome.clean.digest, outcome.shown.digest
    condition = "" if outcome.shift is None else outcome.shift.condition.key
    return clean, shown, condition, outcome.opened.name, outcome.task, outcome.mitigations


def _pictures(outcome: Outcome, cache: Cache) -> str:
    def draw() -> Panes:
        row = compared_image(outcome)
        return compared_panes(row, TRUTH, METHODS[: len(row.predictions)])

    drawn = cache.get("pictures", _key(outcome), draw)
    if outcome.shift is None:
        return words.panes(drawn)
    condition = outcome.shift.condition
    name = f"{display_name(condition.name)}, severity {condition.severity}"
    before = photo_pane("clean image", outcome.clean.pixels)
    first = Pane("shifted image", drawn.panes[0].png, name)
    return words.panes(Panes((before, first, *drawn.panes[1:]), drawn.legend))


def scores(outcome: Outcome) -> Table:
    """Agreement with the clean prediction, blocks and milliseconds of both."""
    found = agreement_of(outcome)
    ordinary, treated = outcome.ordinary, outcome.treated
    gain = None if found.mitigated is None else found.mitigated - found.baseline
    rows: list[tuple[Cell, ...]] = [
        (
            f"agreement, {found.metric} (%)",
            f"{found.baseline:.1f}",
            _text(found.mitigated, ".1f"),
            _text(gain, "+.1f"),
        ),
        (
            "blocks executed",
            str(ordinary.prediction.blocks),
            None if treated is None else str(treated.prediction.blocks),
            None if treated is None else f"{treated.prediction.blocks / ordinary.prediction.blocks:.2f} ×",
        ),
        (
            "milliseconds",
            f"{ordinary.milliseconds:.0f}",
            None if treated is None else f"{treated.milliseconds:.0f}",
            None if treated is None else f"{treated.milliseconds / ordinary.milliseconds:.2f} ×",
        ),
    ]
    columns = (
        Column("what", "", "text"),
        *(Column(name, name.capitalize(), "mark") for name in METHODS),
        Column("change", "Change", "mark"),
    )
    notes = (
        "Agreement is with the ordinary prediction of the clean image; it is not accuracy. Blocks are those of "
        "one view of the image. Times are of one run each.",
    )
    return Table("Scores", columns, rows, notes, key="scores", caption="Baseline and mitigated")


def signals(outcome: Outcome) -> Table:
    """What can be measured of the image without labels, clean and shifted."""
    clean, shown = outcome.clean.pixels, outcome.shown.pixels
    looks = [{"noise, grey levels": noise_level(each), **appearance(each)} for each in (clean, shown)]
    rows: list[tuple[Cell, ...]] = [(name, looks[0][name], looks[1][name]) for name in looks[0]]
    block = _block(outcome)
    for name in SIGNALS:
        values = [look.signals.get(name) for look in (outcome.clean_look, outcome.shown_look)]
        if values[0] and values[1]:
            rows.append((_SHOWN[name], values[0][block], values[1][block]))
    columns = (
        Column("what", "", "text"),
        Column("clean", "Clean", digits=3),
        Column("shifted", "Shifted", digits=3),
    )
    notes = [f"Patches are those after block {block}."] if outcome.shown_look.signals else []
    notes += _decision(outcome)
    return Table("Signals", columns, rows, notes, key="signals", caption="Signals of the image")


def _block(outcome: Outcome) -> int:
    """The window's last block, where a replay decides; otherwise the last of all."""
    depth = outcome.opened.depth
    return depth - 1 if outcome.replay is None else route(outcome.replay, depth).end


def _decision(outcome: Outcome) -> tuple[str, ...]:
    """What an adaptive replay made of its signal, where that is known before anything is replayed."""
    rule = None if outcome.replay is None else outcome.replay.adaptive
    if rule is None or rule.signal not in outcome.shown_look.signals:
        return ()
    value = outcome.shown_look.signals[rule.signal][_block(outcome)]
    part = float(share(rule, torch.tensor([value]))[0])
    treats_pixels = " The replay itself sees the image after the mitigations on pixels." * (
        "+" in outcome.mitigations
    )
    return (
        f"Adaptive by {rule.signal}: {value:.3f} lets {part:.0%} of the gate through "
        f"(nothing at {rule.off:g}, all at {rule.full:g}).{treats_pixels}",
    )


def _maps(outcome: Outcome, cache: Cache) -> str:
    maps = outcome.maps
    assert maps is not None
    pane = cache.get("maps picture", _key(outcome), lambda: maps_pane(maps, outcome.shown.pixels))
    return words.beside(words.figures([pane], "gl-wide"), words.table(_replays(outcome)))


def _replays(outcome: Outcome) -> Table:
    maps = outcome.maps
    assert maps is not None
    rows: list[tuple[Cell, ...]] = []
    for number, (drift, gate) in enumerate(zip(maps.drift, maps.gate, strict=True), start=1):
        found = Spread.of(drift)
        rows.append(
            (
                f"replay {number}",
                f"{found.mean:.2e}",
                f"{found.median:.2e}",
                f"{found.largest:.2e}",
                _mean(gate),
            )
        )
    notes = []
    if maps.post_drift is not None:
        after, before = Spread.of(maps.post_drift).mean, Spread.of(maps.drift[-1]).mean
        left = f", {percent_of(after, before)} of the last proposal's" if before > 0 else ""
        notes.append(f"Drift of the accepted state: {after:.2e} on average{left}.")
    if not maps.drift.any():
        notes.append("Nothing was replayed: the adaptive rule passed over this image.")
    titles = ("Mean drift", "Median", "Largest", "Mean gate")
    columns = (Column("replay", "", "text"), *(Column(title, title, "mark") for title in titles))
    return Table("Replays", columns, rows, notes, key="replays", caption="Each replay")


def _mean(values: np.ndarray) -> str:
    return f"{float(np.nanmean(values)):.2f}"


def _without_maps(outcome: Outcome) -> str:
    if outcome.replay is not None and not outcome.replay.replays:
        return "With 0 replays there is no drift and no gate."
    return "Drift and gate are shown where one look is taken at the image, so not with flip, scales or pair."


def _text(value: float | None, form: str) -> str | None:
    return None if value is None else f"{value:{form}}"
