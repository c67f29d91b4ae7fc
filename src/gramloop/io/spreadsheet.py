"""Cells of a CSV file that a spreadsheet shows and does not run."""

from __future__ import annotations

import re

_BREAK = re.compile(r"[\t\r\n\v\f\x00]")
_FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)", re.IGNORECASE)


def text_cell(text: str) -> str:
    """A text on one line; one that a spreadsheet would take for a formula gets an apostrophe, numbers stay numbers."""
    text = _BREAK.sub(" ", text)
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text
