"""Pictures of a row of predictions, one by one, so that a page can lay them out in any width.

The drawing is that of the report; here every panel is a figure of its own. Figures share matplotlib's settings, so
one is drawn at a time.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gramloop.app.comparing import absent
from gramloop.report.figures.boxes import DetectionRow, draw_detection, legend_of_boxes
from gramloop.report.figures.depth import DepthRow, depth_scale, draw_depth
from gramloop.report.figures.diagnostic import Diagnosed, diagnostic
from gramloop.report.figures.panels import bare, draw_box, painted, photograph, shrunk
from gramloop.report.figures.qualitative import Row, SegmentationRow, class_colours, draw_segmentation
from gramloop.report.figures.segments import SegmentsRow, class_map, draw_segments
from gramloop.report.figures.style import BLUE, DEPTH_MAP, GAINED, LOST, ORANGE, OTHER, Sheet, styled
from gramloop.tasks.maps import per_patch
from gramloop.tasks.prediction import ReplayMaps

DRAWING = Lock()
_WIDTH, _DPI = 3.3, 160  # inches of a pane, and dots: enough for a sharp screen
_TALLEST = 1.6  # of a pane's width
_SAME = -2  # no class has this number

Legend = tuple[tuple[str, str], ...]  # colour and what it stands for


@dataclass(frozen=True)
class Pane:
    """One picture with its caption, and the same in words for those who cannot see it."""

    title: str
    png: bytes
    note: str = ""


@dataclass(frozen=True)
class Panes:
    """Pictures of one image, and what their colours mean."""

    panes: tuple[Pane, ...]
    legend: Legend = ()


def photo_pane(title: str, image: NDArray[np.uint8], note: str = "") -> Pane:
    """An image as it is."""
    buffer = io.BytesIO()
    Image.fromarray(shrunk(image)).save(buffer, format="png")
    return Pane(title, buffer.getvalue(), note)


def row_panes(row: Row, truth: str, methods: tuple[str, str]) -> Panes:
    """The input, what it is compared with, and both predictions."""
    with DRAWING, styled():
        sheets = [_sheet(row) for _ in range(4)]
        panels = [sheet.panel(0, 0, sheet.width, sheet.height) for sheet in sheets]
        legend = _draw(row, panels, truth, methods)
        titles = ("input", truth, *methods)
        drawn = tuple(Pane(title, _png(sheet)) for title, sheet in zip(titles, sheets, strict=True))
    return Panes(drawn, legend)


def difference_pane(row: Row, methods: tuple[str, str]) -> Pane:
    """Where the two predictions differ, whichever is right."""
    with DRAWING, styled():
        sheet = _sheet(row)
        panel = sheet.panel(0, 0, sheet.width, sheet.height)
        note = _draw_difference(panel, row, methods)
        return Pane("what differs", _png(sheet), note)


def maps_pane(maps: ReplayMaps, image: NDArray[np.uint8]) -> Pane:
    """Drift and gate of the last replay, as the report's diagnostic shows them."""
    drift, gate = per_patch(maps.drift, maps.cell), per_patch(maps.gate, maps.cell)
    post = None if maps.post_drift is None else per_patch(maps.post_drift[None], maps.cell)[0]
    with DRAWING:
        drawn = diagnostic([Diagnosed("this image", image, drift[-1], gate[-1], post)])
        return Pane("drift and gate", drawn.png(), drawn.caption)


def _sheet(row: Row) -> Sheet:
    height, width = row.image.shape[:2]
    return Sheet(_WIDTH, _WIDTH * min(max(height / width, 0.2), _TALLEST))


def _png(sheet: Sheet) -> bytes:
    buffer = io.BytesIO()
    sheet.figure.savefig(buffer, format="png", dpi=_DPI, facecolor="white", metadata={"Software": None})
    return buffer.getvalue()


