"""GPU-hours and results of the paper's five suites with the 7B, from its own timings and from counted blocks.

    python tools/gpu_hours.py

Published are seconds per image of COCO on an H100 for 40, 46, 78 and 94 blocks in each of ten views. A line through them
gives the time of one block and that of everything else. ADE20K has no published time: its blocks are priced by tokens,
and its head and everything else is left out.
"""

from __future__ import annotations

import numpy as np

PUBLISHED = {40: 2.73, 46: 3.14, 78: 4.63, 94: 5.35}  # blocks of a view: seconds of an image, on an H100
ORDINARY, REPLAYED = 40, 94
IMAGES = {
    "ADE20K-C": 75 * 2000,
    "ADE20K-P": 85 * 2000,
    "COCO-C": 75 * 5000,
    "COCO-P": 85 * 5000,
    "COCO-O": 6782,
}
CLEAN = {"ADE20K": 2000, "COCO": 5000}
# views of a photograph of 4:3, and tokens of all of them: an image of 2736 x 2048 in nine windows and as a whole; two crops
VIEWS = {"COCO": (10, 128 * 171 + 43 * 57 + 10 * 5), "ADE20K": (2, 2 * (56 * 56 + 5))}
KEPT, BYTES = 1500, 4 * 4 + 4 + 4  # detections of an image; their box, score and class before compression
UNIT = 50  # images


def main() -> None:
    """Print the table."""
    block, rest = np.polyfit(list(PUBLISHED), list(PUBLISHED.values()), 1)
    print(f"one block of an image of COCO: {1000 * block:.1f} ms; everything else: {rest:.2f} s")
    apart, paired = PUBLISHED[ORDINARY] + PUBLISHED[REPLAYED], PUBLISHED[REPLAYED] + rest
    print("| suite | images | blocks, apart | blocks, paired | H100-hours, apart | H100-hours, paired |")
    print("|---|---:|---:|---:|---:|---:|")
    total = np.zeros(5)
    for suite, images in IMAGES.items():
        base = suite.rsplit("-", 1)[0]
        images += CLEAN[base] if suite.endswith("-C") else 0  # the clean set once, beside the corruptions
        views, tokens = VIEWS[base]
        share = tokens / VIEWS["COCO"][1]
        blocks = np.array([ORDINARY + REPLAYED, REPLAYED]) * views * images
        seconds = np.array([apart, paired]) if base == "COCO" else blocks / (views * images) * block * share
        row = np.array([images, *blocks, *(seconds * images / 3600)])
        total += row
        print(f"| {suite} | {_cells(row)} |")
    print(f"| all | {_cells(total)} |")
    coco = sum(images for suite, images in IMAGES.items() if suite.startswith("COCO")) + CLEAN["COCO"]
    stored = coco * 2 * KEPT * BYTES / 1e9
    print(f"\ndetections of {coco:,} images and two methods: at most {stored:.0f} GB before compression")
    print(f"one unit of {UNIT} images of COCO, paired: {UNIT * paired / 60:.1f} minutes of one H100")


def _cells(row: np.ndarray) -> str:
    return " | ".join(f"{value:,.0f}" for value in row)


if __name__ == "__main__":
    main()
