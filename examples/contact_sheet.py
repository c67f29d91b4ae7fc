"""One picture under every corruption and perturbation at five severities.

    python examples/contact_sheet.py shifts.jpg                          # a drawn scene
    python examples/contact_sheet.py noise.png --image photo.jpg --condition noise --severity 1 5

A row is a condition, its severities from left to right; the corruptions stand left of the perturbations.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from gramloop.data import Condition, Record, Shift, Suite, find_suite, scene

GAP, LABEL, LINE = 4, 168, 24  # pixels


def contact_sheet(
    image: np.ndarray, suite: Suite, names: list[str], severities: Sequence[int], thumb: int
) -> Image.Image:
    """A grid of thumbnails: rows are conditions, columns severities."""
    record = Record("sheet", Path("sheet"), "sheet", *image.shape[:2])
    high = round(thumb * image.shape[0] / image.shape[1])
    size = LABEL + len(severities) * (thumb + GAP), LINE + len(names) * (high + GAP)
    sheet = Image.new("RGB", size, "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(15)
    for column, severity in enumerate(severities):
        draw.text((LABEL + column * (thumb + GAP), 2), f"severity {severity}", "grey", font)
    for row, name in enumerate(names):
        top = LINE + row * (high + GAP)
        draw.text((8, top + high // 2), name.replace("_", " "), "black", font, anchor="lm")
        for column, severity in enumerate(severities):
            shifted = Shift(suite.name, suite.kind, Condition(name, severity)).pixels(image, record)
            small = Image.fromarray(shifted).resize((thumb, high), Image.Resampling.BOX)
            sheet.paste(small, (LABEL + column * (thumb + GAP), top))
    return sheet


def main(words: Sequence[str] | None = None) -> None:
    """Draw and save the sheet."""
    parser = argparse.ArgumentParser(description="One picture under every shift.")
    parser.add_argument("file", type=Path, help="picture to write")
    parser.add_argument("--image", type=Path, help="a picture; a drawn scene by default")
    parser.add_argument("--scene", type=int, default=11, help="number of the drawn scene")
    parser.add_argument(
        "--condition", nargs="+", default=[], help="some conditions or groups; all by default"
    )
    parser.add_argument("--severity", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--thumb", type=int, default=120, help="width of a thumbnail in pixels")
    args = parser.parse_args(words)
    if args.image is None:
        image = scene(args.scene, size=240).image
    else:
        image = np.asarray(Image.open(args.image).convert("RGB"))
    panels = []
    for suite in (find_suite("sheet-c"), find_suite("sheet-p")):
        wanted = [name for name in args.condition if name in suite.names or name in suite.groups]
        names = suite.expand(wanted) if args.condition else suite.names
        if names:
            panels.append(contact_sheet(image, suite, names, args.severity, args.thumb))
    whole = Image.new(
        "RGB", (sum(panel.width for panel in panels), max(panel.height for panel in panels)), "white"
    )
    left = 0
    for panel in panels:
        whole.paste(panel, (left, 0))
        left += panel.width
    whole.save(args.file)


if __name__ == "__main__":
    main()