def _draw(row: Row, panels: Sequence[Any], truth: str, methods: tuple[str, str]) -> Legend:
    """Draw the four panels; what the colours mean."""
    if isinstance(row, DetectionRow):
        draw_detection(panels, row)
        return tuple(
            (_hex(handle.get_edgecolor()), handle.get_label()) for handle in legend_of_boxes(methods, truth)
        )
    if isinstance(row, DepthRow):
        photograph(panels[0], shrunk(row.image), high=row.image.shape[:2])
        high = depth_scale([row])
        draw_depth(panels[1:], row, high)
        return _depth_legend(high)
    (colours,) = class_colours([row])
    aside = Sheet(_WIDTH, _WIDTH)  # takes the legend, which the page sets in its own type
    if isinstance(row, SegmentationRow):
        draw_segmentation(aside, panels, row, colours, 0.0)
    else:
        draw_segments(aside, panels, row, colours, 0.0)
    return _class_legend(row, colours, truth, methods)


def _class_legend(
    row: SegmentationRow | SegmentsRow, colours: Mapping[int, str], truth: str, methods: tuple[str, str]
) -> Legend:
    entries = [(colour, row.names.get(label, f"class {label}")) for label, colour in colours.items()]
    if len(row.present) > len(colours):
        entries.append((OTHER, "other classes"))
    entries.append((GAINED, f"outline: {methods[1]} alone agrees with the {truth}"))
    entries.append((LOST, f"outline: {methods[0]} alone does"))
    return tuple(entries)


def _depth_legend(high: float) -> Legend:
    import matplotlib

    colours = matplotlib.colormaps[DEPTH_MAP]
    return tuple(
        (_hex(colours(share)), f"{share * high:.3g} m" + " and more" * (share == 1))
        for share in (0.0, 0.25, 0.5, 0.75, 1.0)
    )


def _hex(colour: Any) -> str:
    from matplotlib.colors import to_hex

    return to_hex(colour)


def _draw_difference(panel: Any, row: Row, methods: tuple[str, str]) -> str:
    if isinstance(row, DetectionRow):
        return _differing_boxes(panel, row, methods)
    if isinstance(row, DepthRow):
        return _differing_depth(panel, row)
    (colours,) = class_colours([row])
    maps = (
        (row.baseline, row.method)
        if isinstance(row, SegmentationRow)
        else tuple(map(class_map, row.maps[1:]))
    )
    changed = maps[0] != maps[1]
    small = shrunk(row.image)
    picture = painted(small, np.where(changed, maps[1], _SAME), colours, _SAME)
    faded = (0.3 * small.mean(axis=2, keepdims=True) + 0.7 * 255).astype(np.uint8)
    same = (picture == 255).all(axis=2)
    picture[same] = np.broadcast_to(faded, picture.shape)[same]
    photograph(panel, picture, high=row.image.shape[:2])
    words = (
        "no pixel changes its class"
        if not changed.any()
        else f"{changed.mean():.1%} of pixels change their class"
    )
    return f"{words}; they are in the colour of their class in {methods[1]}"


def _differing_boxes(panel: Any, row: DetectionRow, methods: tuple[str, str]) -> str:
    photograph(panel, shrunk(row.image, 1024), high=row.image.shape[:2])
    first, second = row.predictions()
    alone = absent(first, second), absent(second, first)
    for found, flags, colour in zip((first, second), alone, (BLUE, ORANGE), strict=True):
        for place in np.flatnonzero(flags)[:40]:
            label = int(found.labels[place])
            words = f"{row.names.get(label, f'class {label}')} {found.scores[place]:.2f}"
            draw_box(panel, found.boxes[place], colour, words)
    counts = [int(flags.sum()) for flags in alone]
    return (
        f"{counts[0]} boxes in {methods[0]} alone (blue), {counts[1]} in {methods[1]} alone (orange), of those that "
        "score at least 0.40"
    )


def _differing_depth(panel: Any, row: DepthRow) -> str:
    known = (row.baseline > 0) & (row.method > 0)
    with np.errstate(all="ignore"):
        ratio = np.where(known, row.method / row.baseline, np.nan) - 1
    finite = ratio[np.isfinite(ratio)]
    top = max(float(np.percentile(np.abs(finite), 99)) if finite.size else 0.0, 1e-3)
    bare(panel).imshow(ratio, cmap="RdBu", vmin=-top, vmax=top, interpolation="nearest", aspect="auto")
    mean = float(np.abs(finite).mean()) if finite.size else 0.0
    return (
        f"depth changes by {mean:.1%} on average; blue is farther now, red nearer, full colour at {top:.1%}"
    )
