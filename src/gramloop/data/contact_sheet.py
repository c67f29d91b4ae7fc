"""A contact sheet: one picture under every condition and severity of some suites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from gramloop.data.records import Image8, Record
from gramloop.data.shifted import Shift
from gramloop.data.suites import SEVERITIES, Condition, Suite
from gramloop.shifts.corruptions import EXTRA_CORRUPTIONS

PAPER, INK, FAINT = (255, 255, 255), (32, 36, 44), (120, 126, 138)
ACCENTS = {
    "noise": (196, 78, 60),
    "blur": (58, 110, 180),
    "weather": (40, 140, 130),
    "digital": (150, 90, 170),
    "geometry": (200, 140, 30),
}
TITLES = {"c": "Corruptions (-C)", "p": "Perturbations (-P)"}


@dataclass(frozen=True)
class SheetStyle:
    """Sizes in pixels."""

    thumb: int = 120
    gap: int = 4
    label: int = 168
    header: int = 40
    strip: int = 26
    margin: int = 20
    font: int = 16


def contact_sheet(
    image: Image8,
    suites: Sequence[Suite],
    style: SheetStyle | None = None,
    *,
    conditions: Sequence[str] = (),
    severities: Sequence[int] = SEVERITIES,
) -> Image.Image:
    """One column of rows per suite; a row is a condition, with its severities from left to right.

    ``conditions``, names or groups, are those shown, of whatever suite has them; all by default.
    """
    style = style or SheetStyle()
    chosen = [(suite, names) for suite in suites if (names := _names(suite, conditions))]
    if not chosen:
        suites[0].expand(conditions)  # says what there is
    for name in conditions:
        if not any(_names(suite, [name]) for suite in suites):
            suites[0].expand([name])
    panels = [_panel(image, suite, names, sorted(set(severities)), style) for suite, names in chosen]
    width = sum(panel.width for panel in panels) + style.margin * (len(panels) + 1)
    height = max(panel.height for panel in panels) + 2 * style.margin
    sheet = Image.new("RGB", (width, height), PAPER)
    left = style.margin
    for panel in panels:
        sheet.paste(panel, (left, style.margin))
        left += panel.width + style.margin
    return sheet


def _names(suite: Suite, asked: Sequence[str]) -> list[str]:
    """The conditions to show of a suite, kind by kind; none where it has none that is asked for."""
    every = list(dict.fromkeys(condition.name for condition in suite.conditions))
    every += EXTRA_CORRUPTIONS if suite.kind == "c" else ()
    there = [name for name in asked if name in every or name in suite.groups]
    names = suite.expand(there) if asked else every
    return sorted(names, key=lambda name: list(ACCENTS).index(Condition(name).group))  # stable within a kind


def _panel(
    image: Image8, suite: Suite, names: Sequence[str], severities: Sequence[int], style: SheetStyle
) -> Image.Image:
    cell = _cell(image, style)
    pitch_x, pitch_y = cell[0] + style.gap, cell[1] + style.gap
    width = style.label + pitch_x * len(severities) - style.gap
    first = style.header + pitch_y + style.strip  # the rows begin below the clean picture
    panel = Image.new("RGB", (width, first + pitch_y * len(names)), PAPER)
    draw = ImageDraw.Draw(panel)
    draw.text((0, 0), TITLES.get(suite.kind, suite.name), INK, _font(style.font + 6))
    for column, severity in enumerate(severities):
        middle = style.label + pitch_x * column + cell[0] // 2
        draw.text((middle, first - 8), f"severity {severity}", FAINT, _font(style.font - 3), anchor="ms")
    record = Record("contact sheet", Path("contact sheet"), "contact sheet", *image.shape[:2])
    _row_label(draw, "clean", "", style.header, cell[1], style)
    panel.paste(Image.fromarray(_reduced(image, cell)), (style.label, style.header))
    row = 0
    for group, members in groupby(names, key=lambda name: Condition(name).group):
        for name in members:
            top = first + pitch_y * row
            _row_label(draw, name, group, top, cell[1], style)
            for column, severity in enumerate(severities):
                shift = Shift(suite.name, suite.kind, Condition(name, severity))
                thumb = Image.fromarray(_reduced(shift.pixels(image, record), cell))
                panel.paste(thumb, (style.label + pitch_x * column, top))
            row += 1
    return panel


def _row_label(
    draw: ImageDraw.ImageDraw, name: str, group: str, top: int, height: int, style: SheetStyle
) -> None:
    draw.rectangle((0, top, 4, top + height - 1), ACCENTS.get(group, INK))
    middle = top + height // 2
    draw.text((14, middle), name.replace("_", " "), INK, _font(style.font), anchor="ls")
    note = f"{group}, extra" if name in EXTRA_CORRUPTIONS else group
    draw.text((14, middle + style.font), note, FAINT, _font(style.font - 3), anchor="ls")


def _cell(image: Image8, style: SheetStyle) -> tuple[int, int]:
    height, width = image.shape[:2]
    return style.thumb, max(1, round(style.thumb * height / width))


def _reduced(image: Image8, size: tuple[int, int]) -> Image8:
    reduced: Image8 = np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA))
    return reduced


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
