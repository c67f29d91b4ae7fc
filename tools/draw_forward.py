"""Draw one forward of a replayed model: docs/images/forward.svg.

python tools/draw_forward.py docs/images/forward.svg
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

INK, GREY, WINDOW, PROBE, GATE = "#263238", "#b0bec5", "#ff8a50", "#eceff1", "#00796b"
ROWS = (96, 236, 376)  # middles: the baseline pass, the proposal and its probe, what the host goes on with
BEFORE, INSIDE, AFTER = (130, 162, 194, 226), (286, 318, 350), (470, 502, 534, 566, 598)
STATE, PATCHES, MAP = 420, 690, 920
DRIFT = (0.1, 0.2, 0.1, 0.9, 0.2, 0.6, 1.0, 0.8, 0.1, 0.3, 0.7, 0.2, 0.1, 0.1, 0.2, 0.1)


def text(x: float, y: float, words: str, size: int = 14, fill: str = INK, **more: str) -> str:
    """One line of words around x."""
    extra = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
    anchor = "" if "text_anchor" in more else ' text-anchor="middle"'
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{fill}"{anchor}{extra}>{words}</text>'


def blocks(places: Sequence[int], row: int, fill: str, dashed: bool = False) -> str:
    """Transformer blocks side by side."""
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    shape = f'width="24" height="52" rx="4" fill="{fill}" stroke="{INK}"{dash}'
    return "".join(f'<rect x="{x}" y="{row - 26}" {shape}/>' for x in places)


def arrow(*points: tuple[float, float], colour: str = INK, head: str = "tip") -> str:
    """A line with a tip at its end."""
    path = " ".join(f"{x},{y}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8" marker-end="url(#{head})"/>'


def state(row: int, words: str, colour: str = INK) -> str:
    """The tokens between two blocks."""
    circle = f'<circle cx="{STATE}" cy="{row}" r="17" fill="white" stroke="{colour}" stroke-width="2"/>'
    return circle + text(STATE, row + 5, words, 15, colour, font_style="italic")


def grid(x: int, row: int, shades: Sequence[float], colour: str) -> str:
    """Patches of an image, darker where a value is larger."""
    side = 15
    cells = [
        f'<rect x="{x + side * (i % 4)}" y="{row - 30 + side * (i // 4)}" width="{side}" height="{side}" fill="{colour}" '
        f'fill-opacity="{shade:.2f}" stroke="{INK}" stroke-width="0.6"/>'
        for i, shade in enumerate(shades)
    ]
    return "".join(cells)


def baseline_pass() -> list[str]:
    """The first row: what the model would have done anyway."""
    row = ROWS[0]
    return [
        text(30, row - 62, "1  baseline pass", 15, font_weight="bold", text_anchor="start"),
        text(60, row + 5, "image"),
        arrow((86, row), (126, row)),
        blocks(BEFORE, row, GREY),
        arrow((252, row), (282, row)),
        blocks(INSIDE, row, WINDOW),
        text(330, row - 36, "window"),
        arrow((376, row), (400, row)),
        state(row, "Z"),
        arrow((438, row), (466, row)),
        blocks(AFTER, row, GREY),
        text(546, row - 36, "blocks after it"),
        arrow((624, row), (684, row)),
        grid(PATCHES, row, [0.25] * 16, INK),
        text(720, row - 40, "final patches: the anchor"),
    ]


def proposal_and_probe() -> list[str]:
    """The second row: the window once more, and what the rest of the model makes of it."""
    row, up = ROWS[1], ROWS[0]
    return [
        arrow(
            (STATE, up + 18),
            (STATE, up + 62),
            (264, up + 62),
            (264, row),
            (282, row),
            colour=WINDOW,
            head="warm",
        ),
        text(100, row - 6, "2  proposal", 15, font_weight="bold", text_anchor="start"),
        text(100, row + 14, "the window again, on Z", 13, text_anchor="start"),
        blocks(INSIDE, row, WINDOW),
        arrow((376, row), (400, row)),
        state(row, "P", WINDOW),
        arrow((438, row), (466, row)),
        blocks(AFTER, row, PROBE, dashed=True),
        text(546, row + 46, "3  probe", 15, font_weight="bold"),
        arrow((624, row), (684, row)),
        grid(PATCHES, row, [0.25] * 16, INK),
        arrow((720, up + 34), (720, row - 34)),
        text(
            732, (up + row) / 2 - 2, "drift: how much a patch's cosine similarities", 13, text_anchor="start"
        ),
        text(732, (up + row) / 2 + 15, "to all other patches changed", 13, text_anchor="start"),
        arrow((754, row), (MAP - 6, row)),
        text(834, row - 10, "exp(−drift / median)", 13),
        grid(MAP, row, [1 - drift for drift in DRIFT], GATE),
        text(MAP + 30, row + 50, "4  gate", 15, GATE, font_weight="bold"),
    ]


def accepted() -> list[str]:
    """The third row: the state that the host goes on with."""
    row, up = ROWS[2], ROWS[1]
    return [
        arrow(
            (MAP + 64, up),
            (MAP + 96, up),
            (MAP + 96, row - 62),
            (STATE, row - 62),
            (STATE, row - 22),
            colour=GATE,
            head="cool",
        ),
        state(row, "Z′", GATE),
        text(STATE - 30, row - 6, "Z′ = Z + gate · (P − Z)", 15, GATE, text_anchor="end"),
        text(STATE - 30, row + 16, "each patch its own share; class and", 13, text_anchor="end"),
        text(STATE - 30, row + 33, "register tokens the mean", 13, text_anchor="end"),
        arrow((438, row), (466, row)),
        blocks(AFTER, row, GREY),
        text(546, row + 46, "5  the host goes on", 15, font_weight="bold"),
        arrow((624, row), (684, row)),
        text(724, row + 5, "your head"),
        text(546, row + 68, "or 2 to 4 once more from Z′: K replays", 13),
    ]


def drawing() -> str:
    """The whole picture."""
    tips = "".join(
        f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0,0 L8,4 L0,8 z" fill="{colour}"/></marker>'
        for name, colour in (("tip", INK), ("warm", WINDOW), ("cool", GATE))
    )
    parts = [*baseline_pass(), *proposal_and_probe(), *accepted()]
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" width="1060" height="460" viewBox="0 0 1060 460" font-family="Helvetica, Arial, sans-serif">\n'
        f'<rect width="1060" height="460" fill="white"/>\n<defs>{tips}</defs>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.parse_args().path.write_text(drawing(), encoding="utf-8")


if __name__ == "__main__":
    main()
