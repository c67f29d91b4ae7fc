"""Filters on pixels as a Python file next to an exported model, of numpy and OpenCV alone."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path

from gramloop.errors import GramLoopError
from gramloop.mitigations import filters
from gramloop.mitigations.calibration import CalibrationStats
from gramloop.mitigations.pixels import PixelMitigation

_MARK = '"""Written by gramloop export: '


def filter_source(stack: Sequence[PixelMitigation], stats: CalibrationStats | None, name: str) -> str:
    """The source of a module whose ``preprocess(pixels)`` applies the filters in their order.

    Args:
        stack: the filters.
        stats: calibration statistics, whose numbers are written into it.
        name: of the file with the model.
    """
    text = "+".join(each.text for each in stack)
    lines = []
    for each in stack:
        function, argument = each.call(stats)
        lines.append(f"    pixels = {function.__name__}(pixels, {argument!r})\n")
    body = inspect.getsource(filters).partition("from __future__")[2]
    return (
        f"{_MARK}{text}, which comes before {name}.\n\n"
        'Call preprocess(pixels) with an image as it was read: (H, W, 3) uint8 RGB.\n"""\n\n'
        f"from __future__{body}\n\ndef preprocess(pixels: _RGB) -> _RGB:\n"
        f'    """The image that is then resized to the input of {name}."""\n{"".join(lines)}    return pixels\n'
    )


def written_filters(model: Path, wanted: bool) -> Path | None:
    """The file with filters that an earlier export left next to a model; refuse to replace other code if one is wanted."""
    path = model.with_suffix(".py")
    if not path.is_file():
        return None
    with path.open(encoding="utf-8", errors="replace") as file:
        ours = file.readline().startswith(_MARK)
    if wanted and not ours:
        raise GramLoopError(
            f"{path} is code of yours, and the filters would replace it; choose another name for {model.name}"
        )
    return path if ours else None
