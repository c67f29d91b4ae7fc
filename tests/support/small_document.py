"""A document with everything a page has to cope with: awkward names, missing numbers, long tables."""

from io import BytesIO

import numpy as np
from PIL import Image

from gramloop.evaluate.answer import Answer, MethodGain
from gramloop.metrics.bootstrap import Interval
from gramloop.report.document import Document, RenderedFigure, Section
from gramloop.util.table import Column, Table

LONG_WORD = "sha256:" + "9f86d081884c7d65" * 8
COLUMNS = (
    Column("condition", "condition", "text"),
    Column("score", "mIoU", digits=2),
    Column("gain", digits=2, signed=True),
    Column("interval", "95% interval", "interval", 2),
    Column("images", "images", digits=0),
)
# shown, 1.234 and 1.231 read alike, and as texts "10.50" stands before "9.25"
ROWS = (
    ("fog <3>", 9.25, 1.234, Interval(1.234, 0.5, 2.0), 1200),
    ("noise 10", 10.5, -0.75, Interval(-0.75, -1.5, -0.2), 40),
    ("noise 9", 100.0, 1.231, Interval(1.231, -0.1, 2.5), 900),
    ("blur", None, None, None, 7),
    ("snow", float("nan"), 0.0, Interval(0.0, -0.1, 0.1), 8),
    ("mean", 39.9, 0.57, Interval(0.57, 0.1, 1.0), None),
)
ORDERS = {  # by the column's place: names upwards, then downwards
    0: (["blur", "fog <3>", "noise 9", "noise 10", "snow"], ["snow", "noise 10", "noise 9", "fog <3>", "blur"]),
    1: (["fog <3>", "noise 10", "noise 9", "blur", "snow"], ["noise 9", "noise 10", "fog <3>", "blur", "snow"]),
    2: (["noise 10", "snow", "noise 9", "fog <3>", "blur"], ["fog <3>", "noise 9", "snow", "noise 10", "blur"]),
    3: (["noise 10", "snow", "noise 9", "fog <3>", "blur"], ["fog <3>", "noise 9", "snow", "noise 10", "blur"]),
    4: (["blur", "snow", "noise 10", "noise 9", "fog <3>"], ["fog <3>", "noise 9", "noise 10", "snow", "blur"]),
}  # fmt: skip


def png(width: int, height: int, dpi: int = 192) -> bytes:
    ramp = np.linspace(0, 255, width * height * 3).reshape(height, width, 3).astype(np.uint8)
    buffer = BytesIO()
    Image.fromarray(ramp).save(buffer, format="png", dpi=(dpi, dpi))
    return buffer.getvalue()


ANSWER = Answer(
    "scenes-c",
    "Use gramloop: mIoU rises.",
    "mIoU",
    "gramloop",
    (
        MethodGain("gramloop", 50.12, 50.0, Interval(0.12, 0.03, 0.2), 2.0, 1.9),
        MethodGain("ungated", 49.6, 50.0, Interval(-0.4, -0.9, 0.1), 2.0, 1.8),
    ),
    ("gramloop predict photos --method best.json",),
    ("Intervals are over 6 families.",),
)


def small_document() -> Document:
    long = tuple((f"condition {index}", float(index % 7), None, None, index) for index in range(60))
    return Document(
        title="GramLoop on scenes-c & friends",
        about={"Model": "tiny, segmentation", "Command": "gramloop evaluate --out out/first"},
        answers=(ANSWER,),
        figures=(
            RenderedFigure("chart", "Chart", "Every method.", png(800, 200), None, "Bars", "answer scenes-c"),
        ),
        warnings=("3 images could not be decoded <b>at all</b>.",),
        sections=(
            Section(
                "summary",
                "Summary",
                "First paragraph.\n\nSecond paragraph.",
                (
                    Table(
                        "Scores",
                        COLUMNS,
                        ROWS,
                        ("A note.",),
                        key="scores",
                        caption="In percent.",
                        compared=("score", "gain"),
                        footer=1,
                    ),
                ),
                (
                    RenderedFigure(
                        "gains", "Gains", "Dots and bars.", png(1600, 600), b"%PDF", "A row of dots"
                    ),
                    RenderedFigure("cost", "Cost", "", png(400, 300), None, "Two bars"),
                ),
            ),
            Section("all", "Everything", "", (Table("Conditions", COLUMNS, long, key="all"),)),
        ),
        facts={"Model": {"checksum": LONG_WORD, "depth": "12"}, "Versions": {"torch": "2.13.0"}},
    )
